"""Cases for a large GPU: shapes and strides in elements, data from counter_uniform() of the flat element
index, so that any element can be recomputed anywhere. They take gigabytes and minutes, so a CPU run lists
them as skipped and a GPU fills them itself (on_gpu.py); big_rows() gives the expected rows."""

import math

import numpy as np

from ..case import Case, add
from ..formats import round_to


def counter_uniform(index, seed: int) -> np.ndarray:
    """Uniform in [-1,1) from a flat element index: 32-bit integer arithmetic modulo 2^32, the same in any
    language. The high half of the index enters too, so that a wrapped 32-bit offset reads different data."""
    i = np.asarray(index).astype(np.uint64)
    low, high = i & np.uint64(0xFFFFFFFF), i >> np.uint64(32)
    x = low * np.uint64(2654435761) + high * np.uint64(374761393) + np.uint64(seed * 40503)
    x &= np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(2246822519)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(13)
    return (x.astype(np.float64) / 2.0**31 - 1.0).astype(np.float32)


def big_rows(case: Case, b: int, h: int, rows) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """In fp64, for some query rows of one (batch, query head) of a big case: output, LSE, the largest |score|
    each row sees, and the rms of the head's values."""
    s = case.big

    def fetch(name, head, positions):
        t = s[name]
        at = {"b": b, "h": head}
        order = t["axes"]
        offset = t.get("offset", 0) + sum(
            at[a] * st for a, st in zip(order, t["strides"], strict=True) if a in at
        )
        n_stride, d_stride = t["strides"][order.index("n")], t["strides"][order.index("d")]
        idx = (
            offset
            + np.asarray(positions)[:, None] * n_stride
            + np.arange(t["shape"][order.index("d")])[None, :] * d_stride
        )
        x = counter_uniform(idx, t["seed"]) * np.float32(t.get("gain", 1.0)) + np.float32(t.get("mean", 0.0))
        return round_to(s["dtype"], x).astype(np.float64)

    def size(name, axis):
        return s[name]["shape"][s[name]["axes"].index(axis)]

    hq, hkv, n = size("q", "h"), size("k", "h"), size("k", "n")
    g = h // (hq // hkv)
    q, k, v = fetch("q", h, rows), fetch("k", g, np.arange(n)), fetch("v", g, np.arange(n))
    if "q_absmax" in s:
        q = np.clip(q, -s["q_absmax"], s["q_absmax"])
    scores = q @ k.T * s.get("sm_scale", 1.0 / math.sqrt(q.shape[1]))
    if s.get("causal", "none") != "none":
        shift = 0 if s["causal"] == "top_left" else n - size("q", "n")
        scores = np.where(np.arange(n)[None, :] <= np.asarray(rows)[:, None] + shift, scores, -np.inf)
    m = scores.max(axis=1, keepdims=True)
    e = np.exp(scores - m)
    total = e.sum(axis=1, keepdims=True)
    reach = np.abs(np.where(np.isfinite(scores), scores, 0.0)).max(axis=1)
    return e @ v / total, (m + np.log(total))[:, 0], reach, float(np.sqrt(np.mean(v**2)))


def tensor(axes, shape, seed, strides=None, **kw):
    """One input of a big case: axes names the order of the shape, strides and offset are in elements."""
    if strides is None:
        strides = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
    return dict(axes=axes, shape=list(shape), strides=list(strides), seed=seed, **kw)


def big(id, reason, refs, dtype, q, k, v, check, tol="normal", **kw):
    """check: [[batch, query head, [rows]], ...] are the rows to compare with big_rows()."""
    bytes_ = {}
    for t in (q, k, v):  # tensors of one packed buffer share the seed and are counted once
        span = (
            t.get("offset", 0) + 1 + sum((n - 1) * s for n, s in zip(t["shape"], t["strides"], strict=True))
        )
        bytes_[t["seed"]] = max(bytes_.get(t["seed"], 0), 2 * span)
    total = sum(bytes_.values()) + 2 * int(np.prod(q["shape"], dtype=np.int64))
    add(
        id,
        reason,
        None,
        refs,
        tol=tol,
        big=dict(dtype=dtype, q=q, k=k, v=v, check=check, gib=round(total / 2**30, 1), **kw),
    )


