#!/usr/bin/env python3
"""Draws docs/error_speed_cpu.svg: what each contender of bench/peers_cpu.py costs in time and in accuracy.

    python scripts/plot_cpu.py bench/results/NAME.json [MORE.json ...] [-o docs/error_speed_cpu.svg]

One panel for each processor and head dim, one marker for each contender; lower left is better. A panel shows
one problem, so that its points can be compared: --tokens, --threads (default: the largest in the files) and
--causal or full attention (default) choose it. Contenders whose error is far below the others', such as f32
peers, stand on the lower edge as triangles with their error beside them.

The same files give the same bytes: no date, fixed ids. Text stays text, so the picture is small and its font
is the reader's. Needs matplotlib (a benchmark-only dependency, tried with 3.11) and numpy, which it brings.

Exit status: 0 drawn, 2 wrong argument or input file (one line on stderr).
"""

import argparse
import io
import json
import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")  # no screen, and it can measure text; files are written in the format asked for

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

REPOSITORY = Path(__file__).resolve().parent.parent
OURS, PEER, INK, FAINT = "#1f5fa8", "#c4581b", "#24292f", "#8c959f"
PANEL_INCHES = (4.5, 3.5)  # two panels are 9 in = 864 px, the width of a README
DOTS_PER_INCH = 96  # what browsers take an inch for; labels are placed in these pixels
EXACT = 2e-5  # errors below it are a float32's rounding, which needs no axis of its own: half has 2e-4
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "octavo",
    # Placing measures matplotlib's own font, whatever the system has; readers without it have one as wide.
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 8.5,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


class Refused(Exception):
    """A wrong argument or file, in one line."""


def read(paths):
    """All results, each with what its report says of the run."""
    found = []
    for path in paths:
        try:
            report = json.loads(Path(path).read_text())
            run = {"file": path, "tier": report.get("tier", "best")}
            run |= {key: report[key] for key in ("processor", "octavo", "commit")}
            for result in report["results"]:
                problem = result["problem"]
                found.append(
                    run
                    | {key: result[key] for key in ("contender", "threads", "ns_per_score", "relative_l1")}
                    | {key: problem[key] for key in ("batch", "q_heads", "q_len", "head_dim", "causal")}
                )
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise Refused(f"{path} is not a report of bench/peers_cpu.py: {error}") from error
        except KeyError as missing:
            raise Refused(f"{path} is not a report of bench/peers_cpu.py: it has no {missing}") from missing
    return found


def chosen(results, arguments):
    """The results of one problem, and that problem in words."""
    results = [r for r in results if r["causal"] == arguments.causal]
    for name, field in (("tokens", "q_len"), ("threads", "threads")):
        there = sorted({r[field] for r in results})
        wanted = getattr(arguments, name)
        if wanted is None and there:
            wanted = there[-1]
        if wanted not in there:
            kind = "causal" if arguments.causal else "full"
            raise Refused(f"no {kind} result has {name} {wanted}; there are: {there}")
        results = [r for r in results if r[field] == wanted]
    if not arguments.all_kernels:  # else every recipe once, as plan picks its kernel
        results = [r for r in results if "@" not in r["contender"]]
    drawn = []
    for r in results:
        if r["relative_l1"] and r["relative_l1"] > 0 and r["ns_per_score"] > 0:
            drawn.append(r)
        else:
            print(f"{r['contender']} is left out: relative L1 {r['relative_l1']}", file=sys.stderr)
    shapes = {(r["batch"], r["q_heads"]) for r in drawn}
    if len(shapes) != 1:
        raise Refused(f"the results have {len(shapes)} different (batch, heads): {sorted(shapes)}; draw one")
    batch, heads = shapes.pop()
    threads = drawn[0]["threads"]
    words = [
        *([f"batch {batch}"] if batch > 1 else []),
        f"{heads} heads",
        f"{drawn[0]['q_len']:,} tokens",
        "causal" if arguments.causal else "full attention",
        f"{threads} thread" + ("s" if threads > 1 else ""),
    ]
    return drawn, ", ".join(words)


def panels(results):
    """(processor, tier, head_dim) -> results; a contender appears in a panel once."""
    groups = {}
    for r in results:
        group = groups.setdefault((r["processor"], r["tier"], r["head_dim"]), {})
        if r["contender"] in group:
            first = group[r["contender"]]["file"]
            raise Refused(
                f"{r['contender']}, head_dim {r['head_dim']}, is in {first} and in {r['file']}; give one"
            )
        group[r["contender"]] = r
    return {key: list(groups[key].values()) for key in sorted(groups)}


def is_ours(result):
    return result["contender"].startswith("octavo:")


def label(result):
    """octavo:cpu8@cpu.avx2.cpu8 -> cpu8 (cpu.avx2.cpu8); torch-2.11.0+cu128:f32 -> torch f32."""
    maker, _, what = result["contender"].partition(":")
    if is_ours(result):
        recipe, _, kernel = what.partition("@")
        return f"{recipe} ({kernel})" if kernel else recipe
    return f"{maker.partition('-')[0]} {what}".strip()


