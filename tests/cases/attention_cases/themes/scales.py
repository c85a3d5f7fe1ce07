"""sm_scale, LSE and merging."""

from ..case import add
from ..generate import dense, only, set_channels, with_kv_lens

add(
    "scale-0-with-padding",
    "sm_scale 0 with padding keys: mean over the valid keys only, LSE ln(n)",
    lambda: with_kv_lens(
        dense("scale-0-with-padding", 3, 2, 2, 20, 150, 64, sm_scale=0.0, shape=only(v=lambda r, x: x + 1)),
        [150, 97, 1],
        0.0,
        50.0,
    ),
    ("hao-ai-lab/FastVideo PR#1455",),
    tol="flat",
)
add(
    "scale-negative",
    "negative sm_scale with padding keys: the order of the keys turns round, masked keys stay out",
    lambda: with_kv_lens(
        dense("scale-negative", 2, 2, 2, 50, 150, 64, "bf16", sm_scale=-0.2), [150, 77], 0.0, 50.0
    ),
    tol="peaky",
)
add(
    "scale-1",
    "sm_scale 1 with head_dim 64: peaked rows",
    lambda: dense("scale-1", 1, 2, 2, 100, 300, 64, sm_scale=1.0),
    ("hao-ai-lab/FastVideo PR#1455",),
    tol="peaky",
    checks="pow2_qk",
)
add(
    "lse-300",
    "scores near +300: the LSE is near 300 and finite",
    lambda: dense(
        "lse-300",
        1,
        2,
        2,
        40,
        200,
        64,
        "bf16",
        shape=lambda r, q, k, v: (set_channels(q, {0: 8.0}), set_channels(k, {0: 300.0}), v),
    ),
    tol="offset",
    needs="smooth_k",
)
add(
    "merge-4-chunks",
    "keys with mean 5 cut into chunks: merging by LSE equals the whole",
    lambda: dense("merge-4-chunks", 2, 4, 2, 64, 512, 64, "bf16", shape=only(k=lambda r, x: x + 5)),
    ("ROCm/aiter PR#3334", "feifeibear/long-context-attention PR#127", "sgl-project/sglang PR#35045"),
    checks="merge:128,128,128,128 merge:500,12",
    tol="k_mean",
    needs="smooth_k",
)
add(
    "merge-with-empty-chunk",
    "chunks of 0 keys among others: an empty state is neutral in the merge",
    lambda: dense("merge-with-empty-chunk", 1, 4, 4, 33, 200, 128, layout="NHD"),
    ("flashinfer-ai/flashinfer#4051",),
    checks="merge:0,70,0,130 merge:1,199",
)
