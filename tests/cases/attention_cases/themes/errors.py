"""Calls that must be refused."""

from dataclasses import replace

import numpy as np

from ..case import add
from ..generate import dense


def _short_v(name):
    p = dense(name, 1, 2, 2, 16, 50, 64)
    return replace(p, v=np.ascontiguousarray(p.v[:, :, :49]))


add(
    "types-differ",
    "q and k bf16, v f16",
    lambda: replace(dense("types-differ", 1, 2, 2, 16, 16, 64), dtypes=("bf16", "bf16", "f16")),
    ("kijai/ComfyUI-WanVideoWrapper#415", "thu-ml/SageAttention#85"),
    expect="error",
    error="invalid_argument|unsupported",
    checks="untouched_on_error",
)
add(
    "kv-shapes-differ",
    "V one token shorter than K",
    lambda: _short_v("kv-shapes-differ"),
    ("facebookresearch/xformers#1122",),
    expect="error",
    error="invalid_argument",
)
add(
    "kv-lens-out-of-range",
    "a valid length larger than the buffer",
    lambda: replace(dense("kv-lens-out-of-range", 2, 2, 2, 16, 50, 64), kv_lens=np.int32([50, 51])),
    expect="error",
    error="invalid_argument",
    checks="untouched_on_error",
)
add(
    "unknown-accumulator",
    "accumulator name that does not exist: no silent return of unwritten memory",
    lambda: replace(dense("unknown-accumulator", 1, 2, 2, 16, 16, 64), options={"accumulator": "fp33"}),
    ("thu-ml/SageAttention pv_accum_dtype",),
    expect="error",
    error="invalid_argument|unsupported",
)
add(
    "unknown-keyword",
    "misspelt keyword (sm_scal): refused, not swallowed",
    lambda: replace(dense("unknown-keyword", 1, 2, 2, 16, 16, 64), options={"sm_scal": 0.5}),
    ("thu-ml/SageAttention#115", "hao-ai-lab/FastVideo PR#1455"),
    expect="error",
    error="invalid_argument|unsupported",
)
