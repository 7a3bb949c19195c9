"""Stage `report`: the tables, the summary and the metrics, from what the other stages stored; no model is loaded."""

from pathlib import Path
from typing import Annotated

import typer

from src.pipeline.comparison import PeerFigures, Peers, peers_file
from src.pipeline.comparison import figures as peer_figures
from src.pipeline.console import say, stage
from src.pipeline.costmodel import Costs, Figures, costs_file
from src.pipeline.files import ResultError, new_directory, read_json, write_json, write_text
from src.pipeline.origins import ModelInfo
from src.pipeline.params import Params, ParamsError, load_params
from src.pipeline.prompts import load_prompts
from src.pipeline.results import (
    LOSSLESS,
    MACHINE,
    METRICS,
    SUMMARY,
    TABLE,
    CellTiming,
    CellTokens,
    CellVerdicts,
    Lossless,
    Machine,
    Part,
    Settings,
    cell_files,
    model_file,
)
from src.pipeline.summary import Cell, Model, Summary, summarize
from src.pipeline.table import render
from src.pipeline.traces import Replay, replay_file
from src.pipeline.ways import render as render_ways

README, BEGIN, END = Path("README.md"), "<!-- table: begin -->", "<!-- table: end -->"


class Metrics(Part):
    """What `dvc metrics show` and `dvc metrics diff` show of one cell."""

    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    acceptance_rate: float | None
    tokens_per_second: float


def collect(params: Params) -> tuple[Summary, Lossless]:
    """Read the cells that params.yaml asks for, and no others that may still lie there.

    Raises ResultError for one that is missing or was decoded with other settings than params.yaml has now.
    """
    settings = Settings.of(params, prompts := load_prompts(params.prompts))
    cells: list[Cell] = []
    verdicts: list[CellVerdicts] = []
    costs = {target: _read_costs(target, settings) for target in params.targets}
    for target in params.targets:
        for draft in params.drafts:
            for k in params.ks:
                cell, verdict = _read_cell(target, draft, k, settings, costs[target])
                cells.append(cell)
                verdicts.append(verdict)
    models = {slug: read_json(model_file(slug, "models"), ModelInfo) for slug in params.targets}
    models |= {slug: read_json(model_file(slug, "drafts"), ModelInfo) for slug in params.drafts}
    summary = Summary(
        settings=settings,
        machine=read_json(MACHINE, Machine).fingerprint,
        prompts=len(prompts),
        repeats=params.repeats,
        models={slug: Model(parameters=m.parameters, weight_bytes=m.weight_bytes) for slug, m in models.items()},
        costs=costs,
        peers={target: _read_peers(target, settings) for target in params.targets},
        cells=cells,
    )
    return summary, Lossless(cells=verdicts)


def _read_costs(target: str, settings: Settings) -> Figures:
    record = read_json(file := costs_file(target), Costs)
    if record.settings != settings:
        raise ResultError(f"{file}: was made with other settings than now; make it anew with `dvc repro`")
    return record.figures


def _read_peers(target: str, settings: Settings) -> PeerFigures:
    record = read_json(file := peers_file(target), Peers)
    if record.settings != settings:
        raise ResultError(f"{file}: was made with other settings than now; make it anew with `dvc repro`")
    return peer_figures(record)


def _read_cell(target: str, draft: str, k: int, settings: Settings, costs: Figures) -> tuple[Cell, CellVerdicts]:
    tokens_file, timing_file, verdict_file = cell_files(target, draft, k)
    tokens, timing = read_json(tokens_file, CellTokens), read_json(timing_file, CellTiming)
    for file, record in ((tokens_file, tokens), (timing_file, timing)):
        if record.settings != settings:
            raise ResultError(f"{file}: was made with other settings than now; make it anew with `dvc repro`")
    verdicts = read_json(verdict_file, CellVerdicts)
    return summarize(tokens, timing, verdicts, costs), verdicts


def table(summary: Summary) -> str:
    """All of results/table.md: the summary, and the second sweep where there is one."""
    replays = [read_json(file, Replay) for file in map(replay_file, summary.costs) if file.exists()]
    return "\n".join(filter(None, (render(summary), render_ways(replays))))


def metrics(cell: Cell) -> Metrics:
    """Rounded to what is worth a look in a terminal."""
    return Metrics(
        speedup=round(cell.speedup, 3),
        speedup_low=cell.ci_low and round(cell.ci_low, 3),
        speedup_high=cell.ci_high and round(cell.ci_high, 3),
        acceptance_rate=cell.acceptance_rate and round(cell.acceptance_rate, 4),
        tokens_per_second=round(cell.tokens_per_second, 2),
    )


def write_metrics(cells: list[Cell]) -> None:
    """A small file for each cell, for that is how `dvc metrics` makes a readable table; dropped cells vanish."""
    with new_directory(METRICS) as folder:
        for cell in cells:
            write_json(folder / cell.target / cell.draft / f"k{cell.k}.json", metrics(cell))


def fill_readme(text: str, table: str) -> str:
    """The README's text with what stands between its two marks replaced; ParamsError when a mark is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ParamsError(f"{README}: lacks the line {BEGIN} or {END}; allowed: both, once")
    return f"{before}{BEGIN}\n{table}{END}{after}"


def report(
    readme: Annotated[bool, typer.Option("--readme", help="only put results/table.md into README.md")] = False,
) -> None:
    """Render results/table.md, results/summary.json, results/lossless.json and results/metrics/.

    Every figure comes from the raw samples under results/, so this takes a second and no model. With --readme,
    nothing is computed: the table that lies in results/ is put into README.md between its two marks. Example:
    python -m src.pipeline.report --readme
    """
    if readme:
        if not TABLE.exists():
            raise ResultError(f"{TABLE}: there is no such result; make it with `dvc repro`")
        write_text(README, fill_readme(README.read_text(encoding="utf-8"), TABLE.read_text(encoding="utf-8")))
        say(f"{README}: now shows {TABLE}")
        return
    summary, verdicts = collect(load_params())
    write_json(LOSSLESS, verdicts)
    write_json(SUMMARY, summary)
    write_metrics(summary.cells)
    write_text(TABLE, table(summary))
    say(f"report: {len(summary.cells)} cells in {TABLE}")


app = stage(report)

if __name__ == "__main__":
    app()
