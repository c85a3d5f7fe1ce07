"""Packed sequences."""

from dataclasses import replace

import numpy as np

from ..case import add
from ..generate import packed


def _means_per_sequence(r, q, k, v, cu_q, cu_k):
    k = k.copy()
    for b, mean in enumerate((30.0, -30.0, 0.0)):
        k[cu_k[b] : cu_k[b + 1]] += np.float32(mean)
    return q, k, v


def _bad_offsets(cu_q):
    p = packed("bad-offsets", [40, 60], [40, 60], 2, 2, 64)
    cu_k = np.int32([0, 40, 100] if len(cu_q) == 3 else [0, 40, 70, 100])
    return replace(p, cu_q=np.int32(cu_q), cu_k=cu_k, max_q=100, max_k=100)


add(
    "varlen-zero-lengths",
    "query lengths 0, 302, 210, 0 over key lengths 634, 436, 210, 768",
    lambda: packed("varlen-zero-lengths", [0, 302, 210, 0], [634, 436, 210, 768], 4, 2, 64, "bf16"),
    ("Dao-AILab/flash-attention#2562",),
    checks="same_seq_alone",
)
add(
    "varlen-no-keys",
    "key length 0 and 1 next to long ones; queries without keys give 0 and -inf",
    lambda: packed("varlen-no-keys", [5, 0, 1023], [0, 1, 2045], 2, 2, 64),
    ("Dao-AILab/flash-attention#1254", "flashinfer-ai/flashinfer PR#3779"),
    checks="same_seq_alone guard_bands",
)
add(
    "varlen-one-query-each",
    "at most one query per sequence, some none, grouped heads, fewer tokens than sequences",
    lambda: packed(
        "varlen-one-query-each",
        [0, 1, 0, 1, 0],
        [0, 3, 0, 5, 2],
        9,
        3,
        64,
        "bf16",
        causal="bottom_right",
        sm_scale=1.0,
    ),
    ("Dao-AILab/flash-attention#1537", "Dao-AILab/flash-attention#1619"),
    tol="peaky",
)
add(
    "varlen-causal-longer-keys",
    "bottom-right causal with more keys than queries per sequence and the reverse",
    lambda: packed(
        "varlen-causal-longer-keys", [3, 65, 40], [7, 130, 33], 4, 4, 64, "bf16", causal="bottom_right"
    ),
    ("Dao-AILab/flash-attention#1214", "flashinfer-ai/flashinfer PR#4018", "huggingface/candle#3603"),
    checks="same_seq_alone repeat:3",
)
add(
    "varlen-own-mean",
    "sequences with key means +30, -30 and 0: mean and scales belong to the sequence",
    lambda: packed(
        "varlen-own-mean", [64, 64, 64], [190, 65, 128], 2, 2, 64, "bf16", shape=_means_per_sequence
    ),
    ("thu-ml/SageAttention sageattn_varlen",),
    tol="k_mean",
    needs="smooth_k",
    checks="same_seq_alone",
)
for _id, _cq, _why in (
    ("varlen-cu-falling", [0, 70, 60, 100], "offsets fall"),
    ("varlen-cu-end", [0, 40, 90], "the last offset is not the token count"),
):
    add(
        _id,
        _why,
        lambda c=_cq: _bad_offsets(c),
        ("sgl-project/sgl-flash-attn PR#47", "Dao-AILab/flash-attention#1661"),
        expect="error",
        error="invalid_argument",
        checks="untouched_on_error",
    )
