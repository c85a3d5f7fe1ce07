"""Attention from Python: one call, what it costs in accuracy, and K and V kept quantized for several calls.

Run after `pip install .`:  python examples/attention.py
"""

import numpy as np

import octavo

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 8, 256, 64), np.float32)  # [batch, heads, tokens, head_dim]
k = rng.standard_normal((1, 2, 1024, 64), np.float32)  # fewer key heads: query heads share them
v = rng.standard_normal((1, 2, 1024, 64), np.float32)

# One call. "auto" picks a recipe for this machine; "bottom_right" is what a decoder with a cache wants.
o, lse = octavo.attention(q, k, v, causal="bottom_right", return_lse=True)
exact = octavo.attention(q, k, v, causal="bottom_right", recipe="exact")
print(f"octavo {octavo.__version__}, auto: relative L1 {octavo.compare(o, exact).relative_l1:.4f}")

# Other recipes, and one with a field changed.
for recipe in ("half", "sage2++-8+8", octavo.recipe("sage2++-8+8", smooth_k=False)):
    error = octavo.compare(octavo.attention(q, k, v, causal="bottom_right", recipe=recipe), exact)
    print(f"{recipe}: relative L1 {error.relative_l1:.4f}, cossim {error.cossim:.6f}")

# The call that code written for sageattn or torch makes.
same = octavo.sageattn(q, k, v, is_causal=False, smooth_k=True)

# K and V quantized once, for several calls: a cache, or the train rows of a tabular model.
kv = octavo.quantize_kv(k, v)
print(kv.reason, f"- {kv.nbytes} bytes instead of {k.nbytes + v.nbytes}")
parts = [kv.attend(q[:, :, rows]) for rows in (slice(0, 100), slice(100, 256))]
print("attended in two parts:", np.concatenate(parts, axis=2).shape)
