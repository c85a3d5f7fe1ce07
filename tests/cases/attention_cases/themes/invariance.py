"""Same bits, given query scales, NaN and Inf in valid data."""

from dataclasses import replace

import numpy as np

from ..case import add
from ..formats import round_to
from ..generate import dense


def _given_scale(name, beyond):
    p = dense(name, 1, 8, 1, 130, 600, 64, "f16")
    q_absmax = np.full(8, 4.0, np.float32) * np.linspace(0.9, 1.1, 8, dtype=np.float32)
    q = np.clip(p.q, -q_absmax[None, :, None, None], q_absmax[None, :, None, None])
    if beyond > 1:
        q[:, :, 3::40] *= np.float32(beyond)
    return replace(p, q=round_to("f16", q), q_absmax=q_absmax)


def _poison(name):
    p = dense(name, 2, 4, 4, 40, 150, 64, "bf16")
    p.k[0, 1, 20, 5] = np.nan
    p.v[1, 2, 20, 5] = np.inf
    return p


add(
    "repeat-20",
    "twenty runs and three thread counts, equal bits",
    lambda: dense("repeat-20", 2, 4, 2, 300, 700, 64, "bf16", causal="bottom_right"),
    ("ggml-org/llama.cpp PR#13438", "ggml-org/llama.cpp PR#28358", "tenstorrent/tt-metal#50512"),
    checks="repeat:20 threads inputs_unmodified guard_bands same_batch_alone",
)
add(
    "given-query-scale",
    "fp8 with a given query scale: every part of the queries gives the same bits",
    lambda: _given_scale("given-query-scale", 1.0),
    ("PriorLabs/TabPFN#125", "PriorLabs/TabPFN#800"),
    expect="value_or_error",
    error="unsupported",
    checks="row_subsets",
    needs="q_absmax",
)
add(
    "given-query-scale-clamped",
    "some queries up to 50 times beyond the given scale are clamped and leave other rows alone",
    lambda: _given_scale("given-query-scale-clamped", 50.0),
    ("PriorLabs/TabPFN#1033",),
    expect="value_or_error",
    error="unsupported",
    checks="row_subsets",
    needs="q_absmax",
    tol="clamped",
)
add(
    "nan-and-inf-in-valid-data",
    "NaN in a valid key of head 1, entry 0 and Inf in a valid V of head 2, entry 1: all other heads exact",
    lambda: _poison("nan-and-inf-in-valid-data"),
    ("PriorLabs/TabPFN#335",),
    expect="value_or_error",
    error="invalid_argument",
    checks="?nan_visible",
)