def maker_and_version(result):
    """torch-2.11.0+cu128:f32 -> torch 2.11.0, for the legend."""
    name, _, version = result["contender"].partition(":")[0].partition("-")
    return f"{name} {version.partition('+')[0]}".strip()


def overlap(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0


def nearest(box, x, y):
    return min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])


def crosses(start, end, box):
    """Runs the line through the box? Labels are 12 px high, lines at most 64 px long: 17 spots find it."""
    spots = ((start[i] + t / 16 * (end[i] - start[i]) for i in (0, 1)) for t in range(17))
    return any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in spots)


def candidates(x, y, width, height):
    """Boxes around a marker, nearest first: (cost, box, the box's point that is nearest to the marker)."""
    for reach in (8, 13, 20, 28, 38, 50, 64):
        for step in range(16):
            dx, dy = math.cos(step * math.pi / 8), math.sin(step * math.pi / 8)
            # The box's near edge lies on the circle; sideways boxes slide from below to above the marker.
            left = x + reach * dx - width * (1 - dx) / 2
            bottom = y + reach * dy - height * (1 - dy) / 2
            box = (left, bottom, left + width, bottom + height)
            yield reach + 3 * abs(dy), box, nearest(box, x, y)


def place(points, sizes, frame):
    """One box for each label: off the other labels, off all markers, inside the frame. Each takes the best
    place given the others until nothing moves; of two orders the better result counts."""
    markers = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    boxes = [None] * len(points)

    def cost(i, base, box, near):
        inside = overlap(box, frame) / ((box[2] - box[0]) * (box[3] - box[1]))
        total = base + 2000 * (1 - inside)
        total += sum(20 + 2 * overlap(box, m) for m in markers if overlap(box, m))
        others = [(points[j], *boxes[j]) for j in range(len(points)) if j != i and boxes[j]]
        total += sum(40 + 2 * overlap(box, other) for _, other, _ in others if overlap(box, other))
        # A leader line that runs over something else misleads, this one as well as theirs.
        total += 30 * sum(crosses(points[i], near, m) for j, m in enumerate(markers) if j != i)
        for point, other, end in others:
            total += 30 * (crosses(points[i], near, other) + crosses(point, end, box))
        return total

    def settled(order):
        boxes[:] = [None] * len(points)
        for _ in range(20):
            before = list(boxes)
            for i in order:
                best = min(candidates(*points[i], *sizes[i]), key=lambda c: cost(i, *c))
                boxes[i], costs[i] = best[1:], cost(i, *best)
            if boxes == before:
                break
        return sum(costs), list(boxes)

    costs = [0.0] * len(points)
    rightwards = sorted(range(len(points)), key=lambda i: points[i])
    return min((settled(order) for order in (rightwards, rightwards[::-1])), key=lambda found: found[0])[1]


def decades(values, room):
    """Limits around values on a log axis, `room` of their ratio on both sides."""
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = room * max(high - low, 0.3)
    return 10 ** (low - margin), 10 ** (high + margin)


def draw_labels(figure, axes, results, heights):
    renderer = figure.canvas.get_renderer()
    to_pixels, from_pixels = axes.transData, axes.transData.inverted()
    points = [
        tuple(to_pixels.transform((r["ns_per_score"], y))) for r, y in zip(results, heights, strict=True)
    ]
    texts = []
    for r, y in zip(results, heights, strict=True):
        exact = f" ({r['relative_l1']:.0e})".replace("e-0", "e-") if r["relative_l1"] < y else ""
        weight = "bold" if is_ours(r) else "normal"
        colour = OURS if is_ours(r) else PEER
        texts.append(axes.text(0, 0, label(r) + exact, color=colour, weight=weight, size=8, zorder=4))
    extents = [t.get_window_extent(renderer) for t in texts]
    sizes = [(e.width + 4, e.height + 1) for e in extents]
    corners = axes.get_window_extent(renderer)
    frame = (corners.x0 + 3, corners.y0 + 3, corners.x1 - 3, corners.y1 - 3)
    placed = place(points, sizes, frame)
    for text, (box, near), (x, y) in zip(texts, placed, points, strict=True):
        middle = from_pixels.transform(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))
        text.set(position=middle, ha="center", va="center_baseline")
        others = [math.dist(nearest(box, *other), other) for other in points if other != (x, y)]
        # A line where the eye wants one: to a label far off, or as near to another marker.
        if math.dist(near, (x, y)) > min([14, *(distance - 5 for distance in others)]):
            ends = from_pixels.transform([(x, y), near])
            axes.plot(ends[:, 0], ends[:, 1], color=FAINT, linewidth=0.6, zorder=1)


