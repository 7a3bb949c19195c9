"""The summary as Markdown: one line on the machine, the best cells, a sentence on them, the whole sweep."""

from src.pipeline.explain import cells_by_pair, fastest, notes, percent, span
from src.pipeline.summary import Cell, Summary

SHORT = ("predicted", "α", "τ")


def render(summary: Summary) -> str:
    """All of results/table.md."""
    rows = [_best_row(summary, fastest(cells)) for cells in cells_by_pair(summary)]
    parts = [
        machine_line(summary),
        markdown(["target", "draft", "baseline", "best speculative", "acceptance"], rows),
        "\n".join(f"- {note}" for note in notes(summary)),
        markdown(
            ["target", "draft", "k", "plain", "speculative", "speedup", "95 % interval", *SHORT, "lossless"],
            [_sweep_row(cell) for cell in summary.cells],
            right=range(2, 10),
        ),
    ]
    return "\n\n".join(parts) + "\n"


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
        "-" if cell.predicted is None else f"{cell.predicted:.2f}x",
        percent(cell.acceptance_rate),
        f"{cell.mean_accepted_length:.2f}",
        cell.lossless,
    ]


def markdown(head: list[str], rows: list[list[str]], right: range = range(0)) -> str:
    """A Markdown table; `right` are the columns of numbers."""
    rule = "|" + "|".join("---:" if at in right else "---" for at in range(len(head))) + "|"
    lines = ["| " + " | ".join(row) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], rule, *lines[1:]])
