"""Where a recipe's definition, not a kernel, misses a limit that the case's `needs` does not excuse.

Every entry holds for recipes with certain fields and sets the limit that follows from the arithmetic (or says
that the result is not finite), so that a kernel which is worse than its recipe still fails. The summary
counts them apart. The class limits themselves stay as they are."""

from collections.abc import Callable
from dataclasses import dataclass

from .case import Case
from .limits import TOLERANCES

Fields = dict[str, str]


@dataclass(frozen=True)
class Entry:
    why: str
    holds: Callable[[Fields], bool]
    limits: tuple[float, float, float, float] | None  # (rel, row, lse, lse_reach); None: not finite
    also: tuple[str, ...] = ()  # other checks that fail for the same reason


def _is_rotated(format: str) -> Callable[[Fields], bool]:
    return lambda fields: fields["rotate"] == "hadamard" and fields["qk_format"] == format


def _is_f16(fields: Fields) -> bool:
    return fields["qk_format"] == "f16"


def _has_f16_values(fields: Fields) -> bool:
    return fields["v_format"] == "f16"


def _lags(fields: Fields) -> bool:
    return fields["exp2"] == "direct" and float(fields["slack"]) > 0


def _is_direct_in_f16(fields: Fields) -> bool:
    return fields["qk_accumulator"] == "f16" and fields["exp2"] == "direct"


# These scores live in channel 0 alone (k = kmax there, q = 8), where any format is exact: 8 kmax / sqrt(D).
# Hadamard spreads k over all D channels as kmax / sqrt(D), and mixes q with its other channels, N(0,1), which
# are rounded: an error e (rms) in each channel of q becomes kmax e / sqrt(D) in the score, e / 8 of its size.
# INT8: amax is near 4, the step 4 / 127, e = step / sqrt(12) = 0.0091, so 0.00114 of the score; 5 sigma are
# 0.0057.
_ROTATED_INT8 = Entry(
    "rotation brings channel 0 into all channels, so its exact scores get INT8's rounding of the others",
    _is_rotated("int8"),
    (0.07, 0.15, 0.08, 0.0057),
)
# e4m3: steps of 2^-3 of the power of two below, e = 0.0265 of q's rms of 1.2, so 0.0041 of the score; 5 sigma
# are 0.02.
_ROTATED_E4M3 = Entry(
    "rotation brings channel 0 into all channels, so its exact scores get e4m3's rounding of the others",
    _is_rotated("e4m3"),
    (0.12, 0.28, 0.22, 0.02),
)
# Slope and constant of code = f16(8 a) S + f16(b) are each rounded to 2^-11 of the logit: 2^-10 together. All
# keys of a row share it, so O does not change and the LSE does.
_DIRECT_ROUNDS = Entry(
    "direct in f16 rounds slope and constant to 2^-11 of the logit",
    _is_direct_in_f16,
    (0.07, 0.15, 0.08, 2.0**-10),
)
# The constant is 8 (log2 P_r - m), and f16 ends at 65504: m may reach 8188 octaves. Here m is 20000 log2(e) =
# 28854, the constant is -inf, and a logit of about the same size gives NaN.
_DIRECT_OVERFLOWS = Entry(
    "direct in f16 holds logits up to 8188 octaves (5675), here they are 20000", _is_direct_in_f16, None
)
_OPERANDS_OVERFLOW = Entry("bf16 values beyond 65504 are infinite as f16 operands", _is_f16, None)
_VALUES_OVERFLOW = Entry(
    "bf16 values beyond 65504 are infinite as f16 values", _has_f16_values, None, ("pow2_v",)
)
# f16 has steps of 6e-8: values of rms 1e-8 become 0, a few 6e-8, so O's error has O's own size.
_VALUES_UNDERFLOW = Entry(
    "values of 1e-8 are below half of f16's smallest step", _has_f16_values, (1.2, 1.2, 0.001, 0), ("pow2_v",)
)
# e4m3 errs by 0.0265 (rms) of each value's own size, so unrotated outlier channels, where q is small, do not
# matter. Rotated, K has rms 10.9 in all channels and q 0.98: an error of 0.0265 * 0.98 * 10.9 * sqrt(64) / 8
# = 0.28 in the scores from each side, 0.4 together, and of sqrt(e^0.16 - 1) = 0.42 in the weights. Three
# outliers give a rotated key eight values only, whose errors do not average out: 0.56 to 0.63 in simulations
# of other sign vectors. Twice 0.42, and 1.5 times INT8's limits in the others.
_ROTATED_OUTLIERS = Entry(
    "rotation spreads outlier channels over all, which costs e4m3 its relative precision",
    _is_rotated("e4m3"),
    (0.84, 2.7, 0.75, 0.15),
)

# A maximum that lags in whole octaves leaves a row's largest weight anywhere between two octaves, where
# `direct` errs by -8.0% to +6.4% (rms 3.2%); a running maximum makes it 2^8 exactly, and the others err as
# e4m3 does (5.9%, rms 2.7%). So in a row that one key rules the LSE moves by up to -ln(0.920) = 0.0834, after
# an f16 accumulator by 0.0081 more (the constant, 128 to 256, is rounded to 2^-4 codes of 1/8 octave, the
# code to 2^-5), which comes on top of the class's other errors. O feels it where few keys share a row: over
# 8192 heads of 5 rows and 5 keys, N(0,1), Q and K exact, the largest relative error is 0.063 (row: 0.122)
# where exact weights on e4m3's grid give 0.045 (0.075), 1.4 (1.6) times as much.
_LAG_LSE, _LAG_REL, _LAG_ROW = 0.0834 + 0.0081, 1.4, 1.6
_FEW_KEYS = ("normal", "k_mean")  # classes of cases with rows of a few keys


def _lagging(tol: str, mode: str) -> Entry:
    rel, row, lse, reach = TOLERANCES[tol][mode]
    return Entry(
        "with a lagging maximum the largest weight is rounded too, which rows of few keys show",
        _lags,
        (_LAG_REL * rel, _LAG_ROW * row, lse + _LAG_LSE, reach),
    )


_ENTRIES = {
    "all-scores-below-5e4": (_ROTATED_INT8, _ROTATED_E4M3, _DIRECT_ROUNDS),
    "below-sentinel-with-padding": (_ROTATED_INT8, _DIRECT_OVERFLOWS),
    "k-channel-outliers": (_ROTATED_OUTLIERS,),
    "q-1e-8-k-1e8": (_OPERANDS_OVERFLOW,),
    "qk-1e5": (_OPERANDS_OVERFLOW,),
    "v-1e5-bf16": (_VALUES_OVERFLOW,),
    "qkv-1e-8": (_VALUES_UNDERFLOW,),
}


def entry_for(case: Case, mode: str, fields: Fields) -> Entry | None:
    own = next((e for e in _ENTRIES.get(case.id, ()) if e.holds(fields)), None)
    if own is None and case.tol in _FEW_KEYS and _lags(fields):
        return _lagging(case.tol, mode)
    return own
