"""Recipes x kernels over all cases, in worker processes; each case is prepared once and run on every cell.

On a GPU the kernels are those that the library picks there. Every recipe is given key_splits: with 1, the
default, equal bits are asked for wherever they are on a CPU; with 0, where the kernel decides, not of calls
of other shapes."""

import faulthandler
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context

from . import themes
from .adapter import Adapter, Emulator, Inputs
from .capi import Library
from .case import CASES, Case
from .definition import entry_for
from .device import device_of
from .evaluate import Finding, Prepared, evaluate, failed
from .generate import dense
from .problem import CaseError
from .recipes import excuses, mode_of

EMULATE = "reference.emulate"
BEST = ""  # the kernel that the library picks

# refused: as the case names it. listed: the recipe lacks what the case needs. defined: see definition.py.
KINDS = ("passed", "refused", "listed", "defined", "failed")


@dataclass(frozen=True)
class Target:
    library: str  # path of liboctavo.so
    device: str = "cpu"
    key_splits: int = 0

    def without(self) -> frozenset[str]:
        """Checks that do not apply: the parts of the keys follow the call's shape."""
        names = ("same_batch_alone", "same_seq_alone", "same_repeat_kv", "row_subsets")
        return frozenset(() if self.device == "cpu" or self.key_splits == 1 else names)


@dataclass(frozen=True)
class Cell:
    """A column of the matrix: `name` is what the summary calls its kernel."""

    recipe: str
    kernel: str
    name: str
    mode: str


@dataclass
class Outcome:
    cell: Cell
    case: str
    kind: str  # one of KINDS
    lines: list[str]  # what to report, one a finding


def cells(target: Target, recipes: Iterable[str], everything: bool) -> tuple[list[Cell], list[str]]:
    """Every recipe on the kernel that is picked for it and on the emulator; INT8 recipes, the CPU's own, on
    each kernel that runs them, and with `everything` all recipes so. On a GPU: every recipe on the kernel
    that is picked. Then why recipes are left out."""
    library, found, left_out = _library(target.library), [], []
    for recipe in recipes:
        fields = library.recipe_fields(recipe)
        try:
            best, effective = _runs_on(target, recipe, None)
        except CaseError as e:
            left_out.append(f"{recipe}: {e.kind}: {e}")
            continue
        if recipe == "auto":  # its own fields are placeholders until a plan is made
            fields = effective
        mode = mode_of(fields)
        found.append(Cell(recipe, BEST, best, mode))
        if target.device != "cpu":
            continue
        if best != EMULATE and recipe != "auto":
            found.append(Cell(recipe, EMULATE, EMULATE, mode))
        if not everything and (fields["qk_format"] != "int8" or recipe == "auto"):
            continue
        for kernel in library.kernels():
            if kernel in (best, EMULATE):
                continue
            try:
                _runs_on(target, recipe, kernel)
            except CaseError:
                continue
            found.append(Cell(recipe, kernel, kernel, mode))
    return found, left_out


def _runs_on(target: Target, recipe: str, kernel: str | None) -> tuple[str, dict[str, str]]:
    """The kernel that runs a recipe on an ordinary problem, and the effective recipe."""
    library, p = _library(target.library), dense("probe", 1, 2, 2, 16, 16, 64)
    inputs = Inputs(p, device_of(target.device))
    options = library.options()
    options.kernel = kernel.encode() if kernel else None
    with library.recipe(recipe, {}) as handle:
        return library.plan(inputs.q, inputs.k, inputs.v, handle, options)


def run(target: Target, chosen: list[Cell], cases: list[Case], workers: int) -> Iterator[list[Outcome]]:
    """Yields the outcomes of one case after the other, as they come."""
    ids = sorted((c.id for c in cases), key=_weight, reverse=True)
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start)
    with pool:
        jobs = {pool.submit(run_case, target, chosen, id): id for id in ids}
        waiting = set(jobs.values())
        for job in as_completed(jobs):
            try:
                yield job.result()
            except Exception as e:
                pool.shutdown(cancel_futures=True)
                raise RuntimeError(f"a worker died ({e!r}); not done: {', '.join(sorted(waiting))}") from e
            waiting.remove(jobs[job])


def _start() -> None:
    faulthandler.enable()  # a stray access ends the worker; this shows where it was


def _weight(id: str) -> float:
    """Roughly the work of a case: long ones go first, so that the workers end together."""
    case = _case(id)
    p = case.build()
    return (
        float(p.q.size)
        * p.k.shape[p.token_axis()]
        * (1 + len(case.checks) + 20 * ("repeat:20" in case.checks))
    )


@cache
def _library(path: str) -> Library:
    return Library(path)


def _case(id: str) -> Case:
    themes.load()
    return next(c for c in CASES if c.id == id)


def run_case(target: Target, chosen: list[Cell], id: str) -> list[Outcome]:
    prepared = Prepared(_case(id))
    return [_run_cell(target, cell, prepared) for cell in chosen]


def _run_cell(target: Target, cell: Cell, prepared: Prepared) -> Outcome:
    case, fields = prepared.case, _callee(target, cell, True).effective(prepared.problem)
    mode = mode_of(fields)
    findings = _findings(target, cell, mode, prepared)
    bad = failed(findings)
    if not bad:
        refused = any(f.check == "error" for f in findings)
        return Outcome(cell, case.id, "refused" if refused else "passed", [])
    lines = [f"{f.check}: {f.detail}" for f in bad]
    lacking = [excuses(fields, case.needs, f.check) for f in bad]
    if all(lacking):
        lines = [f"needs {need}: {line}" for need, line in zip(lacking, lines, strict=True)]
        return Outcome(cell, case.id, "listed", lines)
    entry = entry_for(case, mode, fields)
    if entry:
        left = failed(_findings(target, cell, mode, prepared, entry.limits)) if entry.limits else bad
        explained = entry.also if entry.limits else (*entry.also, "value", "value:lse", "value:finite")
        within = all(f.check in explained for f in left)
    else:
        within = False
    if within:
        return Outcome(cell, case.id, "defined", [f"{entry.why} ({'; '.join(lines)})"])
    return Outcome(cell, case.id, "failed", lines)


def _callee(target: Target, cell: Cell, check_finite: bool) -> Adapter:
    library = _library(target.library)
    if cell.kernel == EMULATE:
        return Emulator(library, cell.recipe, check_finite)
    return Adapter(
        library,
        cell.recipe,
        cell.kernel or None,
        check_finite,
        device_of(target.device),
        target.key_splits,
    )


def _findings(target: Target, cell: Cell, mode: str, prepared: Prepared, limits=None) -> list[Finding]:
    findings = []
    # NaN in valid data is refused unless the caller says otherwise; a case that is about it is run both ways.
    for check_finite in (True, False) if "?nan_visible" in prepared.case.checks else (True,):
        callee = _callee(target, cell, check_finite)
        findings += evaluate(prepared, callee, mode, limits, target.without())
    return [f._replace(ok=False, detail="nobody looked") if f.ok is None else f for f in findings]
