"""Attention in float64, written as the definition, and the inputs that the tests share."""

import numpy as np

try:
    import ml_dtypes

    BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:  # bfloat16 arrays are tested where the package is
    BFLOAT16 = None

# Relative L1 on N(0,1) inputs. exact: rounding of a float32 output. cpu8 and sage2++ measure 0.015 and 0.035
# with 64 channels; the rest is room for the short rows here, whose error does not average out.
TOLERANCE = {"exact": 1e-6, "cpu8": 0.025, "sage": 0.045}
# What storing o in its dtype adds at most, relative: half a unit in the last place (2^-9 for bfloat16's 8
# bits, doubled because its inputs are as coarse).
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def random(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def qkv(batch=2, q_heads=4, kv_heads=2, q_len=37, kv_len=70, dim=40, dtype=np.float32, seed=0):
    """In layout hnd."""
    q = random((batch, q_heads, q_len, dim), seed, dtype)
    k = random((batch, kv_heads, kv_len, dim), seed + 1, dtype)
    v = random((batch, kv_heads, kv_len, dim), seed + 2, dtype)
    return q, k, v


def visible(q_len, kv_len, valid, causal="none", window=(-1, -1)):
    """bool [q_len, kv_len] of one batch entry with `valid` keys."""
    i = np.arange(q_len)[:, None] + (0 if causal == "top_left" else valid - q_len)
    j = np.arange(kv_len)[None, :]
    seen = np.broadcast_to(j < valid, (q_len, kv_len)).copy()
    if causal != "none":
        seen &= j <= i
    if window[0] >= 0:
        seen &= j >= i - window[0]
    if window[1] >= 0:
        seen &= j <= i + window[1]
    return seen


def attention(q, k, v, *, causal="none", window=(-1, -1), scale=None, kv_lengths=None, mask=None, bias=None):
    """(o, lse) in float64, layout hnd."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    batch, heads, q_len, dim = q.shape
    kv_len = k.shape[2]
    k = np.repeat(k, heads // k.shape[1], axis=1)
    v = np.repeat(v, heads // v.shape[1], axis=1)
    scores = q @ k.swapaxes(2, 3) * (dim**-0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + np.asarray(bias).astype(np.float64)
    lengths = [kv_len] * batch if kv_lengths is None else kv_lengths
    seen = np.stack([visible(q_len, kv_len, n, causal, window) for n in lengths])[:, None]
    if mask is not None:
        seen = seen & mask
    scores = np.where(seen, scores, -np.inf)
    most = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(most), most, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    o = weights @ np.where(seen.any(axis=-2)[..., None], v, 0.0) / np.where(total > 0, total, 1.0)
    with np.errstate(divide="ignore"):
        lse = np.where(np.isfinite(most), most, 0.0) + np.log(total)
    return o, lse[..., 0]


def lse_tolerance(recipe, dim, scale=None):
    """Largest error of an LSE.

    int8 steps of amax / 127, about 0.03 for N(0,1), err by 0.009 (their width over sqrt(12)), so a logit of
    dim products errs by 0.009 * sqrt(2 * dim) * scale; four times that is allowed.
    """
    scale = dim**-0.5 if scale is None else abs(scale)
    return 1e-5 if recipe == "exact" else 4 * 0.009 * (2 * dim) ** 0.5 * scale


def relative_l1(got, want):
    got = np.asarray(got).astype(np.float64)
    assert got.shape == want.shape
    return np.abs(got - want).sum() / np.abs(want).sum()
