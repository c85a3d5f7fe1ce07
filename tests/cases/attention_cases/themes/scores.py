"""Q and K patterns."""

import math

import numpy as np

from ..case import add
from ..generate import constant, dense, only, scaled_channels, set_channels, with_kv_lens


def _rows(x, row, gain):
    x = x.copy()
    x[:, :, row] *= np.float32(gain)
    return x


def _no_overlap(q, k, row):
    """Removes from every query its part along one key, so that a longer key there changes no score."""
    d = k[:, :, row : row + 1]
    d = d / np.linalg.norm(d, axis=-1, keepdims=True)
    return q - (q * d).sum(-1, keepdims=True) * d


def _ramp(r, q, k, v, height):
    """Adds a score that runs from 0 to height over the keys (channel 0 carries it, near sqrt(D))."""
    n, d = k.shape[2], k.shape[3]
    q, k = q.copy(), k.copy()
    q[..., 0] = np.float32(math.sqrt(d))
    k[..., 0] = np.linspace(0, height, n, dtype=np.float32)
    return q, k, v


def _one_hot_scores(q, k, v, height):
    """Query i is proportional to key i, so that score (i,i) is about height."""
    d = q.shape[-1]
    unit = k / np.linalg.norm(k, axis=-1, keepdims=True)
    gain = np.float32(math.sqrt(height * math.sqrt(d)))
    return unit[:, :, : q.shape[2]] * gain, unit * gain, v


