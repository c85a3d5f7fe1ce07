"""`python -m octavo.bench`: see the package's docstring for what is measured."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

from . import __doc__ as DESCRIPTION
from .problems import SETS, Problem, chosen

RECIPES = ["auto", "turbo", "turbo8", "turbo16", "sage2++-8+8", "sage2-8+8", "half"]
QUICK_RECIPES = ["auto", "turbo", "turbo8", "turbo16", "sage2-8+8", "half"]
QUICK_PEERS = ["torch:flash", "torch:cudnn", "fa3:f16", "fa3:fp8", "cudnn:fp8", "sageattention"]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m octavo.bench",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="the key figures, within a minute or so")
    parser.add_argument("--shapes", nargs="+", help=f"sets: {', '.join(SETS)}, all (default: key)")
    parser.add_argument(
        "--recipes",
        nargs="*",
        metavar="RECIPE",
        help=f"default: {' '.join(RECIPES)}; with --quick: {' '.join(QUICK_RECIPES)}",
    )
    parser.add_argument(
        "--contenders",
        nargs="*",
        metavar="PEER",
        help=f"peers to time, or none; default: all; with --quick: {' '.join(QUICK_PEERS)}",
    )
    parser.add_argument("--repeat", type=int, default=20, help="turns, of which the median counts")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="problems that would pass it are left out"
    )
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], default="float16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="where the results go, with the commit of the sources: OCTAVO_COMMIT, or what git says",
    )
    parsed = parser.parse_args(arguments)
    if parsed.quick and parsed.seconds == math.inf:
        parsed.seconds = 60.0
    try:
        parsed.problems = chosen(parsed.shapes or ["key"])
    except ValueError as error:
        parser.error(str(error))
    if parsed.repeat < 1:
        parser.error(f"--repeat is {parsed.repeat}; it must be 1 or more")
    return parsed


def names_of(parsed: argparse.Namespace) -> list[str]:
    from .. import recipes as recipe_table
    from .peers import PEERS

    recipes = parsed.recipes
    if recipes is None:
        recipes = QUICK_RECIPES if parsed.quick else RECIPES
    peers = parsed.contenders
    if peers is None:
        peers = QUICK_PEERS if parsed.quick else list(PEERS)
    unknown = [name for name in peers if name not in PEERS]
    if unknown:
        raise SystemExit(f"no peer is called {unknown[0]!r}; there are {', '.join(PEERS)}")
    known = list(recipe_table())
    unknown = [name for name in recipes if name not in known]
    if unknown:
        raise SystemExit(f"no recipe is called {unknown[0]!r}; there are {', '.join(known)}")
    return [*(f"octavo:{recipe}" for recipe in recipes), *peers]


class Runner:
    """One problem after another, each with all contenders in turns."""

    def __init__(self, parsed: argparse.Namespace) -> None:
        import torch

        from . import report
        from .timing import Clocks

        self.parsed = parsed
        self.clocks = Clocks()
        self.report = report.header(self.clocks, parsed.seed, parsed.dtype)
        self.dtype = getattr(torch, parsed.dtype)
        self.reasons: set[tuple[str, str]] = set()
        self.begin = time.perf_counter()

    def leave_out(self, name: str, problem: Problem, reason: object) -> None:
        text = " ".join(str(reason).split())
        self.report["left_out"].append({"problem": problem.as_dict(), "contender": name, "reason": text})
        if (name, text) not in self.reasons:
            self.reasons.add((name, text))
            print(f"{name} is left out ({problem}): {text[:400]}", file=sys.stderr)

    def inputs(self, problem: Problem, seed: int) -> list[Any]:
        import torch

        random = torch.Generator("cuda").manual_seed(seed)
        shapes = [(problem.q_heads, problem.q_len), *[(problem.kv_heads, problem.kv_len)] * 2]
        return [
            torch.randn(problem.batch, h, n, problem.head_dim, device="cuda", generator=random).to(self.dtype)
            for h, n in shapes
        ]

    def prepare(self, name: str, problem: Problem, inputs: list[Any], fresh: list[Any], exact: tuple) -> Any:
        """(contender, its batches, its error), or None."""
        import torch

        from .contenders import LeftOut, relative_l1
        from .peers import make
        from .timing import Batch

        try:
            contender = make(name, problem)
            contender.load(*inputs)
            batches = {"kernel": Batch(contender.kernel)}
            if contender.whole is not None:
                same = contender.whole.__func__ is contender.kernel.__func__
                batches["whole"] = batches["kernel"] if same else Batch(contender.whole)
                batches["call"] = Batch(contender.whole, graph=False)
            for kind, batch in batches.items():
                if batch.why_not_captured:
                    print(f"{name}, {kind}: not in a graph: {batch.why_not_captured}", file=sys.stderr)
            contender.load(*fresh)
            if hasattr(contender, "out"):
                contender.out.fill_(float("nan"))
            shape = (problem.batch, problem.q_heads, problem.q_len, problem.head_dim)
            waste = torch.full(shape, float("nan"), device="cuda", dtype=self.dtype)
            del waste  # what a peer allocates for its output starts as NaN too
            error = relative_l1(contender.output(contender.kernel()), exact)
            return contender, batches, error
        except LeftOut as refusal:
            self.leave_out(name, problem, refusal)
        except Exception as failure:
            torch.cuda.synchronize()  # raises if the GPU is beyond use: then this run is over
            self.leave_out(name, problem, f"{type(failure).__name__}: {failure}")
        return None

    def run(self, problem: Problem) -> list[dict[str, Any]]:
        import torch

        from .contenders import exact_rows
        from .timing import Times

        inputs, fresh = (self.inputs(problem, self.parsed.seed + offset) for offset in (0, 1000))
        exact = exact_rows(*fresh, problem.causal, self.parsed.seed)
        ready = [
            found
            for name in names_of(self.parsed)
            if (found := self.prepare(name, problem, inputs, fresh, exact)) is not None
        ]
        del inputs, fresh
        calls = max(self.parsed.repeat // 4, 1)
        need = sum(
            batch.estimate * (calls if kind == "call" else self.parsed.repeat)
            for _, batches, _ in ready
            for kind, batch in batches.items()
        )
        if time.perf_counter() - self.begin + need / 1e3 > self.parsed.seconds:
            print(f"{problem} is left out: {need / 1e3:.0f} s more would pass --seconds", file=sys.stderr)
            return []
        times = [{kind: Times() for kind in ("kernel", "whole", "call")} for _ in ready]
        clocks: list[list[tuple]] = [[] for _ in ready]
        for turn in range(self.parsed.repeat):
            for i, (_, batches, _) in enumerate(ready):
                readings: list[Any] = []
                ms = batches["kernel"].run(lambda: readings.append(self.clocks.read()))  # noqa: B023
                times[i]["kernel"].ms.append(ms)
                clocks[i].append((self.clocks.spin(), *(readings[0] or (None, None))))
                if "whole" in batches:
                    again = batches["whole"] is not batches["kernel"]
                    times[i]["whole"].ms.append(batches["whole"].run() if again else ms)
                    if turn < calls:
                        times[i]["call"].ms.append(batches["call"].run())
        torch.cuda.synchronize()
        return [
            self.result(problem, *ready[i], times[i], [list(x) for x in zip(*clocks[i], strict=True)])
            for i in range(len(ready))
        ]

    def result(
        self, problem: Problem, contender: Any, batches: dict, error: float, times: dict, clocks: list[list]
    ) -> dict[str, Any]:
        def median(values: list[Any]) -> float | None:
            known = sorted(x for x in values if x is not None)
            return known[len(known) // 2] if known else None

        spin, nvml, power = (median(values) for values in clocks)
        seconds = times["kernel"].median / 1e3
        cycles = spin and seconds * spin * 1e6 * self.clocks.gpu.multi_processor_count
        return {
            "problem": problem.as_dict(),
            "contender": contender.name,
            "ms": times["kernel"].as_dict(),
            "tflops": problem.flop / seconds / 1e12,
            "flop_per_clk_per_sm": cycles and problem.flop / cycles,
            "kv_tb_per_s": problem.kv_elements * contender.kv_bytes_per_element / seconds / 1e12,
            "end_to_end_ms": times["whole"].as_dict(),
            "call_ms": times["call"].as_dict(),
            "relative_l1": error if math.isfinite(error) else None,
            "sm_clock_mhz": spin,
            "nvml_sm_clock_mhz": nvml,
            "power_w": power,
            "launches": batches["kernel"].launches,
            "in_graph": not batches["kernel"].why_not_captured,
            "note": contender.note,
        }


def main() -> int:
    parsed = parse()
    try:
        import torch
    except ImportError as missing:
        print(f"octavo.bench needs torch: {missing}", file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("octavo.bench needs a CUDA device; `octavo bench` times the CPU", file=sys.stderr)
        return 3
    from . import report

    names_of(parsed)  # refuses unknown ones before any work
    if parsed.json and not Path(parsed.json).resolve().parent.is_dir():
        raise SystemExit(f"--json {parsed.json}: the folder does not exist")
    runner = Runner(parsed)
    print(f"{runner.report['gpu']}, driver {runner.report['driver']}, Octavo {runner.report['commit']}")
    with torch.inference_mode():
        for problem in parsed.problems:
            results = runner.run(problem)
            torch.cuda.empty_cache()
            if not results:
                continue
            runner.report["results"] += results
            print(report.table(problem, results), flush=True)
            if parsed.json:
                report.write(runner.report, parsed.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
