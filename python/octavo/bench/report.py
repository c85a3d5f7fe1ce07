"""What comes out: a table for people, JSON for machines."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import octavo

from .problems import Problem
from .timing import Clocks


def header(clocks: Clocks, seed: int, dtype: str) -> dict[str, Any]:
    import torch

    return {
        "gpu": clocks.gpu.name,
        "sms": clocks.gpu.multi_processor_count,
        "driver": clocks.driver(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "octavo": octavo.__version__,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python -m octavo.bench", *map(shlex.quote, sys.argv[1:])]),
        "clocks": clocks.describe(),
        "inputs": f"{dtype}, N(0, 1), seed {seed}",
        "left_out": [],
        "results": [],
    }


def commit() -> str:
    """Of Octavo's sources: OCTAVO_COMMIT says so for a package that was installed elsewhere."""
    if given := os.environ.get("OCTAVO_COMMIT"):
        return given
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        git = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return git.stdout.strip() or "unknown"


def write(report: dict[str, Any], path: str) -> None:
    """After every problem, and never half a file: what was measured survives what comes later."""
    temporary = Path(f"{path}.partial")
    temporary.write_text(json.dumps(report, indent=1) + "\n")
    temporary.replace(path)


def _best(results: list[dict[str, Any]], field: str) -> float | None:
    found = [r[field]["median"] for r in results if not r["contender"].startswith("octavo:") and r[field]]
    return min(found, default=None)


def table(problem: Problem, results: list[dict[str, Any]]) -> str:
    """One problem. Ratios are against the fastest peer of this run: kernels to kernels, and end to end to the
    peers that have an end to end."""
    rate = "TB/s" if problem.few_queries else "TFLOPS"
    lines = [
        f"\n{problem}",
        f"  {'contender':22}{'kernel ms':>11}{rate:>9}{'FLOP/clk/SM':>13}{'MHz':>7}{'vs peer':>9}"
        f"{'end to end':>12}{'vs peer':>9}{'call ms':>10}{'rel. L1':>9}",
    ]
    kernel, whole = _best(results, "ms"), _best(results, "end_to_end_ms")

    def ratio(best: float | None, mine: dict[str, float] | None, ours: bool) -> str:
        return f"{best / mine['median']:.2f}x" if best and mine and ours else ""

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    for r in sorted(results, key=lambda r: r["ms"]["median"]):
        ours = r["contender"].startswith("octavo:")
        speed = r["kv_tb_per_s"] if problem.few_queries else r["tflops"]
        end, call = r["end_to_end_ms"], r["call_ms"]
        lines.append(
            f"  {r['contender']:22}{r['ms']['median']:11.4f}{speed:9.{2 if problem.few_queries else 0}f}"
            f"{number(r['flop_per_clk_per_sm'], '.0f'):>13}{number(r['sm_clock_mhz'], '.0f'):>7}"
            f"{ratio(kernel, r['ms'], ours):>9}{number(end and end['median'], '.4f'):>12}"
            f"{ratio(whole, end, ours):>9}{number(call and call['median'], '.4f'):>10}"
            f"{number(r['relative_l1'], '.4f'):>9}"
        )
    return "\n".join(lines)
