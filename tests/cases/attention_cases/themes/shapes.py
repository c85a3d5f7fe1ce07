"""Short and ragged keys, empty inputs, head dimensions."""

import numpy as np

from ..case import add
from ..generate import dense, only, poisoned_tail, with_kv_lens

for _n, _d, _t in ((1, 64, "f16"), (65, 64, "bf16"), (97, 128, "f16"), (1001, 64, "bf16")):
    add(
        f"ragged-kv-{_n}",
        f"{_n} keys, no multiple of a key tile; K/V are slices of longer buffers that go on with NaN and Inf",
        lambda n=_n, d=_d, t=_t: poisoned_tail(dense(f"ragged-kv-{n}", 2, 4, 2, 70, n, d, t)),
        ("thu-ml/SageAttention PR#376", "thu-ml/SageAttention#19", "NVIDIA/cudnn-frontend#1156"),
        checks="same_contiguous guard_bands",
    )
add(
    "kv-lens-mixed",
    "padded batch with 0, 1, 17, 64, 100 and 128 valid keys, NaN/Inf behind them; the entry without keys "
    "gives 0 / -inf",
    lambda: with_kv_lens(
        dense("kv-lens-mixed", 6, 4, 4, 33, 128, 64), [0, 1, 17, 64, 100, 128], np.nan, np.inf
    ),
    ("thu-ml/SageAttention#55", "NVIDIA/cudnn-frontend#943", "vllm-project/vllm PR#53628"),
    checks="same_batch_alone same_padding",
)
add(
    "kv-lens-nhd-gqa",
    "the same with NHD layout, grouped heads, bf16 and key mean 6; padding must not enter key mean or scales",
    lambda: with_kv_lens(
        dense("kv-lens-nhd-gqa", 5, 6, 2, 40, 200, 128, "bf16", "NHD", shape=only(k=lambda r, x: x + 6)),
        [200, 129, 65, 3, 199],
        1e30,
        -1e30,
    ),
    ("thu-ml/SageAttention#115",),
    checks="same_batch_alone same_padding same_layout",
    tol="k_mean",
    needs="smooth_k",
)
add(
    "kv-lens-causal-bottom-right",
    "bottom-right causal with per-entry lengths: the diagonal ends at the entry's own last key; short "
    "entries have empty rows",
    lambda: with_kv_lens(
        dense("kv-lens-causal-bottom-right", 4, 2, 2, 48, 160, 64, causal="bottom_right"), [160, 48, 100, 20]
    ),
    ("NVIDIA/cudnn-frontend PR#683",),
    checks="same_batch_alone causal_as_mask",
)
add(
    "kv-0-everything",
    "no keys at all: output 0, LSE -inf, no launch fault and no hang",
    lambda: dense("kv-0-everything", 2, 4, 2, 37, 0, 64),
    ("Dao-AILab/flash-attention#1343", "flashinfer-ai/flashinfer#4484"),
    checks="guard_bands",
)
add(
    "q-0-everything",
    "no queries: empty output of the right shape, no launch fault",
    lambda: dense("q-0-everything", 2, 4, 2, 0, 50, 64),
    ("HRM-Text#9",),
    checks="guard_bands",
)
add(
    "decode-one-query",
    "one query over 4097 keys, 8 query heads on 1 key head",
    lambda: dense("decode-one-query", 2, 8, 1, 1, 4097, 128, "bf16", "NHD"),
    ("vllm-project/flash-attention PR#91",),
    checks="same_batch_alone same_repeat_kv",
)
add(
    "many-small-batches",
    "4096 entries of 5x5 tokens, head_dim 16: the row stage of a tabular model",
    lambda: dense("many-small-batches", 4096, 2, 2, 5, 5, 16),
    ("pytorch/pytorch#142228",),
    checks="same_batch_alone",
)

for _d in (16, 32, 96):
    add(
        f"head-dim-{_d}",
        f"head_dim {_d}: scale from {_d}, not from a padded size; output contiguous",
        lambda d=_d: dense(f"head-dim-{d}", 1, 3, 3, 100, 130, d),
        ("thu-ml/SageAttention#13",),
        checks="contiguous_output same_layout",
    )
for _d in (8, 40):
    add(
        f"head-dim-{_d}",
        f"head_dim {_d}: computed with the scale of {_d}, or refused by name; never a wrong result",
        lambda d=_d: dense(f"head-dim-{d}", 1, 2, 2, 100, 130, d, "bf16"),
        ("thu-ml/SageAttention#13", "flashinfer-ai/flashinfer#4299", "Dao-AILab/flash-attention#1070"),
        expect="value_or_error",
        error="unsupported",
        checks="contiguous_output",
    )
add(
    "head-dim-65",
    "head_dim no multiple of 8",
    lambda: dense("head-dim-65", 1, 2, 2, 20, 33, 65),
    expect="value_or_error",
    error="unsupported|invalid_argument",
)
add(
    "head-dim-256",
    "head_dim 256: computed, or refused before any launch",
    lambda: dense("head-dim-256", 1, 2, 1, 65, 97, 256, "bf16"),
    ("thu-ml/SageAttention#17", "Dao-AILab/flash-attention#1214"),
    expect="value_or_error",
    error="unsupported",
    checks="untouched_on_error",
)
add(
    "head-dim-512",
    "head_dim 512 (an image decoder under a global patch): computed or refused, not a crash",
    lambda: dense("head-dim-512", 1, 1, 1, 33, 40, 512),
    ("kijai/ComfyUI-KJNodes#269",),
    expect="value_or_error",
    error="unsupported",
    checks="untouched_on_error",
)
