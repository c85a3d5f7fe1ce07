"""How large an error may be: limits by tolerance class and QK mode, and the error measures they apply to.

(rel, row, lse, lse_reach) for int8, int4 and fp8 scores:
  rel        largest over heads of |o-ref| / |ref| (Frobenius)
  row        largest over rows of |o-ref| / (|ref| + 0.02 rms(V) sqrt(D))
  lse        |lse-ref| <= lse + lse_reach * largest |score| of the row
They are 1.5 to 2 times what the numpy model of model.py reaches. Key blocks of 128, P scaled to 224 or 256,
row sums of quantized P, u8 P with s8 V and fp16 partial sums (P 224, V 4.5) stay inside as well.
"""

import math

import numpy as np

from .problem import Problem
from .reference import Reference

MODES = ("int8", "int4", "fp8")

_TABLE = """
normal          .07  .15  .06  .012  | .45  1.2  .9   .10   | .12  .28  .22  .03
flat            .06  .06  .001 0     | .06  .06  .001 0     | .06  .06  .001 0
mean            .006 .02  .04  .01   | .006 .02  .9   .10   | .006 .02  .22  .03
near_mean       .015 .06  .02  .01   | .02  .08  .2   .10   | .02  .08  .08  .03
k_mean          .07  .15  .04  .0004 | .45  1.2  .5   .004  | .12  .28  .12  .001
exact_scores    .10  .15  .10  0     | .10  .15  .10  0     | .10  .15  .10  0
near_zero       .25  .15  .02  .012  | 1.0  1.2  .2   .10   | .40  .28  .08  .03
cancel          9    .25  .05  .002  | 9    .25  .05  .01   | 9    .25  .05  .004
token_outlier   .25  .60  .12  .03   | 15   30   40   0     | 1.0  4.0  .6   .1
channel_outlier .60  1.8  .50  .10   | 1.5  2.0  2.5  .5    | .12  .28  .15  .03
peaky           .12  .35  .10  .012  | 1.5  5.0  8.0  .35   | .50  1.0  .60  .06
offset          .07  .15  .08  .0001 | .45  1.2  .9   .0003 | .12  .28  .22  .0002
one_hot         .40  1.9  0    .04   | 1.6  3.0  0    .5    | .80  1.9  0    .10
clamped         .40  1.0  .50  .05   | 1.6  3.0  3.0  .5    | .20  .40  .30  .04
"""


def _parse(table: str) -> dict[str, dict[str, tuple[float, ...]]]:
    limits = {}
    for line in table.strip().splitlines():
        name, *figures = line.replace("|", " ").split()
        x = [float(t) for t in figures]
        limits[name] = {mode: tuple(x[4 * i : 4 * i + 4]) for i, mode in enumerate(MODES)}
    return limits


TOLERANCES = _parse(_TABLE)


def head_errors(p: Problem, ref: Reference, o: np.ndarray) -> tuple[float, float]:
    """(rel, row) over heads whose reference is finite."""
    r, x = p.per_head(ref.o), p.per_head(np.asarray(o, dtype=np.float64))
    if r.size == 0:
        return 0.0, 0.0
    r, x = r.reshape(-1, *r.shape[-2:]), x.reshape(-1, *x.shape[-2:])
    rms = ref.v_rms.reshape(-1, ref.v_rms.shape[-1])
    ok = np.isfinite(r).all(axis=(1, 2))
    if not ok.any():
        return 0.0, 0.0
    r, x, rms = r[ok], x[ok], rms[ok]
    with np.errstate(invalid="ignore", over="ignore"):
        diff = np.sqrt(((x - r) ** 2).sum(axis=2))
        size = np.sqrt((r**2).sum(axis=2))
        floor = 0.02 * rms * math.sqrt(r.shape[-1])
        row = diff / np.maximum(size + floor, 1e-300)
        whole = np.sqrt((size**2).sum(axis=1)) + 1e-3 * floor.max(axis=1)
        rel = np.sqrt((diff**2).sum(axis=1)) / np.maximum(whole, 1e-300)
    return float(np.nan_to_num(rel, nan=np.inf).max()), float(np.nan_to_num(row, nan=np.inf).max())


def lse_excess(ref: Reference, lse: np.ndarray, absolute: float, reach: float) -> tuple[float, float]:
    """(largest error, largest excess over the limit) of the LSE over rows that see a key, or (0, -1)."""
    good = np.isfinite(ref.lse)
    if not good.any():
        return 0.0, -1.0
    with np.errstate(invalid="ignore"):
        error = np.abs(np.asarray(lse, np.float64)[good] - ref.lse[good])
        over = error - (absolute + reach * ref.reach[good])
    return float(np.nan_to_num(error, nan=np.inf).max()), float(np.nan_to_num(over, nan=np.inf).max())
