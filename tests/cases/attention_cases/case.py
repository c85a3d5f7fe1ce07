"""What a case is, the list of all cases, and what its checks mean."""

from collections.abc import Callable
from dataclasses import dataclass

from .problem import Problem

CHECKS = {
    "all_written": "an output prefilled with NaN, and once with 1e30, has no trace of it left; reported by "
    "the callee",
    "inputs_unmodified": "q, k, v bytes equal before and after; reported by the callee",
    "guard_bands": "bytes before and behind the output and LSE buffers unchanged; reported by the callee",
    "zero_rows": "rows without a visible key: output exactly 0, LSE -inf (always checked)",
    "zero_channels": "channels whose V is 0 for every key give exactly 0",
    "channels": "every channel meets twice the class limit on its own",
    "same_contiguous": "bitwise the same result for contiguous copies of the views",
    "same_repeat_kv": "bitwise the same result when each key head is repeated for its query heads",
    "same_layout": "bitwise the same result in the other layout",
    "same_batch_alone": "each batch entry alone gives the same bits as inside the batch",
    "same_seq_alone": "each packed sequence alone gives the same bits as packed",
    "same_padding": "bitwise the same result for padding filled with 0, 1e4 and NaN",
    "repeat": "twenty runs, same bits",
    "threads": "1, 2 and 3 CPU threads, same bits; reported by the callee",
    "merge": "K/V cut in chunks, partial results merged by LSE, class limit against the whole",
    "pow2_v": "V*8 gives O*8 bitwise",
    "pow2_qk": "Q*4 with sm_scale/4 gives the same bits",
    "key_order": "keys in reverse order: class limit still met",
    "k_shift": "adding one vector to every key leaves O within the class limit and moves the LSE by "
    "sm_scale*q.c",
    "row_subsets": "query rows in parts of 1, 7 and 64 give the same bits as all at once (needs a given "
    "query scale)",
    "nan_visible": "a head with NaN/Inf in its valid data does not come back finite",
    "contiguous_output": "a contiguous output holds what a strided one gets, gaps of that untouched; "
    "reported by the callee",
    "causal_as_mask": "the same visibility given as bool mask meets the class limit (value_or_error)",
    "untouched_on_error": "a refused call leaves the output buffer untouched; reported by the callee",
}

# What a case may need of a recipe to make sense. One without it (recipes.py decides) may miss the
# limit, and is then listed with its figures.
NEEDS = ("smooth_k", "v_scale_per_channel", "k_scale_per_block", "q_absmax")


@dataclass
class Case:
    """expect: value = must be computed; error = must be refused with a kind in `error` ('|' between them);
    value_or_error = either, but never a wrong number. Checks with a '?' are reported, not enforced."""

    id: str
    reason: str
    build: Callable[[], Problem] | None
    refs: tuple[str, ...] = ()
    expect: str = "value"
    error: str = ""
    tol: str = "normal"
    checks: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    big: dict | None = None  # not run on a CPU: the shapes and rows of big.py


CASES: list[Case] = []


def add(id: str, reason: str, build: Callable[[], Problem] | None, refs=(), **kw) -> None:
    """Registers one case; checks, needs and refs may be given as one string."""
    assert all(c.id != id for c in CASES), id
    refs = (refs,) if isinstance(refs, str) else tuple(refs)
    for key in ("checks", "needs"):
        if isinstance(kw.get(key), str):
            kw[key] = tuple(kw[key].split())
    for check in kw.get("checks", ()):
        assert check.lstrip("?").split(":")[0] in CHECKS, check
    for need in kw.get("needs", ()):
        assert need in NEEDS, need
    CASES.append(Case(id, " ".join(reason.split()), build, refs, **kw))
