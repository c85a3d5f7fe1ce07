"""What a recipe has of a case's `needs`, and which mode's limits it is held to: read from its fields."""

import re

Fields = dict[str, str]

_GROUPED = ("per_block", "per_warp", "per_thread", "per_token")
_ACCURACY = ("value", "value:lse", "channels", "merge", "merge:lse", "k_shift", "k_shift:lse", "key_order")


def mode_of(fields: Fields) -> str:
    """The limits follow the scores' format. 16-bit scores get INT8's: the tightest there are."""
    return {"int4": "int4", "e4m3": "fp8"}.get(fields["qk_format"], "int8")


def excuses(fields: Fields, needs: tuple[str, ...], check: str) -> str | None:
    """The need that a recipe lacks and that explains why it fails a check: the failure is then listed. A lack
    may explain an error beyond a limit, never NaN, a stray write, or bits that change."""
    name = re.sub(r"\[.*\]", "", check)  # merge[4]:lse is merge:lse
    return next((need for need in needs if name in _explained(fields, need)), None)


def _explained(fields: Fields, need: str) -> tuple[str, ...]:
    """The checks that a recipe may fail for lack of a need. Formats without scales lack none."""
    if need == "smooth_k":
        return () if fields["smooth_k"] == "true" else _ACCURACY
    if need == "v_scale_per_channel":
        return () if fields["v_scale"] in ("per_channel", "none") else _ACCURACY
    if need == "k_scale_per_block":
        return () if fields["k_group"] in (*_GROUPED, "none") else _ACCURACY
    if need == "q_absmax":
        if fields["q_group"] == "none":  # no query scale that could be given
            return ("error",)
        if fields["smooth_q"] == "true":  # the mean of a call's rows: parts of them cannot give the same bits
            return ("row_subsets",)
        if fields["rotate"] != "none":
            # A row clamped to +-q_absmax in all channels has that rms after rotation too, normally
            # distributed: a third of its values lie beyond q_absmax and saturate.
            return _ACCURACY
    return ()
