"""Stage `gate`: show the table, and end the pipeline with an error if any output was not the target's own."""

import shutil
import sys

from src.pipeline.console import stage
from src.pipeline.files import ResultError, read_json
from src.pipeline.results import LOSSLESS, TABLE, Lossless, Verdict


class NotLossless(ResultError):
    """Some output of speculative decoding was not the target's own."""


def faults(verdicts: Lossless) -> list[str]:
    """A phrase for each prompt with the verdict *different*: target, draft, k, prompt and the first difference."""
    found = []
    for cell in verdicts.cells:
        for dtype, rows in ((cell.dtype, cell.sweep), ("float32", cell.float32)):
            for row in rows:
                if row.verdict == "different":
                    found.append(f"{cell.target} with {cell.draft}, k={cell.k}, prompt {row.id!r} {_what(row, dtype)}")
    return found


def _what(row: Verdict, dtype: str) -> str:
    gap = "" if row.margin is None else f", whose logits are {row.margin:.3g} apart"
    return f"(in {dtype}, token {row.position}: {row.speculative} instead of {row.plain}{gap})"


def show(text: str) -> None:
    """The table on the screen: drawn where there is room, and as it is elsewhere, for squeezed columns lose figures."""
    widest = max((len(line) for line in text.splitlines() if line.startswith("|")), default=0)
    if not sys.stdout.isatty() or shutil.get_terminal_size().columns < widest:
        print(text, flush=True)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))


def gate() -> None:
    """Print results/table.md, and fail if results/lossless.json holds a *different*.

    It is a stage of its own, so that every verdict is on disk before anything fails. Near ties within the tolerance
    of params.yaml pass, and the table names them.
    """
    show(TABLE.read_text(encoding="utf-8") if TABLE.exists() else "")
    wrong = faults(read_json(LOSSLESS, Lossless))
    if wrong:
        more = f" (and {len(wrong) - 1} more in {LOSSLESS})" if len(wrong) > 1 else ""
        raise NotLossless(f"speculative decoding changed the output: {wrong[0]}{more}; allowed: the same tokens")


app = stage(gate)

if __name__ == "__main__":
    app()
