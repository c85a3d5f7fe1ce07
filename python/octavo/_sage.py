"""Drop-in functions for callers of `sageattn` and of torch's `scaled_dot_product_attention`."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _attention
from ._arguments import flag, one_of, real, whole
from ._attention import attention
from ._tensor import borrow, borrow_integers, host_integers

_LAYOUTS = {"HND": "hnd", "NHD": "nhd"}
_GRANULARITIES = {"per_thread": "per_thread", "per_warp": "per_warp"}
# An accumulator goes with the ranges of P and V that it can hold: all of e4m3 in f32; in f16, two products of
# 32 terms stay below 65504 only with 224 and 4.5.
_ACCUMULATORS = {
    "fp32": ("sage2-8+8", {"pv_accumulator": "f32", "pv_buffer": 0}),
    "fp32+fp32": ("sage2-8+8", {}),
    "fp32+fp16": ("sage2++-8+8", {}),
}


def _recipe(smooth_k: Any, qk_quant_gran: Any, pv_accum_dtype: Any) -> dict[str, Any]:
    accumulator = "fp32+fp16" if pv_accum_dtype is None else pv_accum_dtype
    preset, fields = one_of("pv_accum_dtype", accumulator, _ACCUMULATORS)
    fields = {**fields, "smooth_k": flag("smooth_k", smooth_k)}
    if qk_quant_gran is not None:
        group = one_of("qk_quant_gran", qk_quant_gran, _GRANULARITIES)
        fields |= {"q_group": group, "k_group": group}
    return {"recipe": preset, "overrides": fields}


def sageattn(
    q: Any,
    k: Any,
    v: Any,
    tensor_layout: Any = "HND",
    is_causal: bool = False,
    sm_scale: float | None = None,
    return_lse: bool = False,
    *,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = True,
    smooth_k: bool = True,
    qk_quant_gran: str | None = None,
    pv_accum_dtype: str | None = None,
) -> Any:
    """INT8 Q and K, FP8 P and V (recipe "sage2++-8+8"), for code written for sageattn or for torch.

    q, k, v: [B, H, L, D] (tensor_layout "HND") or [B, L, H, D] ("NHD"); dtypes and kinds as
        `octavo.attention`.
    is_causal: query i sees keys j <= i (top-left), as in torch.
    attn_mask: bool (True = keep) or floats added to scaled scores, broadcastable to [B, Hq, Lq, Lk].
    sm_scale, scale: two names of one number, default 1 / sqrt(D).
    enable_gqa: False refuses different numbers of heads, as torch does. dropout_p: 0 only.
    smooth_k: subtract the mean key first. qk_quant_gran: "per_thread" (default) or "per_warp".
    pv_accum_dtype: "fp32", "fp32+fp32" or "fp32+fp16" (default), each with ranges that cannot overflow.

    torch's positional order works too, `sageattn(q, k, v, attn_mask, dropout_p, is_causal)`: a tensor_layout
    that is no string is taken as attn_mask, and then a 5th argument that is no bool as dropout_p and a bool
    6th as is_causal.

    Returns o, or (o, lse) with lse float32 [B, Hq, Lq], natural log, in both layouts. ValueError: a wrong
    value, is_causal with attn_mask, scale with sm_scale. NotImplementedError: dropout, gradients, what
    octavo.attention does not support. Unknown keywords raise TypeError.
    """
    if not isinstance(tensor_layout, str):
        if attn_mask is not None and tensor_layout is not None:
            raise ValueError("attn_mask is given twice: by position (as tensor_layout) and by name")
        attn_mask = tensor_layout if attn_mask is None else attn_mask
        tensor_layout = "HND"
        if isinstance(is_causal, (int, float)) and not isinstance(is_causal, bool):
            dropout_p, is_causal = is_causal, False
            if isinstance(sm_scale, bool):
                is_causal, sm_scale = sm_scale, None
    layout = one_of("tensor_layout", tensor_layout, _LAYOUTS)
    if sm_scale is not None and scale is not None:
        raise ValueError(
            f"scale is {scale} and sm_scale is {sm_scale}; they are two names of one number, give one"
        )
    if real("dropout_p", dropout_p) != 0.0:
        raise NotImplementedError(f"dropout_p is {dropout_p}; only 0 is supported, Octavo is for inference")
    causal = flag("is_causal", is_causal)
    if causal and attn_mask is not None:
        raise ValueError("is_causal is True and attn_mask is given; give one of them")
    if not flag("enable_gqa", enable_gqa):
        _check_equal_heads(q, k, layout)
    return attention(
        q,
        k,
        v,
        **_recipe(smooth_k, qk_quant_gran, pv_accum_dtype),
        layout=layout,
        causal="top_left" if causal else "none",
        scale=scale if sm_scale is None else sm_scale,
        return_lse=return_lse,
        **_mask_or_bias(attn_mask),
    )


def _mask_or_bias(attn_mask: Any) -> dict[str, Any]:
    if attn_mask is None:
        return {}
    hook = _attention.torch_hook
    if hook is not None and hook.compiling():
        return {"mask" if hook.is_bool(attn_mask) else "bias": attn_mask}
    dtype = borrow("attn_mask", attn_mask, ("bool", "float32", "float16", "bfloat16")).dtype
    return {"mask" if dtype == "bool" else "bias": attn_mask}


def _check_equal_heads(q: Any, k: Any, layout: str) -> None:
    axis = 1 if layout == "hnd" else 2
    # Other ranks, and things without a shape, are attention's to refuse.
    heads = [x.shape[axis] for x in (q, k) if len(getattr(x, "shape", ())) == 4]
    if len(heads) == 2 and heads[0] != heads[1]:
        raise ValueError(f"q has {heads[0]} heads and k has {heads[1]}; enable_gqa=False needs equal numbers")


def sageattn_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    is_causal: bool = False,
    sm_scale: float | None = None,
    smooth_k: bool = True,
) -> Any:
    """sageattn on packed sequences: q [tokens, Hq, D], k and v [tokens, Hkv, D], cu_seqlens whole numbers
    [sequences + 1].

    Unlike its namesake it subtracts each sequence's own mean key, so a sequence's result does not depend on
    the others in its pack. cu_seqlens on a CUDA device cost a copy to the host that waits for the stream.
    Returns o [tokens, Hq, D]. ValueError: as sageattn, or a max_seqlen below the
    longest sequence.
    """
    ends = {}
    for side, offsets, limit in (("q", cu_seqlens_q, max_seqlen_q), ("k", cu_seqlens_k, max_seqlen_k)):
        name = f"cu_seqlens_{side}"
        borrow_integers(name, offsets)
        if np.ndim(offsets) != 1:
            raise ValueError(f"{name} has {np.ndim(offsets)} dimensions; it must be [sequences + 1]")
        ends[name] = host_integers(name, offsets)
        longest = int(np.diff(ends[name]).max()) if ends[name].size > 1 else 0
        if whole(f"max_seqlen_{side}", limit) < longest:
            raise ValueError(
                f"max_seqlen_{side} is {limit}; the longest sequence of {name} has {longest} tokens"
            )
    return attention(
        q,
        k,
        v,
        **_recipe(smooth_k, None, None),
        layout="thd",
        causal="top_left" if flag("is_causal", is_causal) else "none",
        scale=sm_scale,
        **ends,
    )
