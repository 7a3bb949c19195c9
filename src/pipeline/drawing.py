"""The pictures: matplotlib figures that stay readable in black and white, as SVG files that are the same every time."""

from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from src.pipeline.costmodel import Costs
from src.pipeline.summary import Cell

MARKERS, COLORS = "osD^vP*X", ("#1b4f8a", "#b5500b", "#3f7d3a", "#7a3b8f", "#555555", "#a8842c")
PARTS = {"draft": ("#ffffff", "///"), "target": ("#9aa7b8", ""), "other": ("#ffffff", "xx")}
STYLE = {
    "svg.hashsalt": "tinydraft", "font.size": 10, "figure.figsize": (7, 4.2), "figure.constrained_layout.use": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#dddddd",
    "axes.axisbelow": True, "hatch.linewidth": 0.8,
}  # fmt: skip


@matplotlib.rc_context(STYLE)
def save(figure: Figure, path: Path) -> None:
    """An SVG without date or random names, so that the same results give the same bytes."""
    figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def _axes(x: str, y: str, title: str):
    figure, axes = plt.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, loc="left", fontsize=11)
    return figure, axes


def _name(cells: list[Cell]) -> str:
    return f"{cells[0].target} with {cells[0].draft}"


@matplotlib.rc_context(STYLE)
def speedup(pairs: list[list[Cell]]) -> Figure:
    """Speedup over k: measured with intervals, and predicted, a line per pair."""
    figure, axes = _axes(
        "k, tokens drafted per target pass",
        "speedup over plain decoding (times)",
        "Speedup over k, with 95 % intervals",
    )
    for cells, marker, color in zip(pairs, cycle(MARKERS), cycle(COLORS), strict=False):
        ks, speeds = [cell.k for cell in cells], [cell.speedup for cell in cells]
        intervals = None
        if all(cell.ci_low is not None for cell in cells):
            intervals = [[c.speedup - c.ci_low for c in cells], [c.ci_high - c.speedup for c in cells]]
        axes.errorbar(ks, speeds, intervals, color=color, marker=marker, capsize=3, label=f"{_name(cells)}, measured")
        known = [cell for cell in cells if cell.predicted is not None]
        axes.plot(
            [cell.k for cell in known], [cell.predicted for cell in known], color=color, marker=marker, linestyle="--",
            markerfacecolor="white", label=f"{_name(cells)}, predicted",
        )  # fmt: skip
    axes.axhline(1, color="black", linewidth=1, linestyle=":")
    axes.annotate("plain decoding", (1, 1), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i])
    axes.legend([handles[i] for i in order], [labels[i] for i in order], frameon=False, fontsize=8)
    return figure


@matplotlib.rc_context(STYLE)
def acceptance(pairs: list[list[Cell]]) -> Figure:
    """How often the tokens up to each position are all accepted, at the largest k of each pair."""
    figure, axes = _axes(
        "position in the window", "windows accepted up to there (%)", "Acceptance by position, at the largest k"
    )
    for cells, marker, color in zip(pairs, cycle(MARKERS), cycle(COLORS), strict=False):
        rates = cells[-1].acceptance_by_position
        places = range(1, len(rates) + 1)
        axes.plot(
            places, [100 * rate for rate in rates], color=color, marker=marker, label=f"{_name(cells)}, k={cells[-1].k}"
        )
        if rates:
            constant = [100 * rates[0] ** place for place in places]
            axes.plot(places, constant, color=color, linestyle=":", label="if each were accepted like the first")
    axes.set_ylim(0, 100)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=8)
    return figure


@matplotlib.rc_context(STYLE)
def step_time(pairs: list[list[Cell]]) -> Figure:
    """Where a step's time goes: milliseconds of draft passes, the target's pass and the rest, a bar per cell."""
    figure, axes = _axes(
        "", "time of a step (ms)", "Where a step's time goes; above the bars, the tokens that it gives"
    )
    names, at = [], 0
    for cells in pairs:
        for cell in cells:
            bottom = 0.0
            for part, height in step_parts(cell).items():
                color, hatch = PARTS[part]
                label = {"other": "the rest"}.get(part, part) if at == 0 else None
                axes.bar(
                    at, height, 0.7, bottom, color=color, edgecolor="black", hatch=hatch, label=label, linewidth=0.8
                )
                bottom += height
            axes.annotate(f"{cell.mean_accepted_length:.2f}", (at, bottom), ha="center", va="bottom", fontsize=8)
            names.append(f"k={cell.k}")
            at += 1
        middle = at - (len(cells) + 1) / 2
        axes.annotate(
            f"{cells[0].target}\nwith {cells[0].draft}",
            (middle, 0),
            (0, -22),
            ("data", "axes fraction"),
            "offset points",
            ha="center",
            va="top",
            fontsize=8,
        )
        names.append("")
        at += 1
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.tick_params("x", length=0)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.12)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def step_parts(cell: Cell) -> dict[str, float]:
    """Milliseconds of a step by what they were spent on: draft, target, other."""
    step = 1000 * cell.mean_accepted_length / cell.tokens_per_second
    return {part: step * getattr(cell, f"{part}_share") for part in PARTS}


@matplotlib.rc_context(STYLE)
def roofline(costs: list[Costs]) -> Figure:
    """Passes under the roof of memory and arithmetic, both as measured on this machine."""
    figure, axes = _axes(
        "operations per byte read", "operations per second (billions)", "Passes under this machine's roofline"
    )
    samples = costs[0].samples
    points = [point for record in costs for point in roofline_points(record)]
    ridge = samples.arithmetic / samples.bandwidth
    xs = [min(0.5, *(x for *_, x, _ in points)), ridge, max(4 * ridge, *(x for *_, x, _ in points))]
    roof = [min(x * samples.bandwidth, samples.arithmetic) / 1e9 for x in xs]
    gigabytes = samples.bandwidth / 1e9
    axes.plot(xs, roof, color="black", label=f"roof: {gigabytes:.1f} GB/s, {samples.arithmetic / 1e9:.0f} GFLOP/s")
    series: dict[str, list] = {}
    for name, rows, x, y in points:
        series.setdefault(name, []).append((rows, x, y))
    for (name, found), marker, color in zip(series.items(), cycle(MARKERS), cycle(COLORS), strict=False):
        axes.plot(
            [x for _, x, _ in found],
            [y / 1e9 for *_, y in found],
            color=color,
            marker=marker,
            linestyle="--",
            label=name,
        )
        for rows, x, y in found:
            if len(found) > 1 and rows in (1, 2, 4, len(found)):
                axes.annotate(f"{rows}", (x, y / 1e9), (0, -12), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.margins(y=0.12)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False, fontsize=8)
    return figure


def roofline_points(record: Costs) -> list[tuple[str, int, float, float]]:
    """(name, rows, operations per byte, operations per second) of the target's passes and of each draft's."""
    of, samples = record.figures, record.samples
    size = samples.weight_bytes + samples.cache_bytes
    points = []
    for rows, cost in enumerate(of.v, 1):
        work = rows * samples.operations
        points.append((f"{record.target}, by rows", rows, work / size, work / (cost * of.one_row_seconds)))
    for slug, draft in samples.drafts.items():
        seconds = of.drafts[slug].c * of.one_row_seconds
        points.append((f"{slug}, one row", 1, draft.operations / draft.weight_bytes, draft.operations / seconds))
    return points
