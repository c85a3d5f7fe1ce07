"""V patterns."""

import numpy as np

from ..case import add
from ..generate import constant, dense, only, set_channels


def _flat_mean_one(r, q, k, v):
    return q * np.float32(0.3), k * np.float32(0.5), np.float32(1) + v * np.float32(0.3)


add(
    "v-zero-channel",
    "one channel 0 for every key, one channel constant 1e-3",
    lambda: dense(
        "v-zero-channel", 1, 2, 2, 64, 512, 64, shape=only(v=lambda r, x: set_channels(x, {3: 0.0, 7: 1e-3}))
    ),
    ("thu-ml/SageAttention#164", "ROCm/aiter#4289"),
    checks="zero_channels channels",
    needs="v_scale_per_channel",
)
add(
    "v-all-zero",
    "V all zero",
    lambda: dense("v-all-zero", 1, 2, 1, 40, 100, 128, "bf16", shape=only(v=constant(0))),
    ("pytorch/ao PR#4762", "ROCm/aiter#4288"),
    checks="zero_channels",
)
add(
    "v-channel-spread",
    "channel sizes from 1e-5 to 1e4: each channel accurate by itself",
    lambda: dense(
        "v-channel-spread",
        1,
        2,
        2,
        64,
        300,
        64,
        "bf16",
        shape=only(v=lambda r, x: x * np.logspace(-5, 4, 64, dtype=np.float32)),
    ),
    checks="channels",
    needs="v_scale_per_channel",
)
add(
    "v-head-spread",
    "heads 1, 1000, 0.01 and 30: no V scale shared between heads",
    lambda: dense(
        "v-head-spread",
        1,
        4,
        4,
        64,
        300,
        64,
        shape=only(v=lambda r, x: x * np.float32([1, 1000, 1e-2, 30]).reshape(1, 4, 1, 1)),
    ),
    ("Dao-AILab/flash-attention#1365", "vllm-project/vllm#51363"),
)
add(
    "v-large-one-sign",
    "V between 200 and 3000, one sign, 4096 keys: 16-bit partial sums overflow",
    lambda: dense(
        "v-large-one-sign",
        1,
        2,
        2,
        32,
        4096,
        64,
        shape=only(v=lambda r, x: r.uniform(200, 3000, x.shape).astype(np.float32), q=lambda r, x: x * 0.1),
    ),
    ("thu-ml/SageAttention#93", "ggml-org/llama.cpp PR#13975"),
    tol="mean",
)
add(
    "v-1e5-bf16",
    "bf16 V of size 1e5: overflows when cast to f16",
    lambda: dense("v-1e5-bf16", 1, 2, 2, 50, 200, 128, "bf16", shape=only(v=lambda r, x: x * 1e5)),
    ("comfyanonymous/ComfyUI#9184",),
    checks="pow2_v",
)
add(
    "v-mean-1-flat",
    "near flat scores, V mean 1, 32768 keys: accumulator drift shows as a shifted mean",
    lambda: dense("v-mean-1-flat", 1, 2, 1, 16, 32768, 64, "bf16", shape=_flat_mean_one),
    ("vllm-project/vllm#23813", "Dao-AILab/flash-attention#2250"),
    tol="mean",
)
add(
    "v-equals-one",
    "V all 1: the output is 1 whatever the scores are",
    lambda: dense(
        "v-equals-one", 1, 2, 2, 100, 777, 64, "bf16", shape=only(v=constant(1), q=lambda r, x: x * 2)
    ),
    tol="mean",
)
