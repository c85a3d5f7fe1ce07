"""Causal masks, windows, boolean masks (computed exactly or refused, never dropped) and bias."""

from dataclasses import replace

import numpy as np

from ..case import add
from ..generate import dense, seeded


def _key_mask(name, b, n, keep):
    p = dense(name, b, 4, 2, 60, n, 64, "bf16")
    r = seeded(name + "/mask")
    return replace(p, mask=np.stack([keep(r, n) for _ in range(b)]).reshape(b, 1, 1, n))


def _full_mask(name, b, n, keep):
    p = dense(name, b, 2, 2, n, n, 64, "f16")
    r = seeded(name + "/mask")
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    return replace(
        p, mask=np.stack([np.broadcast_to(keep(r, i, j), (n, n)) for _ in range(b)]).reshape(b, 1, n, n)
    )


def _left_padded(name):
    lens, n = (17, 64, 100, 128), 128
    p = dense(name, 4, 4, 4, n, n, 64, "bf16", causal="top_left")
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    mask = np.stack([np.broadcast_to(j >= n - ln, (n, n)) & (j <= i) for ln in lens])
    return replace(p, mask=mask[:, None])


def _nan_under_mask(name):
    p = _key_mask(name, 2, 150, lambda r, n: np.arange(n) % 3 > 0)
    hidden = ~p.mask[:, 0, 0]
    for b in range(2):
        p.k[b][:, hidden[b]] = np.nan
        p.v[b][:, hidden[b]] = np.nan
    return p


def _bias(name):
    p = dense(name, 2, 2, 2, 40, 150, 64)
    bias = seeded(name + "/bias").standard_normal((2, 1, 40, 150)).astype(np.float32) * 2
    bias[..., :64] = -np.inf
    return replace(p, bias=bias)


add(
    "causal-top-left-113x203",
    "fewer queries than keys, top-left",
    lambda: dense("causal-top-left-113x203", 2, 4, 4, 113, 203, 64, causal="top_left"),
    ("microsoft/onnxruntime#29020",),
    checks="causal_as_mask",
)
add(
    "causal-bottom-right-113x203",
    "fewer queries than keys, bottom-right: the first query sees 91 keys",
    lambda: dense("causal-bottom-right-113x203", 2, 4, 4, 113, 203, 64, causal="bottom_right"),
    ("microsoft/onnxruntime#29020", "thu-ml/SageAttention#131"),
    checks="causal_as_mask",
)
add(
    "causal-bottom-right-203x113",
    "more queries than keys, bottom-right: the first 90 rows see nothing, give 0 and -inf",
    lambda: dense("causal-bottom-right-203x113", 1, 4, 2, 203, 113, 128, "bf16", causal="bottom_right"),
    ("flashinfer-ai/flashinfer#4452", "flashinfer-ai/flashinfer PR#4401"),
    checks="guard_bands same_repeat_kv",
)
add(
    "causal-one-query",
    "a single query, bottom-right causal: sees all 333 keys",
    lambda: dense("causal-one-query", 2, 4, 4, 1, 333, 64, causal="bottom_right"),
    ("microsoft/onnxruntime#29020",),
)
add(
    "window-32-64",
    "window (32,64), 129 queries over 40 keys: rows outside give 0 and -inf",
    lambda: dense("window-32-64", 1, 2, 2, 129, 40, 64, window=(32, 64)),
    ("Dao-AILab/flash-attention#2199",),
    expect="value_or_error",
    error="unsupported",
)

_MASK = {"expect": "value_or_error", "error": "unsupported"}
add(
    "mask-last-40-percent",
    "key mask [B,1,1,Lk] hides the last 40% of the keys",
    lambda: _key_mask("mask-last-40-percent", 2, 200, lambda r, n: np.arange(n) < 120),
    ("thu-ml/SageAttention#115", "huggingface/diffusers PR#12892", "huggingface/diffusers#8673"),
    **_MASK,
)
add(
    "mask-first-tile",
    "the first 128 keys are hidden: the first tiles have no maximum",
    lambda: _key_mask("mask-first-tile", 1, 441, lambda r, n: np.arange(n) >= 128),
    ("pytorch/pytorch#109517",),
    **_MASK,
)
add(
    "mask-left-padding-causal",
    "left-padded batch of 17, 64, 100 and 128 tokens, causal: padding rows see nothing",
    lambda: _left_padded("mask-left-padding-causal"),
    ("thu-ml/SageAttention#55", "Comfy-Org/ComfyUI PR#12454"),
    **_MASK,
)
add(
    "mask-empty-rows",
    "rows 4 to 9 and the last row hidden completely",
    lambda: _full_mask(
        "mask-empty-rows",
        2,
        90,
        lambda r, i, j: ~(((i >= 4) & (i < 10)) | (i == 89)) & (r.random((90, 90)) < 0.8),
    ),
    ("pytorch/pytorch#103963", "pytorch/pytorch#103749"),
    **_MASK,
)
add(
    "bias-hides-first-tile",
    "N(0,4) bias on the scores, -inf for the first 64 keys: added after the scale, and the first tile has no "
    "maximum",
    lambda: _bias("bias-hides-first-tile"),
    **_MASK,
)
add(
    "mask-nan-hidden",
    "keys hidden for every row hold NaN in K and V",
    lambda: _nan_under_mask("mask-nan-hidden"),
    ("pytorch/pytorch#101967",),
    expect="value_or_error",
    error="unsupported|invalid_argument",
)
