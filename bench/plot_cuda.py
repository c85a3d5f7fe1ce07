#!/usr/bin/env python3
"""Draws what `python -m octavo.bench --json` measured: docs/speed_cuda.svg and docs/error_speed_cuda.svg.

    python bench/plot_cuda.py bench/results/NAME.json [MORE.json ...] [--output-dir docs] [--png]

speed_cuda: TFLOPS over the number of tokens, one panel for each shape that has several lengths. Kernels alone
are lines, end to end (quantization included) dots. error_speed_cuda: relative L1 against TFLOPS at one
length; upper left is better. The same files give the same bytes. Needs matplotlib.
"""

import argparse
import json
import sys
from pathlib import Path

try:
    import matplotlib
except ImportError:
    sys.exit("plot_cuda.py needs matplotlib: pip install matplotlib")

matplotlib.use("agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

REPOSITORY = Path(__file__).resolve().parent.parent
INK, FAINT = "#24292f", "#8c959f"
OURS = ["#0b3c7d", "#1f77c9", "#2a9d8f", "#6a4fb3", "#12a3c9", "#7a8c1e", "#4a5568", "#9b2f7f"]
PEERS = ["#c4581b", "#e09f3e", "#9e2a2b", "#b08968", "#d16ba5", "#7f5539", "#bb3e03"]
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "octavo",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 8.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def is_ours(contender):
    return contender.startswith("octavo:")


def read(paths):
    """All results, each with its GPU; a later file's figure of the same thing replaces an earlier one's."""
    found = {}
    for path in paths:
        try:
            report = json.loads(Path(path).read_text())
            for r in report["results"]:
                problem = tuple(sorted(r["problem"].items()))
                found[problem, r["contender"]] = r | {"gpu": report["gpu"], "commit": report["commit"]}
        except OSError as error:
            raise SystemExit(f"plot_cuda.py: {path}: {error.strerror}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise SystemExit(f"plot_cuda.py: {path} is not a report of octavo.bench: {error!r}") from error
    return list(found.values())


def shape(problem):
    """A panel: everything of a problem but its length."""
    return tuple(problem[k] for k in ("head_dim", "batch", "q_heads", "kv_heads", "causal"))


def title(key):
    head_dim, batch, heads, kv_heads, causal = key
    grouped = f"/{kv_heads}" if kv_heads != heads else ""
    return f"head_dim {head_dim} · B{batch} H{heads}{grouped} · {'causal' if causal else 'full'}"


def colours(results):
    names = sorted({r["contender"] for r in results})
    ours = [n for n in names if is_ours(n)]
    peers = [n for n in names if not is_ours(n)]
    return {n: OURS[i % len(OURS)] for i, n in enumerate(ours)} | {
        n: PEERS[i % len(PEERS)] for i, n in enumerate(peers)
    }


def square(results):
    return [r for r in results if r["problem"]["q_len"] == r["problem"]["kv_len"]]


def dress(axes):
    axes.grid(which="major", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def grid_of(count):
    columns = min(count, 2)
    rows = -(-count // columns)
    size = (4.7 * columns, 3.4 * rows + 0.5)
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for axes in grid.flat[count:]:
        axes.axis("off")
    return figure, list(grid.flat[:count])


def note(figure, results, text):
    made = sorted({f"{r['gpu']}, Octavo {r['commit']}" for r in results})
    figure.text(0.01, 0.004, f"{text}  {'; '.join(made)}.", color="#57606a", fontsize=7)


def draw_speed(results):
    panels = {}
    for r in square(results):
        panels.setdefault(shape(r["problem"]), []).append(r)
    panels = {k: v for k, v in sorted(panels.items()) if len({r["problem"]["q_len"] for r in v}) > 2}
    if not panels:
        return None
    palette = colours([r for v in panels.values() for r in v])
    figure, grid = grid_of(len(panels))
    for axes, (key, found) in zip(grid, panels.items(), strict=True):
        for name, colour in palette.items():
            line = sorted((r for r in found if r["contender"] == name), key=lambda r: r["problem"]["q_len"])
            if not line:
                continue
            lengths = [r["problem"]["q_len"] for r in line]
            style = "-" if is_ours(name) else "--"
            speeds = [r["tflops"] for r in line]
            marker = "o" if is_ours(name) else "s"
            axes.plot(lengths, speeds, style, color=colour, marker=marker, markersize=3, lw=1.4, label=name)
            ends = [
                (n, r) for n, r in zip(lengths, line, strict=True) if is_ours(name) and r["end_to_end_ms"]
            ]
            whole = [r["tflops"] * r["ms"]["median"] / r["end_to_end_ms"]["median"] for _, r in ends]
            axes.plot([n for n, _ in ends], whole, ":", color=colour, linewidth=1.0)
        axes.set_xscale("log", base=2)
        ticks = sorted({r["problem"]["q_len"] for r in found})
        axes.set_xticks(ticks)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n / 1024:g}k"))
        axes.set_ylim(bottom=0)
        axes.set_title(title(key), fontsize=9, loc="left")
        axes.set(xlabel="tokens", ylabel="TFLOPS")
        dress(axes)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=5, frameon=False, fontsize=7.5)
    note(figure, results, "Lines: kernel alone; dotted: with quantization. N(0, 1) inputs.")
    rows = -(-len(labels) // 5)
    figure.tight_layout(rect=(0, 0.02, 1, 1 - 0.2 * rows / figure.get_size_inches()[1] - 0.01))
    return figure


def draw_labels(axes, found, palette, gap):
    """To the right of each marker, moved down where another label of a similar error is."""
    placed = []
    for r in sorted(found, key=lambda r: -r["tflops"]):
        x, y = r["relative_l1"], r["tflops"]
        near = [other for at, other in placed if 1 / 4 < at / x < 4]
        y = min([y, *(other - gap for other in near)])
        placed.append((x, y))
        name, ours = r["contender"], is_ours(r["contender"])
        axes.annotate(name.removeprefix("octavo:"), (x, y), xytext=(6, -2.5), textcoords="offset points",
                      fontsize=7.5, color=palette[name], weight="bold" if ours else "normal")  # fmt: skip


def draw_errors(results, tokens):
    panels = {}
    for r in square(results):
        if r["relative_l1"] and not r["problem"]["causal"]:
            panels.setdefault((shape(r["problem"]), r["problem"]["q_len"]), []).append(r)
    longest = {}
    for key, length in panels:
        if tokens is None or length == tokens:
            longest[key] = max(length, longest.get(key, 0))
    chosen = {k: panels[k, n] for k, n in sorted(longest.items())}
    if not chosen:
        return None
    palette = colours([r for v in chosen.values() for r in v])
    figure, grid = grid_of(len(chosen))
    for axes, (key, found) in zip(grid, chosen.items(), strict=True):
        for r in found:
            ours = is_ours(r["contender"])
            axes.plot(r["relative_l1"], r["tflops"], "o" if ours else "s", color=palette[r["contender"]],
                      markersize=6.5, markeredgecolor="white")  # fmt: skip
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xlim(low / 1.2, high * 1.9)
        top = max(r["tflops"] for r in found) * 1.12
        axes.set_ylim(0, top)
        draw_labels(axes, found, palette, 0.045 * top)
        axes.set_title(f"{title(key)} · {longest[key]:,} tokens", fontsize=9, loc="left")
        axes.set(xlabel="relative L1 error (log)", ylabel="TFLOPS, kernel alone")
        dress(axes)
    note(figure, results, "Upper left is better. Error against float64, N(0, 1) inputs.")
    figure.tight_layout(rect=(0, 0.025, 1, 1))
    return figure


def save(figure, path):
    metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(path, metadata=metadata, dpi=96, facecolor="white")
    if path.suffix == ".svg":
        path.write_bytes(b"\n".join(line.rstrip() for line in path.read_bytes().split(b"\n")))
    print(path)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="+", metavar="JSON", help="written by python -m octavo.bench --json")
    parser.add_argument("--output-dir", type=Path, default=REPOSITORY / "docs")
    parser.add_argument("--tokens", type=int, help="length of the error plot (default: each shape's longest)")
    parser.add_argument("--png", action="store_true", help="PNG instead of SVG, to look at")
    arguments = parser.parse_args()
    plt.rcParams.update(STYLE)
    results = read(arguments.reports)
    drawn = 0
    for name, figure in (
        ("speed_cuda", draw_speed(results)),
        ("error_speed_cuda", draw_errors(results, arguments.tokens)),
    ):
        if figure is None:
            print(f"plot_cuda.py: nothing to draw for {name}", file=sys.stderr)
            continue
        save(figure, arguments.output_dir / f"{name}.{'png' if arguments.png else 'svg'}")
        drawn += 1
    return 0 if drawn else 2


if __name__ == "__main__":
    sys.exit(main())
