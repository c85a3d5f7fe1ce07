"""A test that cannot fail is no test: the model must pass every case in every mode, and each of its faults
must be noticed by at least one case. python -m attention_cases.selfcheck"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from . import themes
from .case import CASES
from .evaluate import Prepared, evaluate, failed
from .faults import FAULTS
from .limits import MODES
from .model import Model
from .problem import CaseError


def _check_case(id: str) -> tuple[str, list[str], list[str]]:
    """What the honest model misses, and the faults that this case notices."""
    themes.load()
    prepared = Prepared(next(c for c in CASES if c.id == id))
    missed = []
    for mode in MODES:
        for f in failed(evaluate(prepared, Model(mode), mode)):
            missed.append(f"{id} {mode}: {f.check}: {f.detail}")
    mode = "fp8" if "q_absmax" in prepared.case.needs else "int8"
    noticed = []
    for fault in FAULTS if id != "many-small-batches" else ():  # slow in numpy, shows nothing of its own here
        try:
            seen = bool(failed(evaluate(prepared, Model(mode, frozenset([fault])), mode)))
        except (CaseError, ValueError, IndexError, ZeroDivisionError):  # the faulty model fell over: noticed
            seen = True
        noticed += [fault] if seen else []
    return id, missed, noticed


def main() -> int:
    parser = argparse.ArgumentParser(prog="attention_cases.selfcheck", description=__doc__)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    workers = max(1, parser.parse_args().workers)
    themes.load()
    started = time.monotonic()
    ids = [c.id for c in CASES if not c.big]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        results = list(pool.map(_check_case, ids))
    missed = [line for _, lines, _ in results for line in lines]
    for line in missed:
        print("MISSED", line)
    print(f"honest model: {len(ids)} cases x {len(MODES)} modes, {len(missed)} failed checks")
    unseen = 0
    for fault, text in FAULTS.items():
        by = [id for id, _, noticed in results if fault in noticed]
        unseen += not by
        print(
            f"  {'seen by' if by else 'NOT SEEN':8} {len(by):3}  {fault:24} {text}; e.g. {', '.join(by[:3])}"
        )
    print(f"faults: {len(FAULTS)}, unseen: {unseen}; {time.monotonic() - started:.0f} s")
    return 1 if missed or unseen else 0


if __name__ == "__main__":
    sys.exit(main())
