"""`verify`: recompute what the results say from their raw samples, without models, and name what does not hold."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from pydantic import BaseModel

from src.pipeline import checks
from src.pipeline.checks import differences, read, short
from src.pipeline.console import say, stage
from src.pipeline.costmodel import Costs, costs_file
from src.pipeline.explain import cells_by_pair
from src.pipeline.files import ResultError, read_json
from src.pipeline.params import Params, load_params
from src.pipeline.plots import PLOTS, csv_text, tables
from src.pipeline.prompts import load_prompts
from src.pipeline.report import Metrics, collect, metrics, table
from src.pipeline.results import LOSSLESS, METRICS, SUMMARY, TABLE, Lossless, Settings
from src.pipeline.summary import Summary
from src.speculative.errors import TinydraftError


def faults(params: Params) -> Iterator[str]:
    """A sentence for each thing that does not hold, file first."""
    prompts = load_prompts(params.prompts)
    settings = Settings.of(params, prompts)
    ids = [prompt.id for prompt in prompts]
    for target in params.targets:
        yield from checks.baseline(target, settings, ids)
        yield from checks.costs(target, settings)
        yield from checks.peers(target, settings)
        yield from checks.replayed(params, target, settings)
    for target, draft, k in product(params.targets, params.drafts, params.ks):
        yield from checks.cell(params, target, draft, k, settings, ids)
    try:
        summary, lossless = collect(params)
    except TinydraftError as error:
        yield str(error)
        return
    except (ValueError, ArithmeticError, LookupError) as error:  # samples that no measurement gives
        yield f"{SUMMARY}: cannot be recomputed ({error})"
        return
    yield from _stored(SUMMARY, Summary, summary)
    yield from _stored(LOSSLESS, Lossless, lossless)
    for cell in summary.cells:
        yield from _stored(METRICS / cell.target / cell.draft / f"k{cell.k}.json", Metrics, metrics(cell))
    yield from _lines(TABLE, table(summary))
    costs = [read_json(costs_file(target), Costs) for target in summary.costs]
    for path, rows in tables(cells_by_pair(summary), costs).items():
        yield from _lines(PLOTS / path, csv_text(rows))


def _stored(file: Path, kind: type, expected: BaseModel) -> Iterator[str]:
    record = yield from read(file, kind)
    if record:
        for phrase in differences(record.model_dump(mode="json"), expected.model_dump(mode="json")):
            yield f"{file}: {phrase}"


def _lines(file: Path, expected: str) -> Iterator[str]:
    if not file.exists():
        yield f"{file}: there is no such result; make it anew with `dvc repro`"
        return
    found, wanted = file.read_text(encoding="utf-8").split("\n"), expected.split("\n")
    for number, (one, other) in enumerate(zip(found, wanted, strict=False), 1):
        if one != other:
            yield f"{file}: line {number} reads {short(one)}, and the samples give {short(other)}"
    if len(found) != len(wanted):
        yield f"{file}: has {len(found)} lines, and the samples give {len(wanted)}"


def verify() -> None:
    """Recompute every figure of results/ from the stored raw samples, and print what does not hold.

    Checked are results/summary.json, table.md, lossless.json, metrics/ and the data of plots/; the figures in
    results/costs/ and replay/; the counts and verdicts of every cell against its tokens; and that params.yaml
    and the prompts are those that the cells recorded. No model is loaded; it takes seconds. The exit code is 1 if
    anything does not hold. Example: python -m src.pipeline.verify
    """
    params = load_params()
    found = list(dict.fromkeys(faults(params)))  # a missing file is missed by several checks
    for fault in found:
        say(fault)
    if found:
        raise ResultError(f"results/: {len(found)} of its figures and files do not hold; allowed: none")
    cells = len(params.targets) * len(params.drafts) * len(params.ks)
    say(f"verify: {cells} cells, every figure follows from the raw samples")


app = stage(verify)

if __name__ == "__main__":
    app()
