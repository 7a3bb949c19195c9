"""The summary as Markdown: one line on the machine, the best cells, a sentence on them, the whole sweep."""

from src.pipeline.comparison import in_words
from src.pipeline.explain import cells_by_pair, fastest, notes, percent, span
from src.pipeline.summary import Cell, Speed, Summary

SHORT = ("predicted (residual)", "α", "τ")


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
        _categories(summary),
        "\n".join(in_words(slug, peer, summary.machine["transformers"]) for slug, peer in summary.peers.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _categories(summary: Summary) -> str:
    """Each pair's best k by category: measured, and what the costs predict from that category's acceptance."""
    best = [fastest(cells) for cells in cells_by_pair(summary)]
    names = list(dict.fromkeys(name for cell in best for name in cell.categories))
    rows = [
        [cell.target, cell.draft, str(cell.k), *(_category(cell.categories.get(name)) for name in names)]
        for cell in best
    ]
    return "By category of prompts, measured (predicted):\n\n" + markdown(
        ["target", "draft", "k", *names], rows, right=range(2, 3 + len(names))
    )


def _category(speed: Speed | None) -> str:
    if speed is None:
        return "-"
    return f"{speed.speedup:.2f}x" if speed.predicted is None else f"{speed.speedup:.2f}x ({speed.predicted:.2f}x)"


def machine_line(summary: Summary) -> str:
    """Where, with what and over what it was measured."""
    at, how = summary.machine, summary.settings
    gpu = "" if at["accelerator"] == "none" else f", {at['accelerator']}"
    mode = "greedy" if how.temperature == 0 else f"temperature {how.temperature:g}, rule {how.verification}"
    mode += ", by prompt lookup" * (how.drafter == "prompt-lookup") + ", adaptive k" * (how.schedule == "adaptive")
    until = "" if how.ignore_eos else " at most"
    return (
        f"Measured on {at['processor']}, {_plural(at['cores'], 'core')}, {at['memory_gib']} GiB{gpu}: "
        f"device {how.device}, {how.dtype}, {_plural(how.threads, 'thread')}{', compiled' * how.compile}; {mode}, "
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
        "-" if cell.predicted is None else f"{cell.predicted:.2f}x ({round(100 * cell.residual):+d}%)",
        percent(cell.acceptance_rate),
        f"{cell.mean_accepted_length:.2f}",
        cell.lossless,
    ]


def markdown(head: list[str], rows: list[list[str]], right: range = range(0)) -> str:
    """A Markdown table; `right` are the columns of numbers."""
    rule = "|" + "|".join("---:" if at in right else "---" for at in range(len(head))) + "|"
    lines = ["| " + " | ".join(row) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], rule, *lines[1:]])
