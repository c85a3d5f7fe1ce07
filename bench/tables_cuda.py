#!/usr/bin/env python3
"""Writes the GPU tables of README.md and docs/kernels/sm90.md from a report of `python -m octavo.bench`.

    python bench/tables_cuda.py bench/results/h200.json [--check]

Each table lies between two comments, <!-- NAME-begin --> and <!-- NAME-end -->. --check writes nothing and
fails if a table is not what the file gives.
"""

import argparse
import json
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
EIGHT_BIT = {"fa3:fp8": "FA3", "cudnn:fp8": "cuDNN"}
SIXTEEN_BIT = {"fa3:f16": "FA3", "torch:cudnn": "cuDNN", "torch:flash": "flash"}
OURS = ["turbo", "turbo16", "turbo8", "sage2-8+8", "half"]
KERNELS = [f"octavo:{r}" for r in OURS] + ["fa3:fp8", "cudnn:fp8", "fa3:f16", "torch:cudnn", "torch:flash"]
HEADINGS = [f"`{r}`" for r in OURS] + ["FA3 FP8", "cuDNN FP8", "FA3 f16", "cuDNN f16", "torch flash"]
K = 1024

# (head_dim, batch, q_heads, kv_heads, q_len, kv_len, causal)
README_ROWS = [
    *[(64, 1, 8, 8, n * K, n * K, False) for n in (1, 4, 8, 16, 64)],
    (64, 1, 8, 8, 64 * K, 64 * K, True),
    *[(128, 2, 16, 16, n * K, n * K, False) for n in (1, 4, 8, 16, 64)],
    (128, 2, 16, 16, 16 * K, 16 * K, True),
    (128, 1, 40, 40, 32760, 257, False),
    (128, 1, 32, 8, 1, 64 * K, False),
]
KERNEL_ROWS = [
    *[(64, 1, 8, 8, n * K, n * K, False) for n in (1, 4, 8, 16, 64)],
    *[(64, 1, 8, 8, n * K, n * K, True) for n in (16, 64)],
    *[(d, 2, 16, 16, n * K, n * K, c) for d in (64, 128) for c in (False, True) for n in (1, 4, 8, 16, 64)],
    *[(d, 1, h, h, 32760, 257, False) for d, h in ((64, 8), (128, 40))],
    *[(128, b, 32, 8, 1, 64 * K, False) for b in (1, 8)],
]


def label(key):
    dim, batch, q_heads, kv_heads, q_len, kv_len, causal = key
    heads = f"H{q_heads}" + (f"/{kv_heads}" if kv_heads != q_heads else "")
    if q_len == 1:
        size = f"1 query, {kv_len:,} keys"
    else:
        size = f"N {q_len:,}" if q_len == kv_len else f"{q_len:,} x {kv_len}"
    return f"d{dim} B{batch} {heads}, {size}" + (", causal" if causal else "")


def found(report):
    names = ("head_dim", "batch", "q_heads", "kv_heads", "q_len", "kv_len", "causal")
    table = {}
    for r in report["results"]:
        table.setdefault(tuple(r["problem"][n] for n in names), {})[r["contender"]] = r
    return table


def duration(ms):
    return f"{ms * 1000:.0f} us" if ms < 0.1 else f"{ms:.2f} ms"


def fastest(results, peers):
    return min((c for c in peers if c in results), key=lambda c: results[c]["ms"]["median"], default=None)


def readme(report, table):
    lines = [
        f"{report['gpu']}, N(0, 1) in f16, {report['date']}, median, peers in the same run: how many times as"
        " fast as the fastest 8-bit peer (FlashAttention-3 FP8, cuDNN FP8; kernel alone, quantization"
        " excluded on both sides) and as the fastest f16 one (FlashAttention-3, cuDNN, torch flash;"
        " quantization *included*). Source: [bench/results/h200.json](bench/results/h200.json),"
        f" commit {report['commit']}.",
        "",
        "| | fastest 8-bit peer | `turbo` | `turbo16` | `turbo8` | `sage2-8+8` | fastest 16-bit peer"
        " | `auto`, all in | `half` |",
        "|" + "---|" * 9,
    ]
    for key in README_ROWS:
        results = table[key]
        row = [label(key)]
        peer = fastest(results, EIGHT_BIT)
        best = results[peer]["ms"]["median"]
        row.append(f"{EIGHT_BIT[peer]} {duration(best)}")
        for recipe in OURS[:4]:
            row.append(f"{best / results[f'octavo:{recipe}']['ms']['median']:.2f}x")
        peer = fastest(results, SIXTEEN_BIT)
        best = results[peer]["ms"]["median"]
        row.append(f"{SIXTEEN_BIT[peer]} {duration(best)}")
        auto = results["octavo:auto"]
        picked = auto["note"].split(", ")[1]
        row.append(f"{best / auto['end_to_end_ms']['median']:.2f}x ({picked})")
        row.append(f"{best / results['octavo:half']['end_to_end_ms']['median']:.2f}x")
        lines.append("| " + " | ".join(row) + " |")
    return lines


def kernels(report, table):
    lines = [
        f"{report['gpu']}, driver {report['driver']}, CUDA {report['cuda']}, {report['date']},"
        f" commit {report['commit']}, `{report['command']}`: kernel alone, TFLOPS (FLOP/clk/SM), median; JSON"
        " in [h200.json](../../bench/results/h200.json).",
        "",
        "| | " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * (len(HEADINGS) + 1),
    ]
    for key in KERNEL_ROWS:
        results = table[key]
        cells = [
            f"{results[c]['tflops']:.0f} ({results[c]['flop_per_clk_per_sm']:.0f})" if c in results else ""
            for c in KERNELS
        ]
        lines.append("| " + " | ".join([label(key), *cells]) + " |")
    return lines


def place(path, name, lines, check):
    text = path.read_text()
    begin, end = f"<!-- {name}-begin -->\n", f"<!-- {name}-end -->"
    if begin not in text or end not in text:
        sys.exit(f"tables_cuda.py: {path} has no table {name}")
    before, rest = text.split(begin, 1)
    wanted = before + begin + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1]
    if not check:
        path.write_text(wanted)
    elif wanted != text:
        sys.exit(f"tables_cuda.py: {path}: the table {name} is not what the results give")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, help="what octavo.bench wrote")
    parser.add_argument("--check", action="store_true")
    a = parser.parse_args()
    try:
        report = json.loads(a.report.read_text())
        table = found(report)
        tables = {"h200-readme": readme(report, table), "h200-kernels": kernels(report, table)}
    except OSError as error:
        sys.exit(f"tables_cuda.py: {a.report}: {error.strerror}")
    except (KeyError, TypeError, ValueError) as error:
        sys.exit(f"tables_cuda.py: {a.report} lacks what the tables need: {error!r}")
    place(REPOSITORY / "README.md", "h200-readme", tables["h200-readme"], a.check)
    place(REPOSITORY / "docs/kernels/sm90.md", "h200-kernels", tables["h200-kernels"], a.check)


if __name__ == "__main__":
    main()
