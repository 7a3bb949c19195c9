"""What the figures mean, in generated sentences: the best k and why, whether a draft pays, and the field's two lessons.

Nothing is said that is not read off the summary, and a lesson that the data contradict is reported as contradicted.
"""

from src.pipeline.summary import Cell, Speed, Summary

SHOWN_ROWS = (2, 5, 9)  # passes whose costs are told


def notes(summary: Summary) -> list[str]:
    """All sentences, in the order in which they stand under the table of the best cells."""
    pairs = cells_by_pair(summary)
    return [
        *(_pair(summary, cells) for cells in pairs),
        *(_target(summary, target) for target in summary.costs),
        *_cost_ratio(summary, pairs),
        *_larger_k(pairs),
    ]


def cells_by_pair(summary: Summary) -> list[list[Cell]]:
    """The cells of each target and draft by rising k, pairs in the summary's order."""
    pairs: dict[tuple[str, str], list[Cell]] = {}
    for cell in summary.cells:
        pairs.setdefault((cell.target, cell.draft), []).append(cell)
    return [sorted(cells, key=lambda cell: cell.k) for cells in pairs.values()]


def fastest(cells: list[Cell]) -> Cell:
    """The cell with the largest speedup."""
    return max(cells, key=lambda cell: cell.speedup)


def _pair(summary: Summary, cells: list[Cell]) -> str:
    best, first, last = fastest(cells), cells[0], cells[-1]
    between = " (too few prompts for an interval)" if best.ci_low is None else f", 95 % interval {span(best)}"
    if best.ci_high is not None and best.ci_high < 1:
        text = f"do not use this draft here; even at k={best.k} it decodes at {best.speedup:.2f}x{between}"
    elif (best.speedup if best.ci_low is None else best.ci_low) <= 1:
        text = f"no clear gain; k={best.k} decodes at {best.speedup:.2f}x{between}"
    else:
        text = f"k={best.k} is best here, at {best.speedup:.2f}x{between}"
    if len(cells) > 1:
        text += (
            f"; from k={first.k} to k={last.k} the acceptance rate goes from {percent(first.acceptance_rate)} to "
            f"{percent(last.acceptance_rate)} and τ from {first.mean_accepted_length:.2f} to "
            f"{last.mean_accepted_length:.2f}, while {_verification(summary, first, last)}a step goes from "
            f"{_step(first)} to {_step(last)} plain ones"
        )
    return f"{best.target} with {best.draft}: {text}."


def _step(cell: Cell) -> str:
    """Measured: the time of a speculative step over the time of a plain one."""
    return f"{cell.mean_accepted_length / cell.speedup:.2f}"


def _verification(summary: Summary, first: Cell, last: Cell) -> str:
    costs = summary.costs.get(first.target)
    if costs is None or last.k >= len(costs.v):
        return ""
    return f"the verifying pass goes from {costs.v[first.k]:.2f} to {costs.v[last.k]:.2f} one-row passes and "


def _target(summary: Summary, target: str) -> str:
    of = summary.costs[target]
    rows = [m for m in SHOWN_ROWS if m <= len(of.v)]
    widths = ", ".join(f"{of.v[m - 1]:.2f}" for m in rows)
    drafts = ", ".join(
        f"{draft.c:.2f} ({slug}; the first of a window {draft.c + draft.first:.2f}, and "
        f"{draft.c + draft.first + draft.catch_up:.2f} where the last one was accepted whole)"
        for slug, draft in of.drafts.items()
    )
    best = [fastest(cells) for cells in cells_by_pair(summary) if cells[0].target == target]
    none = "; do not use a draft here" if best and all(c.ci_high is not None and c.ci_high < 1 for c in best) else ""
    return (
        f"{target}: a one-row pass takes {1000 * of.one_row_seconds:.1f} ms, {of.over_bound:.1f} times what reading "
        f"its weights and cache once takes; passes over {', '.join(map(str, rows))} rows cost {widths} of it, and a "
        f"draft pass c = {drafts}{none}."
    )


def _cost_ratio(summary: Summary, pairs: list[list[Cell]]) -> list[str]:
    """The first lesson, speedup follows the cost ratio; nothing where no two pairs have a known c."""
    known = []
    for cells in pairs:
        costs = summary.costs.get(cells[0].target)
        if costs and cells[0].draft in costs.drafts:
            known.append((costs.drafts[cells[0].draft].c, cells))
    if len(known) < 2:
        return []
    known.sort(key=lambda entry: entry[0])
    speeds = [fastest(cells).speedup for _, cells in known]
    follows = speeds == sorted(speeds, reverse=True)
    told = "; ".join(
        f"c={c:.2f} gives {fastest(cells).speedup:.2f}x ({cells[0].target} with {cells[0].draft}, "
        f"α={percent(cells[0].acceptance_rate)} at k={cells[0].k})"
        for c, cells in known
    )
    verdict = "follows the cost ratio here" if follows else "does not follow the cost ratio alone here"
    return [f"Speedup {verdict}: {told}."]


def _larger_k(pairs: list[list[Cell]]) -> list[str]:
    """The second lesson, a larger k is not better; nothing where only one k was measured."""
    pairs = [cells for cells in pairs if len(cells) > 1]
    if not pairs:
        return []
    past = [fastest(cells).k < cells[-1].k for cells in pairs]
    if all(past):
        verdict = "A larger k is not better here"
    else:
        verdict = "A larger k is not always better" if any(past) else "The largest k that was tried is the best here"
    return [f"{verdict}: {'; '.join(map(_best_and_largest, pairs))}."]


def _best_and_largest(cells: list[Cell]) -> str:
    best, largest = fastest(cells), cells[-1]
    pair = f"{best.target} with {best.draft}"
    if best.k == largest.k:
        return f"{best.speedup:.2f}x at k={best.k}, the largest tried ({pair})"
    return f"{best.speedup:.2f}x at k={best.k}, and {largest.speedup:.2f}x at k={largest.k} ({pair})"


def percent(rate: float | None) -> str:
    """A rate as the table shows it."""
    return "-" if rate is None else f"{100 * rate:.1f}%"


def span(speed: Speed) -> str:
    """A speedup's interval as the table shows it."""
    return "-" if speed.ci_low is None else f"{speed.ci_low:.2f} to {speed.ci_high:.2f}"
