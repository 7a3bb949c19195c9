"""The summary as Markdown: one line on the machine, the best cells, a sentence on them, the whole sweep."""

from src.pipeline.summary import Cell, Summary


def render(summary: Summary) -> str:
    """All of results/table.md."""
    pairs = list(dict.fromkeys((cell.target, cell.draft) for cell in summary.cells))
    best = [best_cell(summary, *pair) for pair in pairs]
    rows = [_best_row(summary, cell) for cell in best]
    parts = [
        machine_line(summary),
        _table(["target", "draft", "baseline", "best speculative", "acceptance"], rows),
        "\n".join(f"- {_sentence(summary, cell)}" for cell in best),
        _table(
            ["target", "draft", "k", "plain", "speculative", "speedup", "95 % interval", "α", "τ", "lossless"],
            [_sweep_row(cell) for cell in summary.cells],
            right=range(2, 9),
        ),
    ]
    return "\n\n".join(parts) + "\n"


def best_cell(summary: Summary, target: str, draft: str) -> Cell:
    """The fastest k of a pair."""
    cells = [cell for cell in summary.cells if (cell.target, cell.draft) == (target, draft)]
    return max(cells, key=lambda cell: cell.speedup)


def machine_line(summary: Summary) -> str:
    """Where, with what and over what it was measured."""
    at, how = summary.machine, summary.settings
    gpu = "" if at["accelerator"] == "none" else f", {at['accelerator']}"
    mode = "greedy" if how.temperature == 0 else f"temperature {how.temperature:g}"
    until = "" if how.ignore_eos else " at most"
    return (
        f"Measured on {at['processor']}, {_plural(at['cores'], 'core')}, {at['memory_gib']} GiB{gpu}: "
        f"device {how.device}, {how.dtype}, {_plural(how.threads, 'thread')}; {mode}, "
        f"{summary.prompts} prompts of {how.prompts} x {how.max_new_tokens} tokens{until}, "
        f"{_plural(summary.repeats, 'time')}; torch {at['torch']}, transformers {at['transformers']}, "
        f"Python {at['python']}, {at['system']}."
    )


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def size(summary: Summary, target: str, draft: str) -> str:
    """How much larger the target is than its draft: by parameters, or by bytes where those are the same."""
    big, small = summary.models[target], summary.models[draft]
    if big.parameters != small.parameters:
        return f"{_times(big.parameters / small.parameters)}x params"
    return f"same params, {_times(big.weight_bytes / small.weight_bytes)}x bytes"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}".removesuffix(".0")


def _best_row(summary: Summary, cell: Cell) -> list[str]:
    return [
        f"{cell.target} ({size(summary, cell.target, cell.draft)})",
        cell.draft,
        f"{cell.plain_tokens_per_second:.1f} tok/s",
        f"{cell.tokens_per_second:.1f} tok/s ({cell.speedup:.2f}x, k={cell.k})",
        percent(cell.acceptance_rate),
    ]


def _sweep_row(cell: Cell) -> list[str]:
    return [
        cell.target,
        cell.draft,
        str(cell.k),
        f"{cell.plain_tokens_per_second:.1f}",
        f"{cell.tokens_per_second:.1f}",
        f"{cell.speedup:.2f}x",
        span(cell),
        percent(cell.acceptance_rate),
        f"{cell.mean_accepted_length:.2f}",
        cell.lossless,
    ]


def _sentence(summary: Summary, best: Cell) -> str:
    cells = [cell for cell in summary.cells if (cell.target, cell.draft) == (best.target, best.draft)]
    first, last = min(cells, key=lambda c: c.k), max(cells, key=lambda c: c.k)
    pair = f"{best.target} with {best.draft}"
    range_ = " (too few prompts for an interval)" if best.ci_low is None else f", 95 % interval {span(best)}"
    if best.ci_high is not None and best.ci_high < 1:
        text = f"{pair}: do not use this draft here; even at k={best.k} it decodes at {best.speedup:.2f}x{range_}"
    elif (best.speedup if best.ci_low is None else best.ci_low) <= 1:
        text = f"{pair}: no clear gain; k={best.k} decodes at {best.speedup:.2f}x{range_}"
    else:
        text = f"{pair}: k={best.k} is best here, at {best.speedup:.2f}x{range_}"
    if len(cells) > 1:
        text += (
            f"; from k={first.k} to k={last.k} the acceptance rate goes from {percent(first.acceptance_rate)} to "
            f"{percent(last.acceptance_rate)} and τ from {first.mean_accepted_length:.2f} to "
            f"{last.mean_accepted_length:.2f}"
        )
    return text + "."


def percent(rate: float | None) -> str:
    """A rate as the table shows it."""
    return "-" if rate is None else f"{100 * rate:.1f}%"


def span(cell: Cell) -> str:
    """A speedup's interval as the table shows it."""
    return "-" if cell.ci_low is None else f"{cell.ci_low:.2f} to {cell.ci_high:.2f}"


def _table(head: list[str], rows: list[list[str]], right: range = range(0)) -> str:
    rule = "|" + "|".join("---:" if at in right else "---" for at in range(len(head))) + "|"
    lines = ["| " + " | ".join(row) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], rule, *lines[1:]])
