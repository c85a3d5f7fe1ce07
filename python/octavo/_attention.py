"""octavo.attention, and octavo.quantize_kv for callers that keep quantized K and V."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _octavo
from ._arguments import LAYOUTS, flag, kernel_name, one_of, options
from ._recipe import Recipe, Value, settle
from ._tensor import FLOATS, Result, borrow, borrow_integers

torch_hook: Any = None  # octavo.torch, once it is there: what to do while torch.compile traces


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    recipe: str | Recipe = "auto",
    overrides: Mapping[str, Value] | None = None,
    layout: str = "hnd",
    causal: str = "none",
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    kv_lengths: Any = None,
    mask: Any = None,
    bias: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    q_absmax: Any = None,
    return_lse: bool = False,
    out: Any = None,
    threads: int | None = None,
    check_finite: bool = True,
    kernel: str | None = None,
) -> Any:
    """softmax(scale * q k^T + bias, over visible keys) v, in 8 bits where the recipe says so.

    Tensors are numpy arrays (float32, float16, ml_dtypes.bfloat16) or DLPack tensors on the CPU (torch, jax,
    ...), of one dtype, with any strides. Nothing is copied and no input is modified.

    q, k, v: [B, H, L, D] (layout "hnd"), [B, L, H, D] ("nhd"), or packed [tokens, H, D] ("thd", with
        cu_seqlens_q and cu_seqlens_k). Hq is a multiple of Hkv; query head h reads key head h // (Hq // Hkv).
        D is 1 to 256.
    recipe, overrides: a preset's name or a Recipe, and fields to change for this call.
    causal: "none"; "top_left": query i sees keys j <= i; "bottom_right": j <= i + n - Lq, n the valid keys.
    window: (left, right) keys around a query's own position, inclusive, -1 for no limit.
    scale: default 1 / sqrt(D); any finite number.
    kv_lengths: whole numbers [B], the valid keys of each batch entry.
    mask: bool, broadcastable to [B, Hq, Lq, Lk], True = visible. bias: floats, likewise, added to scaled
        scores.
    cu_seqlens_q, cu_seqlens_k: whole numbers [sequences + 1], from 0 to the number of tokens.
    q_absmax: float32 [Hq] or [B, Hq]: the query scale, for recipes that have one; queries beyond it clamp.
    out: written in place and returned; q's shape, q's dtype or float32; it must not overlap q, k or v.
    threads: CPU threads; None is as many as the process may use. Results do not depend on it.
    check_finite: refuse NaN and infinity in valid data. kernel: force one of octavo.info()["kernels"].

    Returns o (q's kind, shape and dtype, contiguous), or (o, lse) with lse float32 [B, Hq, Lq] (packed [Hq,
    tokens]), the natural log of the softmax's denominator. A query that sees no key has o = 0 and lse = -inf.

    ValueError: a wrong shape, dtype, name or number. NotImplementedError: a right request that is not
    supported here (another D for v, gradients, CUDA tensors). TypeError: something that is no tensor, or an
    unknown keyword.
    """
    if torch_hook is not None and torch_hook.compiling():
        return torch_hook.compiled(
            q,
            k,
            v,
            recipe=recipe,
            overrides=overrides,
            out=out,
            return_lse=return_lse,
            layout=layout,
            causal=causal,
            window=window,
            scale=scale,
            kv_lengths=kv_lengths,
            mask=mask,
            bias=bias,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            q_absmax=q_absmax,
            threads=threads,
            check_finite=check_finite,
            kernel=kernel,
        )
    layout_code = one_of("layout", layout, LAYOUTS)
    tensors = borrow("q", q), borrow("k", k), borrow("v", v)
    given = options(
        layout=layout_code,
        causal=causal,
        window=window,
        scale=scale,
        kv_lengths=kv_lengths,
        mask=mask,
        bias=bias,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        q_absmax=q_absmax,
        check_finite=check_finite,
        threads=threads,
    )
    forced = kernel_name(kernel)
    settled = settle(recipe, overrides, lambda auto: _octavo.make_plan(*tensors, auto, given, "").recipe.name)
    plan = _octavo.make_plan(*tensors, settled, given, forced)
    outputs = _Outputs(q, tensors, layout_code, out, return_lse)
    quantized = _octavo.QuantizedKv()
    plan.quantize_kv(tensors[1], tensors[2], quantized)
    return outputs.of(plan, tensors[0], quantized)


class _Outputs:
    """Where o and lse go: checked or made before any work is done."""

    def __init__(self, q: Any, tensors: tuple, layout: int, out: Any, return_lse: bool) -> None:
        query = tensors[0]
        self._given = out
        if out is None:
            self._made = Result(q, query.shape, query.dtype)
            self._out = self._made.tensor
        else:
            self._out = borrow("out", out, FLOATS, writable=True)
            if self._out.shape != query.shape:
                raise ValueError(f"out has shape {self._out.shape}; it must be {query.shape} as q")
            if self._out.dtype not in (query.dtype, "float32"):
                raise ValueError(
                    f"out has dtype {self._out.dtype}; it must be {query.dtype} as q, or float32"
                )
            for name, tensor in zip("qkv", tensors, strict=False):
                if tensor.address == self._out.address and 0 not in query.shape:
                    raise ValueError(f"out is the memory of {name}; it must not overlap q, k or v")
        self._lse = None
        if flag("return_lse", return_lse):
            n = query.shape
            shape = {0: n[:3], 1: (n[0], n[2], n[1]), 2: (n[1], n[0])}[layout]
            self._lse = Result(q, shape, "float32")

    def of(self, plan: _octavo.Plan, q: _octavo.Tensor, kv: _octavo.QuantizedKv) -> Any:
        plan.attend(q, kv, self._out, None if self._lse is None else self._lse.tensor)
        o = self._made.value if self._given is None else self._given
        return o if self._lse is None else (o, self._lse.value)


class QuantizedKV:
    """K and V quantized once, for any number of `attend` calls: a KV cache, or a table's train rows that both
    the train and the test rows look at. Made by `octavo.quantize_kv`; usable from several threads at once."""

    def __init__(
        self,
        quantized: _octavo.QuantizedKv,
        plan: _octavo.Plan,
        shape: tuple,
        dtype: str,
        layout: str,
        lengths: dict,
    ) -> None:
        self._quantized = quantized
        self._plan = plan
        self._shape = shape
        self._dtype = dtype
        self._layout = layout
        self._lengths = lengths

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the k it was made from, in its layout."""
        return self._shape

    @property
    def dtype(self) -> str:
        """Of the k it was made from, which q must have: "float32", "float16" or "bfloat16"."""
        return self._dtype

    @property
    def layout(self) -> str:
        return self._layout

    @property
    def recipe(self) -> Recipe:
        """What was run: `auto` replaced, fields left to the kernel filled in."""
        return Recipe._wrap(self._plan.recipe)

    @property
    def kernel(self) -> str:
        return self._plan.kernel

    @property
    def reason(self) -> str:
        """One sentence: what was picked and why."""
        return self._plan.reason

    @property
    def nbytes(self) -> int:
        """Bytes of the quantized buffer, which views made by `heads` share."""
        return self._quantized.nbytes

    def heads(self, first: int, count: int) -> QuantizedKV:
        """The same buffer seen as its key heads [first, first + count). ValueError: no such heads."""
        try:
            part = self._quantized.heads(first, count)
        except TypeError:
            raise ValueError(f"heads({first!r}, {count!r}): both must be whole numbers") from None
        shape = list(self._shape)
        shape[2 if self._layout == "nhd" else 1] = count
        return QuantizedKV(part, self._plan, tuple(shape), self._dtype, self._layout, self._lengths)

    def attend(
        self,
        q: Any,
        *,
        causal: str = "none",
        window: tuple[int, int] = (-1, -1),
        scale: float | None = None,
        mask: Any = None,
        bias: Any = None,
        cu_seqlens_q: Any = None,
        q_absmax: Any = None,
        return_lse: bool = False,
        out: Any = None,
        threads: int | None = None,
        check_finite: bool = True,
    ) -> Any:
        """Attention of q over these keys: arguments, result and errors as of `octavo.attention`."""
        query = borrow("q", q)
        given = options(
            layout=LAYOUTS[self._layout],
            causal=causal,
            window=window,
            scale=scale,
            mask=mask,
            bias=bias,
            cu_seqlens_q=cu_seqlens_q,
            q_absmax=q_absmax,
            check_finite=check_finite,
            threads=threads,
            **self._lengths,
        )
        # The checks want k and v; of these only shape and dtype are left, and nothing reads further.
        keys = _octavo.Tensor.from_address(
            self._quantized.address, self._dtype, list(self._shape), [0] * len(self._shape), self._quantized
        )
        plan = _octavo.make_plan(query, keys, keys, self._plan.recipe, given, self._plan.kernel)
        outputs = _Outputs(q, (query,), LAYOUTS[self._layout], out, return_lse)
        return outputs.of(plan, query, self._quantized)

    def __repr__(self) -> str:
        return (
            f"<octavo.QuantizedKV {list(self._shape)} {self._layout} {self._dtype}, "
            f"recipe {self.recipe.name}, "
            f"kernel {self.kernel}, {self.nbytes} bytes>"
        )


