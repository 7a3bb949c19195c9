"""Stage `costs`: what a target's passes cost by their width, a draft's pass, a prefill, and reading the weights."""

from typing import Annotated

import typer

from src.pipeline.bandwidth import arithmetic, cache_bytes, read_bandwidth, weights_read
from src.pipeline.console import say, stage
from src.pipeline.costmodel import Costs, DraftSamples, Samples, costs_file, figures
from src.pipeline.files import read_json, write_json
from src.pipeline.pair import MODELS, encode_all, open_pair
from src.pipeline.params import Params, demand_known, load_params
from src.pipeline.passes import median_prompt, rounds_of, sequence_of, steps
from src.pipeline.prompts import Prompt, load_prompts
from src.pipeline.results import MACHINE, Machine, Settings

WIDEST = 9  # rows; cells with a larger k get no prediction, for adding a k must not measure all of this anew


def measure(params: Params, prompts: list[Prompt], target: str) -> Samples:
    """All raw samples of one target, with each draft in turn; raises TinydraftError."""
    passes: list[list[float]] = [[] for _ in range(WIDEST)]
    plain_other: list[float] = []
    prefill: list[float] = []
    drafts = {}
    for draft in params.drafts:
        say(f"costs of {target} with {draft}: passes over 1 to {WIDEST} rows")
        pair = open_pair(params, target, draft)
        ids = median_prompt(encode_all(params, prompts, pair[0], pair[2]))
        sequence, positions = sequence_of(params, pair, ids, WIDEST)
        block, (draft_pass, first_pass, two_rows) = rounds_of(params, pair, sequence, positions, WIDEST)
        plain, other, first = steps(params, pair, ids)
        for rows, seconds in zip(passes, block, strict=True):
            rows += seconds
        plain_other += plain
        prefill += first
        head_rows = None if pair[1].token_ids is None else len(pair[1].token_ids)
        bits = params.models[draft].draft_quantization
        size, numbers = weights_read(MODELS / draft, params.dtype, head_rows, bits)
        drafts[draft] = DraftSamples(
            draft_pass=draft_pass, first_pass=first_pass, two_rows=two_rows, target_pass=block[0], other=other,
            weight_bytes=pair[1].weight_bytes or size, operations=2.0 * numbers,
        )  # fmt: skip
        held = pair[0].weight_bytes
        del pair
    size, numbers = weights_read(MODELS / target, params.dtype)
    return Samples(
        passes=passes, other=plain_other, prefill=prefill, prompt_tokens=len(ids), positions=positions,
        bandwidth=read_bandwidth(params.device), arithmetic=arithmetic(params.device, params.dtype),
        operations=2.0 * numbers, weight_bytes=held or size,
        cache_bytes=cache_bytes(MODELS / target, positions, params.dtype), drafts=drafts,
    )  # fmt: skip


def costs(target: Annotated[str, typer.Argument(help="a name of the catalogue `models` in params.yaml")]) -> None:
    """Measure what TARGET's passes cost over 1 to 9 rows, a pass of each draft, a prefill, and reading the weights.

    Everything is in units of TARGET's one-row pass, the measure of the speedup: k draft tokens pay off if the tokens
    that they give a pass exceed k c + v(k+1) + o; the first draft pass of a window is timed apart, for it finds the
    caches full of the target's weights, and so is one over two rows, which the draft has to see after a window that was
    accepted whole. Raw samples and figures go to results/costs/TARGET.json; the stage
    `report` predicts each cell from them. Takes under a minute. Example: python -m src.pipeline.costs smollm2-135m
    """
    params = load_params()
    demand_known(params, "targets", target)
    prompts = load_prompts(params.prompts)
    settings, machine = Settings.of(params, prompts), read_json(MACHINE, Machine).fingerprint
    samples = measure(params, prompts, target)
    found = figures(samples)
    write_json(
        costs_file(target), Costs(target=target, settings=settings, machine=machine, samples=samples, figures=found)
    )
    ratios = ", ".join(f"c={of.c:.2f} with {slug}" for slug, of in found.drafts.items())
    say(f"{target}: {1000 * found.one_row_seconds:.1f} ms a pass, {found.over_bound:.1f} times what reading weights "
        f"and cache takes; v({len(found.v)})={found.v[-1]:.2f}, {ratios}")  # fmt: skip


app = stage(costs)

if __name__ == "__main__":
    app()