big(
    "big-batch-70000",
    "70000 entries of 12x12 tokens, 8 heads, head_dim 16 (rows of a table): batch beyond 65535 must not be "
    "lost in a grid limit",
    ("pytorch/pytorch#142228", "flashinfer-ai/flashinfer#3125", "Dao-AILab/flash-attention#1786"),
    "f16",
    *(tensor("bhnd", (70000, 8, 12, 16), s) for s in (1, 2, 3)),
    check=[[0, 0, [0, 11]], [65535, 7, [0]], [65536, 0, [5]], [69999, 7, [11]]],
)
big(
    "big-row-stride-int32",
    "packed [1,N,3,56,128] buffer with 111000 tokens: row times stride passes 2^31 at token 99864",
    ("thu-ml/SageAttention#386", "thu-ml/SageAttention PR#387"),
    "bf16",
    *(
        tensor("bnhd", (1, 111000, 56, 128), 7, (111000 * 21504, 21504, 128, 1), offset=i * 7168)
        for i in range(3)
    ),
    check=[[0, 0, [0, 99863, 99864, 110999]], [0, 55, [99865, 110998]]],
)
big(
    "big-v-offset-uint32",
    "packed buffer with 200064 tokens: the largest V offset passes 2^32",
    ("thu-ml/SageAttention#388", "kijai/ComfyUI-KJNodes PR#748"),
    "bf16",
    *(
        tensor("bnhd", (1, 200064, 56, 128), 7, (4302176256, 21504, 128, 1), offset=i * 7168)
        for i in range(3)
    ),
    check=[[0, 55, [0, 199728, 199729, 200063]], [0, 0, [100000]]],
)
big(
    "big-output-2g-elements",
    "output with more than 2^31 elements",
    ("vllm-project/vllm PR#47671", "turboderp-org/exllamav3 PR#263"),
    "bf16",
    tensor("bhnd", (8, 64, 33000, 128), 1),
    tensor("bhnd", (8, 8, 300, 128), 2),
    tensor("bhnd", (8, 8, 300, 128), 3),
    check=[[7, 63, [0, 32999]], [7, 0, [1]], [4, 31, [16500]]],
)
big(
    "big-kv-2g-elements",
    "K and V with more than 2^31 elements each in one batch entry",
    ("fla-org/flash-linear-attention#1080", "NVIDIA/TensorRT-LLM PR#1076"),
    "f16",
    tensor("bhnd", (1, 64, 64, 128), 1),
    tensor("bhnd", (1, 64, 270000, 128), 2),
    tensor("bhnd", (1, 64, 270000, 128), 3),
    check=[[0, 63, [0, 63]], [0, 60, [1]], [0, 0, [5]]],
)
big(
    "big-flat-131072",
    "131072 keys, near flat scores, V mean 1: the error must not grow with the length",
    ("vllm-project/vllm#23813", "Dao-AILab/flash-attention#2250"),
    "bf16",
    tensor("bhnd", (1, 8, 256, 128), 1, gain=0.3),
    tensor("bhnd", (1, 8, 131072, 128), 2, gain=0.5),
    tensor("bhnd", (1, 8, 131072, 128), 3, gain=0.5, mean=1.0),
    check=[[0, 0, [0, 255]], [0, 7, [128]]],
    tol="mean",
)
big(
    "big-heads-times-batch",
    "batch 2048 x 64 heads of 130 tokens, causal: heads times batch beyond 65535 in one grid axis",
    ("pytorch/pytorch#142228", "PriorLabs/TabPFN attention chunk 65536"),
    "f16",
    *(tensor("bhnd", (2048, 64, 130, 32), s) for s in (1, 2, 3)),
    check=[[0, 0, [129]], [1023, 63, [0]], [1024, 0, [64]], [2047, 63, [129]]],
    causal="top_left",
)
big(
    "big-decode-262144",
    "one query per entry over 262144 keys on one key head, bottom-right: split keys, same bits in each run "
    "and for each batch size",
    ("vllm-project/flash-attention PR#96", "Dao-AILab/flash-attention PR#2450", "sgl-project/sglang#10278"),
    "bf16",
    tensor("bhnd", (3, 8, 1, 128), 1),
    tensor("bhnd", (3, 1, 262144, 128), 2),
    tensor("bhnd", (3, 1, 262144, 128), 3),
    check=[[0, 0, [0]], [2, 7, [0]]],
    causal="bottom_right",
    extra_checks=["repeat", "same_batch_alone"],
    tol="near_zero",
)
big(
    "big-tabular-test-call",
    "1024 test queries, 8 heads on one key head, 500000 training rows, given query scale",
    ("PriorLabs/TabPFN#806", "PriorLabs/TabPFN PR#1165"),
    "f16",
    tensor("bhnd", (1, 8, 1024, 64), 1),
    tensor("bhnd", (1, 1, 500000, 64), 2),
    tensor("bhnd", (1, 1, 500000, 64), 3),
    check=[[0, 0, [0, 1023]], [0, 7, [511]]],
    q_absmax=1.0,
    extra_checks=["row_subsets", "repeat"],
    tol="near_zero",
)