def quantize_kv(
    k: Any,
    v: Any,
    *,
    recipe: str | Recipe = "auto",
    overrides: Mapping[str, Value] | None = None,
    layout: str = "hnd",
    kv_lengths: Any = None,
    cu_seqlens_k: Any = None,
    threads: int | None = None,
    check_finite: bool = True,
    kernel: str | None = None,
) -> QuantizedKV:
    """Quantizes k and v once, for several calls with different queries::

        kv = octavo.quantize_kv(k, v, recipe="int8-icl")
        train = kv.attend(q_train)
        test = kv.attend(q_test, q_absmax=abs(q_train).max(axis=(2, 3)))    # recipes with a scale per head
        one = kv.heads(0, 1).attend(q_multi_query)

    Arguments and errors as of `octavo.attention`. k and v are not needed afterwards.
    """
    layout_code = one_of("layout", layout, LAYOUTS)
    keys, values = borrow("k", k), borrow("v", v)
    # Owned copies: a later change of the caller's lengths must not change what this object means.
    lengths = {}
    for name, x in (("kv_lengths", kv_lengths), ("cu_seqlens_k", cu_seqlens_k)):
        if x is not None:
            lengths[name] = _own(name, x)
    given = options(
        layout=layout_code, check_finite=check_finite, threads=threads, **_self_attention(lengths)
    )
    forced = kernel_name(kernel)
    # A plan needs queries; the shape of k serves, and nothing reads them here.
    settled = settle(
        recipe, overrides, lambda auto: _octavo.make_plan(keys, keys, values, auto, given, "").recipe.name
    )
    plan = _octavo.make_plan(keys, keys, values, settled, given, forced)
    quantized = _octavo.QuantizedKv()
    plan.quantize_kv(keys, values, quantized)
    return QuantizedKV(quantized, plan, keys.shape, keys.dtype, layout, lengths)


def _own(name: str, x: Any) -> _octavo.Tensor:
    borrowed = borrow_integers(name, x)
    if len(borrowed.shape) != 1:
        raise ValueError(f"{name} has shape {borrowed.shape}; it must have one dimension")
    return borrow_integers(name, np.array([int(n) for n in x], np.int64))


def _self_attention(lengths: dict) -> dict:
    cu_seqlens = lengths.get("cu_seqlens_k")
    return lengths if cu_seqlens is None else {**lengths, "cu_seqlens_q": cu_seqlens}