def _two_clusters(q, k, v, raw, n):
    """Of n keys the first half holds -raw/8 in channel 0, the second +raw/8, 0 elsewhere; queries hold 8
    there: scores exact in any format."""
    k = np.zeros_like(k)
    k[:, :, : n // 2, 0], k[:, :, n // 2 : n, 0] = -raw / 8, raw / 8
    return set_channels(q, {0: 8.0}), k, v


add(
    "k-mean-100",
    "keys with mean +-100 per channel and spread 1",
    lambda: dense(
        "k-mean-100",
        1,
        2,
        2,
        100,
        500,
        64,
        "f16",
        shape=only(k=lambda r, x: x + 100 * np.sign(r.standard_normal((1, 2, 1, 64))).astype(np.float32)),
    ),
    ("comfyanonymous/ComfyUI#9184", "comfyanonymous/ComfyUI PR#16035"),
    tol="k_mean",
    needs="smooth_k",
)
add(
    "k-shift-invariance",
    "adding one vector to all keys changes nothing but the LSE",
    lambda: dense("k-shift-invariance", 1, 4, 2, 90, 210, 64, "bf16"),
    ("ROCm/aiter PR#3334",),
    checks="k_shift:4",
    needs="smooth_k",
)
add(
    "k-channel-outliers",
    "three zero-mean key channels 50 times larger (queries small there): smoothing cannot remove them",
    lambda: dense(
        "k-channel-outliers",
        1,
        2,
        2,
        128,
        512,
        64,
        "bf16",
        shape=lambda r, q, k, v: (
            scaled_channels([2, 9, 40], 0.05)(r, q),
            scaled_channels([2, 9, 40], 50)(r, k),
            v,
        ),
    ),
    ("Comfy-Org/docs PR#1698",),
    tol="channel_outlier",
    needs="k_scale_per_block",
)
add(
    "k-outlier-token",
    "one key token 60 times larger that no query points at: only its own scale block may suffer",
    lambda: dense(
        "k-outlier-token",
        1,
        2,
        2,
        128,
        512,
        64,
        shape=lambda r, q, k, v: (_no_overlap(q, k, 200), _rows(k, 200, 60.0), v),
    ),
    tol="token_outlier",
    needs="k_scale_per_block",
)
add(
    "increasing-maximum",
    "scores rise along the keys, so the running maximum moves in every tile",
    lambda: dense(
        "increasing-maximum", 1, 2, 2, 64, 1024, 64, "bf16", shape=lambda r, q, k, v: _ramp(r, q, k, v, 12.0)
    ),
    ("Dao-AILab/flash-attention#2577", "Dao-AILab/flash-attention#2694"),
    tol="peaky",
    checks="key_order",
)
add(
    "one-huge-score",
    "each query has one key with score near 200, all other scores near 0",
    lambda: dense(
        "one-huge-score",
        1,
        2,
        2,
        96,
        96,
        64,
        "bf16",
        shape=lambda r, q, k, v: _one_hot_scores(q, k, v, 200.0),
    ),
    tol="one_hot",
)
add(
    "all-scores-below-5e4",
    "first half of the keys scores -57600 (raw), second half +57600; causal rows of the first half see only "
    "the former, also after mean removal",
    lambda: dense(
        "all-scores-below-5e4",
        1,
        4,
        4,
        100,
        100,
        128,
        "bf16",
        causal="top_left",
        shape=lambda r, q, k, v: _two_clusters(q, k, v, 57600.0, 100),
    ),
    ("flashinfer-ai/flashinfer#4267", "flashinfer-ai/flashinfer#4451"),
    tol="offset",
)
add(
    "below-sentinel-with-padding",
    "visible scores of early rows are -20000 while hidden keys and padding exist: a finite mask constant "
    "would win",
    lambda: with_kv_lens(
        dense(
            "below-sentinel-with-padding",
            2,
            2,
            2,
            80,
            100,
            64,
            "bf16",
            causal="top_left",
            shape=lambda r, q, k, v: _two_clusters(q, k, v, 160000.0, 80),
        ),
        [80, 80],
        0.0,
        100.0,
    ),
    ("ohdearquant/lattice#361",),
    tol="offset",
)
add(
    "q-zero",
    "all queries 0: output is the mean of V, LSE ln(n)",
    lambda: dense("q-zero", 1, 4, 2, 40, 333, 64, shape=only(q=constant(0))),
    ("huggingface/kernels-community#681", "pytorch/ao#4713"),
    tol="flat",
)
add(
    "k-identical-rows",
    "all keys the same non-zero vector: 0 after mean removal, LSE = score + ln(n)",
    lambda: dense(
        "k-identical-rows",
        1,
        2,
        2,
        40,
        190,
        64,
        shape=only(k=lambda r, x: np.broadcast_to(x[:, :, :1], x.shape).copy()),
    ),
    ("thu-ml/SageAttention#164",),
    tol="flat",
    needs="smooth_k",
)
add(
    "qkv-1e-8",
    "q, k and v of size 1e-8 (bf16): flat scores, nothing lost to a floor in a scale",
    lambda: dense(
        "qkv-1e-8", 1, 2, 2, 40, 256, 64, "bf16", shape=lambda r, q, k, v: (q * 1e-8, k * 1e-8, v * 1e-8)
    ),
    tol="flat",
    checks="pow2_v",
)
add(
    "q-1e-8-k-1e8",
    "q of size 1e-8 against k of size 1e8 (bf16): ordinary scores",
    lambda: dense(
        "q-1e-8-k-1e8", 1, 2, 2, 80, 256, 64, "bf16", shape=lambda r, q, k, v: (q * 1e-8, k * 1e8, v)
    ),
    checks="pow2_qk",
)
add(
    "qk-1e5",
    "q and k of size 1e5 with sm_scale 1.25e-11: products beyond f16, scores ordinary",
    lambda: dense(
        "qk-1e5",
        1,
        4,
        2,
        80,
        256,
        64,
        "bf16",
        shape=lambda r, q, k, v: (q * 1e5, k * 1e5, v),
        sm_scale=1.25e-11,
    ),
)
add(
    "q-1e4-peaked",
    "queries of size 1e4 (length-scaled tabular attention) with small keys: q.k beyond the f16 range",
    lambda: dense(
        "q-1e4-peaked", 1, 8, 1, 60, 400, 64, "f16", shape=lambda r, q, k, v: (q * 1e4, k * 2e-4, v)
    ),
    ("PriorLabs/TabPFN PR#1275",),
    tol="peaky",
)
