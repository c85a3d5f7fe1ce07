"""The command: lists the cases, or runs them and prints one line a failure and a table."""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

from . import themes
from .capi import Library
from .case import CASES, Case
from .device import NoDevice, device_of
from .matrix import KINDS, Cell, Outcome, Target, cells, run
from .on_gpu import run_big

_SKIPPED = 77  # exit code of a run on a GPU where there is none


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="attention_cases", description=__doc__)
    parser.add_argument("--library", metavar="LIB", help="liboctavo.so")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N, where the tensors are (default: cpu)")
    parser.add_argument(
        "--key-splits", type=int, help="the option of that name (default: 1 on a GPU, 0 on a CPU)"
    )
    parser.add_argument("--all", action="store_true", help="every recipe on every kernel that runs it")
    parser.add_argument("--recipes", default="", help="comma-separated; default: all")
    parser.add_argument("--kernels", default="", help="comma-separated parts of kernel names; default: all")
    parser.add_argument("--cases", default="", help="comma-separated ids; default: all")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    a = parser.parse_args()
    if not a.list and (not a.library or not Path(a.library).is_file()):
        parser.error(f"--library is {a.library!r}; it must be the file liboctavo.so")
    return a


def _choose(what: str, wanted: str, known: list[str]) -> list[str]:
    names = [x for x in wanted.split(",") if x]
    unknown = [x for x in names if x not in known]
    if unknown:
        sys.exit(
            f"attention_cases: error: {what} {', '.join(unknown)} not known; there are: {', '.join(known)}"
        )
    return names or known


def _shape(case: Case) -> str:
    if case.big:
        return f"big {_by(case.big['q']['shape'])} / {_by(case.big['k']['shape'])}, {case.big['gib']} GiB"
    p = case.build()
    causal = "" if p.causal == "none" else " " + p.causal
    return f"{p.layout} {_by(p.q.shape)} / {_by(p.k.shape)} {p.dtypes[0]}{causal}"


def _by(shape) -> str:
    return "x".join(map(str, shape))


def _list(cases: list[Case]) -> None:
    for c in cases:
        want = c.expect if c.expect == "value" else f"{c.expect}({c.error})"
        refs = f" [{', '.join(c.refs)}]" if c.refs else ""
        print(f"{c.id:34} {_shape(c):58} {want:36} tol={c.tol:10} {c.reason}{refs}")
    print(f"{len(cases)} cases, {sum(1 for c in cases if c.big)} of them big")


def _table(chosen: list[Cell], counts: dict[Cell, Counter]) -> None:
    width = max(len(c.recipe) for c in chosen)
    names = max(len(_kernel(c)) for c in chosen)
    print(f"\n{'recipe':{width}} {'kernel':{names}} mode  " + "".join(f"{k:>9}" for k in KINDS))
    for cell in chosen:
        figures = "".join(f"{counts[cell][k]:9}" for k in KINDS)
        print(f"{cell.recipe:{width}} {_kernel(cell):{names}} {cell.mode:5}{figures}")


def _kernel(cell: Cell) -> str:
    return cell.name if cell.kernel else f"{cell.name} (picked)"


def _report(outcomes: list[Outcome], already: set) -> None:
    """A line for each failure; listed and defined figures once a recipe, from its first kernel."""
    for outcome in outcomes:
        if outcome.kind == "failed":
            for line in outcome.lines:
                print(
                    f"FAILED {outcome.case} {outcome.cell.recipe} {_kernel(outcome.cell)}: {line}", flush=True
                )
        elif outcome.lines and (outcome.case, outcome.cell.recipe) not in already:
            already.add((outcome.case, outcome.cell.recipe))
            print(
                f"{outcome.kind} {outcome.case} {outcome.cell.recipe}: {'; '.join(outcome.lines)}", flush=True
            )


def main() -> int:
    a = _arguments()
    themes.load()
    known = {c.id: c for c in CASES}
    cases = [known[id] for id in _choose("case", a.cases, list(known))]
    if a.list:
        _list(cases)
        return 0
    on_gpu = a.device != "cpu"
    try:
        device_of(a.device)
    except (NoDevice, ValueError) as e:
        print(f"attention_cases: {e}", file=sys.stderr)
        return _SKIPPED if isinstance(e, NoDevice) else 2
    library = Library(a.library)
    target = Target(a.library, a.device, int(on_gpu) if a.key_splits is None else a.key_splits)
    recipes = _choose("recipe", a.recipes, library.presets())
    parts = [x for x in a.kernels.split(",") if x]
    found, left_out = cells(target, recipes, a.all)
    for line in left_out:
        print(f"left out {line}")
    chosen = [c for c in found if not parts or any(x in c.name for x in parts)]
    if not chosen:
        sys.exit(f"attention_cases: error: no kernel matches {a.kernels!r}; there are: {library.kernels()}")

    started, already, ran = time.monotonic(), set(), 0
    counts = {cell: Counter() for cell in chosen}
    small = [c for c in cases if not c.big]
    for outcomes in run(target, chosen, small, max(1, a.workers)):
        _report(outcomes, already)
        for outcome in outcomes:
            counts[outcome.cell][outcome.kind] += 1
    for case in (c for c in cases if c.big):
        try:
            if not on_gpu:
                raise RuntimeError(f"needs a GPU and {case.big['gib']} GiB")
            outcomes = run_big(target, chosen, case)
        except RuntimeError as e:
            print(f"skipped {case.id}: {e}")
            continue
        ran += 1
        _report(outcomes, already)
        for outcome in outcomes:
            counts[outcome.cell][outcome.kind] += 1
    _table(chosen, counts)
    bad = sum(count["failed"] for count in counts.values())
    print(
        f"\noctavo {library.version()} on {a.device}: {len(small) + ran} cases x {len(chosen)} columns in "
        f"{time.monotonic() - started:.0f} s, {bad} failed"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
