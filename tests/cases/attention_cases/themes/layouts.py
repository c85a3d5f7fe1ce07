"""Strides, offsets, layouts, grouped heads."""

import numpy as np

from ..case import add
from ..formats import round_to
from ..generate import dense, one_buffer, only, padded_rows, seeded
from ..problem import with_views


def _mixed_kv(name):
    b, h, lq, n, d = 2, 3, 70, 150, 64
    p = dense(name, b, h, h, lq, n, d, "bf16")
    bases = {
        "k_base": np.ascontiguousarray(p.k.transpose(0, 2, 1, 3)).ravel(),
        "v_base": np.ascontiguousarray(p.v.transpose(1, 0, 2, 3)).ravel(),
    }
    return with_views(
        p,
        bases,
        {
            "k": ("k_base", p.k.shape, (n * h * d, d, h * d, 1), 0),
            "v": ("v_base", p.v.shape, (n * d, b * n * d, d, 1), 0),
        },
    )


def _first_head_view(name):
    b, n, m, d = 2, 260, 37, 64
    p = dense(name, b, 8, 1, m, n, d, "f16", "NHD")
    r = seeded(name + "/others")
    bases, views = {}, {}
    for x in "kv":
        full = round_to("f16", r.standard_normal((b, n, 8, d)) * 20)
        full[:, :, :1] = getattr(p, x)
        bases[x + "_base"] = full.ravel()
        views[x] = (x + "_base", (b, n, 1, d), (n * 8 * d, 8 * d, d, 1), 0)
    return with_views(p, bases, views)


def _broadcast_heads(name, n):
    p = dense(
        name,
        1,
        8,
        8,
        64,
        n,
        128,
        "bf16",
        shape=lambda r, q, k, v: (q, np.repeat(k[:, :1], 8, 1), np.repeat(v[:, :1], 8, 1)),
    )
    bases = {"k_base": p.k[:, 0].ravel().copy(), "v_base": p.v[:, 0].ravel().copy()}
    return with_views(p, bases, {x: (x + "_base", p.k.shape, (n * 128, 0, 128, 1), 0) for x in "kv"})


def _broadcast_batch(name):
    p = dense(
        name,
        5,
        2,
        2,
        40,
        111,
        64,
        shape=lambda r, q, k, v: (q, np.repeat(k[:1], 5, 0), np.repeat(v[:1], 5, 0)),
    )
    bases = {"k_base": p.k[0].ravel().copy(), "v_base": p.v[0].ravel().copy()}
    return with_views(p, bases, {x: (x + "_base", p.k.shape, (0, 111 * 64, 64, 1), 0) for x in "kv"})


def _every_second_channel(name):
    p = dense(name, 1, 2, 2, 30, 60, 64)
    bases, views = {}, {}
    for x in "qkv":
        t = getattr(p, x)
        full = np.full((*t.shape[:3], 128), np.nan, np.float32)
        full[..., ::2] = t
        bases[x + "_base"] = full.ravel()
        views[x] = (x + "_base", t.shape, (2 * t.shape[2] * 128, t.shape[2] * 128, 128, 2), 0)
    return with_views(p, bases, views)


add(
    "packed-qkv-n3hd",
    "q, k, v as slices of one [B,N,3,H,D] buffer",
    lambda: one_buffer(dense("packed-qkv-n3hd", 2, 4, 4, 150, 150, 64, "bf16", "NHD")),
    ("thu-ml/SageAttention#386", "Dao-AILab/flash-attention#2665"),
    checks="same_contiguous inputs_unmodified",
)
add(
    "packed-qkv-hnd-view",
    "HND call on the same kind of buffer: head stride below token stride",
    lambda: one_buffer(dense("packed-qkv-hnd-view", 2, 4, 4, 150, 150, 128)),
    ("torch-spyre/torch-spyre#4331", "pytorch/pytorch#181133"),
    checks="same_contiguous",
)
add(
    "kv-strides-differ",
    "K from a token-major buffer, V from a head-major one, Q contiguous",
    lambda: _mixed_kv("kv-strides-differ"),
    ("NVIDIA/TransformerEngine#1195", "FlagOpen/FlagAttention#45"),
    checks="same_contiguous",
)
add(
    "storage-offset-8",
    "row pitch 72 and start offset 8 elements: still 16-byte aligned",
    lambda: padded_rows(dense("storage-offset-8", 1, 2, 2, 67, 131, 64), 72, 8),
    ("huggingface/diffusers#13506",),
    checks="same_contiguous guard_bands",
)
add(
    "storage-offset-1",
    "start offset 1 element (2-byte aligned): right result or a refusal, no misaligned access",
    lambda: padded_rows(dense("storage-offset-1", 1, 2, 2, 67, 131, 64), 72, 1),
    ("facebookresearch/xformers#813",),
    expect="value_or_error",
    error="invalid_argument|unsupported",
    checks="same_contiguous",
)

add(
    "kv-broadcast-heads",
    "K and V with head stride 0: one head seen as eight",
    lambda: _broadcast_heads("kv-broadcast-heads", 190),
    checks="same_contiguous",
)
add(
    "kv-broadcast-batch",
    "K and V with batch stride 0: one entry seen as five",
    lambda: _broadcast_batch("kv-broadcast-batch"),
    checks="same_contiguous same_batch_alone",
)
add(
    "channel-stride-2",
    "every second channel of a wider buffer, NaN between them",
    lambda: _every_second_channel("channel-stride-2"),
    expect="value_or_error",
    error="invalid_argument|unsupported",
    checks="same_contiguous guard_bands",
)
add(
    "gqa-8-2-lse",
    "8 query heads on 2 key heads, 100 queries, 300 keys, own mean vector per key head: head mapping and "
    "LSE correction",
    lambda: dense(
        "gqa-8-2-lse",
        2,
        8,
        2,
        100,
        300,
        64,
        shape=only(k=lambda r, x: x + 5 * r.standard_normal((2, 2, 1, 64), np.float32)),
    ),
    ("thu-ml/SageAttention PR#306", "thu-ml/SageAttention PR#252", "Dao-AILab/flash-attention#648"),
    checks="same_repeat_kv same_layout",
    tol="k_mean",
    needs="smooth_k",
)
add(
    "mqa-head-view",
    "8 query heads on head 0 of an 8-head K/V buffer whose other heads are 20 times larger: the test call "
    "of a tabular model",
    lambda: _first_head_view("mqa-head-view"),
    ("PriorLabs/TabPFN PR#1165",),
    checks="same_contiguous same_repeat_kv",
)
add(
    "gqa-6-4",
    "6 query heads on 4 key heads: no whole ratio",
    lambda: dense("gqa-6-4", 1, 6, 4, 16, 16, 64),
    expect="error",
    error="invalid_argument",
    checks="untouched_on_error",
)
