"""Stage `replay`: what a trace says of every rule and k from 1 to 16, without a model, beside what was measured."""

from pathlib import Path
from typing import Annotated

import typer

from src.pipeline.console import say, stage
from src.pipeline.costmodel import Costs, Figures, costs_file
from src.pipeline.files import read_json, write_json
from src.pipeline.params import Params, load_params
from src.pipeline.predictions import agree, predict
from src.pipeline.results import CellTokens, cell_files
from src.pipeline.traces import (
    DraftReplay,
    DraftTrace,
    Replay,
    Sampled,
    Trace,
    replay_file,
    sampled_file,
    trace_file,
)
from src.pipeline.ways import measure_ways

RULES = ("token", "block", "match")
WIDEST = 16


def replay_draft(params: Params, target: str, draft: str, trace: DraftTrace, costs: Figures | None) -> DraftReplay:
    """All predictions for one draft, and the cells of both sweeps that are there to compare them with."""
    every = range(1, WIDEST + 1)
    sampled = [predict(trace.sampled, rule, k, costs, draft, params.seed) for rule in RULES for k in every]
    greedy = [predict(trace.greedy, "token", k, costs, draft, params.seed) for k in every] if trace.greedy else []
    found = {(one.rule, one.k): one for one in sampled}
    measured = []
    if record := _stored(sampled_file(target, draft), Sampled):
        for rule in RULES:
            name = f"sampling, {rule}, k={record.k}"
            measured.append(agree(name, record.ways[rule].prompts, found[rule, record.k], params.seed))
    alike = params.drafter == "model" and params.schedule == "fixed"
    for one in greedy:
        if alike and one.k in params.ks and (cell := _stored(cell_files(target, draft, one.k)[0], CellTokens)):
            measured.append(agree(f"sweep, k={one.k}", cell.prompts, one, params.seed))
    line = f"{trace.vocabulary.size} tokens; padded rows: target {trace.vocabulary.target_padding}, "
    line += f"draft {trace.vocabulary.draft_padding}"
    return DraftReplay(
        vocabulary=line, k=params.sampling.k, ways=measure_ways(record, sampled, params.seed),
        sampled=sampled, greedy=greedy, measured=[one for one in measured if one],
    )  # fmt: skip


def _stored(path: Path, kind):
    return read_json(path, kind) if path.is_file() else None


def replay(target: Annotated[str, typer.Argument(help="a name of the catalogue `models` in params.yaml")]) -> None:
    """Compute α, τ and the speedup of TARGET for every draft, rule and k from 1 to 16 from its trace, in seconds.

    No model is loaded. Where a cell of the sweep or of `sampling` was measured, it is put beside the prediction. All of
    it goes to results/replay/TARGET.json. Example: python -m src.pipeline.replay smollm2-135m
    """
    params = load_params()
    trace = read_json(trace_file(target), Trace)
    costs = _stored(costs_file(target), Costs)
    drafts = {
        slug: replay_draft(params, target, slug, trace.drafts[slug], costs and costs.figures) for slug in trace.drafts
    }
    write_json(replay_file(target), Replay(target=target, temperature=trace.temperature, drafts=drafts))
    for slug, found in drafts.items():
        for name, ones in (("greedy", found.greedy), (f"temperature {trace.temperature}", found.sampled)):
            known = [one for one in ones if one.speedup is not None]
            if known:
                best = max(known, key=lambda one: one.speedup)
                say(f"{target} with {slug}, {name}: {best.speedup:.2f}x at k={best.k} by rule {best.rule}, "
                    f"{best.mean_accepted_length:.2f} tokens a pass")  # fmt: skip
        wrong = [one.cell for one in found.measured if not one.agrees]
        say(f"  {len(found.measured) - len(wrong)} of {len(found.measured)} measured cells agree with it"
            + (f"; not {', '.join(wrong)}" if wrong else ""))  # fmt: skip


app = stage(replay)

if __name__ == "__main__":
    app()