def draw_panel(axes, title, results, limits):
    (left, right), (bottom, top) = limits
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(which="major", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    heights = []
    for r in results:
        below = r["relative_l1"] < bottom
        y = bottom * (top / bottom) ** 0.03 if below else r["relative_l1"]
        heights.append(y)
        marker = "v" if below else "o" if is_ours(r) else "s"
        colour = OURS if is_ours(r) else PEER
        axes.plot(
            r["ns_per_score"], y, marker, color=colour, markersize=6.5, markeredgecolor="white", zorder=3
        )
    return heights


def draw(groups, problem):
    head_dims = sorted({key[2] for key in groups})
    rows = sorted({key[:2] for key in groups})
    every = [r for group in groups.values() for r in group]
    errors = [r["relative_l1"] for r in every if r["relative_l1"] >= EXACT] or [EXACT]
    bottom, top = decades(errors, 0.12)
    if len(errors) < len(every):
        bottom = 10 ** math.floor(math.log10(bottom))
    # Panels of a row share their x axis too, so that head dims can be compared.
    times = {row: [r["ns_per_score"] for r in every if (r["processor"], r["tier"]) == row] for row in rows}

    size = (PANEL_INCHES[0] * max(len(head_dims), 1.3), PANEL_INCHES[1] * len(rows) + 0.7)
    figure, grid = plt.subplots(len(rows), len(head_dims), figsize=size, dpi=DOTS_PER_INCH, squeeze=False)
    figure.patch.set_facecolor("white")
    labelled = []
    for i, row in enumerate(rows):
        for j, head_dim in enumerate(head_dims):
            axes = grid[i][j]
            results = groups.get((*row, head_dim))
            if results is None:
                axes.axis("off")
                continue
            tier = "" if row[1] == "best" else f", {row[1]} tier"
            title = f"{row[0]}{tier} · head_dim {head_dim}"
            heights = draw_panel(axes, title, results, (decades(times[row], 0.22), (bottom, top)))
            labelled.append((axes, results, heights))
            if j == 0:
                axes.set_ylabel("relative L1 error (log)")
            if i == len(rows) - 1:
                axes.set_xlabel("ns per score (log), whole call")

    def marker(colour, shape, text):
        look = {"marker": shape, "color": colour, "markersize": 6, "markeredgecolor": "white"}
        return Line2D([], [], linestyle="", label=text, **look)

    handles = [marker(OURS, "o", "Octavo recipe")]
    if makers := sorted({maker_and_version(r) for r in every if not is_ours(r)}):
        handles.append(marker(PEER, "s", ", ".join(makers)))
    if any(r["relative_l1"] < bottom for r in every):
        handles.append(marker(FAINT, "v", "error below the axis, in brackets"))
    inch = 1 / size[1]  # of the figure's height
    figure.legend(
        handles=handles, loc="upper right", bbox_to_anchor=(0.995, 1 - 0.02 * inch), frameon=False,
        ncols=len(handles), handletextpad=0.1, columnspacing=1.0, fontsize=8,
    )  # fmt: skip
    figure.text(0.012, 1 - 0.18 * inch, "Lower left is better", weight="bold", va="center", fontsize=9.5)
    made = sorted({f"Octavo {r['octavo']} ({r['commit']})" for r in every})
    note = f"{problem}; N(0, 1) inputs; error against float64. bench/peers_cpu.py, {', '.join(made)}"
    figure.text(0.012, 0.1 * inch, note, color="#57606a", va="center", fontsize=7.5)
    figure.tight_layout(rect=(0, 0.2 * inch, 1, 1 - 0.3 * inch), w_pad=1.5, h_pad=1.2)
    figure.canvas.draw()  # labels are placed in the pixels of the final layout
    for axes, results, heights in labelled:
        draw_labels(figure, axes, results, heights)
    return figure


def save(figure, path):
    kind = path.suffix.lstrip(".") or "svg"
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    picture = io.BytesIO()
    figure.savefig(picture, format=kind, metadata=metadata)
    content = picture.getvalue()
    if kind == "svg":
        content = b"\n".join(line.rstrip() for line in content.split(b"\n"))
    path.write_bytes(content)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="+", metavar="JSON", help="written by bench/peers_cpu.py --json")
    parser.add_argument("-o", "--output", type=Path, default=REPOSITORY / "docs" / "error_speed_cpu.svg",
                        help="an .svg, or a .png to look at")  # fmt: skip
    parser.add_argument("--tokens", type=int, help="draw results of this many tokens")
    parser.add_argument("--threads", type=int, help="draw results of this many threads")
    parser.add_argument("--causal", action="store_true", help="draw causal instead of full attention")
    parser.add_argument(
        "--all-kernels", action="store_true", help="draw kernels that were asked for by name, too"
    )
    arguments = parser.parse_args()
    if arguments.output.suffix not in (".svg", ".png"):
        parser.error(f"argument -o: {arguments.output} must end in .svg or .png")
    plt.rcParams.update(STYLE)
    try:
        results, problem = chosen(read(arguments.reports), arguments)
        save(draw(panels(results), problem), arguments.output)
    except Refused as refusal:
        parser.exit(2, f"plot_cpu.py: {refusal}\n")
    except OSError as error:
        parser.exit(2, f"plot_cpu.py: {arguments.output}: {error.strerror}\n")


if __name__ == "__main__":
    main()
