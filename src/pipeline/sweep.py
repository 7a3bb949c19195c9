"""Stage `sweep`: one cell, that is one target, one draft and one k, timed against plain decoding."""

from typing import Annotated

import typer

from src.pipeline.console import progress, say, stage
from src.pipeline.files import read_json, write_json
from src.pipeline.pair import counts, decode, encode_all, open_pair, seconds, seeded, timed
from src.pipeline.params import Params, demand_known, load_params
from src.pipeline.passes import one_round
from src.pipeline.prompts import Prompt, load_prompts
from src.pipeline.results import MACHINE, CellTiming, CellTokens, Counts, Machine, Passes, Settings, Timing, cell_files
from src.pipeline.widths import digests


def run_cell(
    params: Params, prompts: list[Prompt], pair, encoded: list, k: int
) -> tuple[list[Counts], list[Timing], Passes | None]:
    """Decode each prompt plainly and speculatively, back to back, in alternating order, after a warm-up.

    A machine's speed drifts by more than the effect; within a pair of runs it hardly does, and which of the two comes
    first alternates from prompt to prompt and from repeat to repeat. The first pair of each prompt starts with empty
    caches, and its prefill is the one that counts. After each prompt single passes are timed, for the prediction.
    """
    for ids in encoded[: params.warmup]:
        decode(params, pair, ids, 0)
        decode(params, pair, ids, k)
    counted, timing, rounds = [], [], []
    for at, prompt in enumerate(progress(prompts, f"k={k}")):
        own = seeded(params, at)
        runs: dict[int, list] = {0: [], k: []}
        for repeat in range(params.repeats):
            for width in (0, k) if (repeat + at) % 2 == 0 else (k, 0):
                with timed():
                    runs[width].append(decode(own, pair, encoded[at], width, fresh=repeat == 0))
        logits = digests(pair[0], encoded[at], runs[k][0][0].tolist(), k + 1)
        counted.append(counts(prompt, *runs[k][0], logits))
        timing.append(_timing(prompt, runs, k))
        if params.drafter == "model" and params.schedule == "fixed":
            rounds.append(one_round(params, pair, encoded[at], runs[k][0][0].tolist(), k))
    names = Passes.model_fields
    passes = Passes(**dict(zip(names, map(list, zip(*rounds, strict=True)), strict=True))) if rounds else None
    return counted, timing, passes


def _timing(prompt: Prompt, runs: dict[int, list], k: int) -> Timing:
    return Timing(
        id=prompt.id,
        category=prompt.category,
        generated=runs[k][0][1].generated,
        plain=[seconds(stats) for _, stats in runs[0]],
        speculative=[seconds(stats) for _, stats in runs[k]],
    )


def sweep(
    target: Annotated[str, typer.Argument(help="the model to be sped up, a name of the catalogue in params.yaml")],
    draft: Annotated[str, typer.Argument(help="the model that proposes tokens, a name of the catalogue")],
    k: Annotated[int, typer.Argument(min=1, help="how many tokens it proposes per target pass")],
) -> None:
    """Time speculative decoding of every prompt by TARGET with K tokens of DRAFT a pass, against plain decoding.

    Plain and speculative decoding of a prompt run back to back, `repeats` times in alternating order. Tokens, counts
    and digests of the target's logits go to results/sweep/TARGET/DRAFT/kK.json, seconds to kK-timing.json beside it,
    with those of single passes, timed between the prompts, by which the speedup is predicted.
    Example: python -m src.pipeline.sweep smollm2-135m smollm2-draft 4
    """
    params = load_params()
    for slug in (target, draft):
        demand_known(params, "models", slug)
    prompts = load_prompts(params.prompts)
    machine = read_json(MACHINE, Machine).fingerprint
    cell = {"target": target, "draft": draft, "k": k, "settings": Settings.of(params, prompts)}
    say(f"sweep {target} with {draft}, k={k}{_where(params, target, draft, k)}: {len(prompts)} prompts x "
        f"{params.max_new_tokens} tokens, {'once' if params.repeats == 1 else f'{params.repeats} times'}")  # fmt: skip
    pair = open_pair(params, target, draft)
    encoded = encode_all(params, prompts, pair[0], pair[2])
    counted, timing, passes = run_cell(params, prompts, pair, encoded, k)
    tokens_file, timing_file, _ = cell_files(target, draft, k)
    write_json(
        timing_file,
        CellTiming(
            **cell, repeats=params.repeats, warmup=params.warmup, machine=machine, prompts=timing, passes=passes
        ),
    )
    write_json(tokens_file, CellTokens(**cell, prompts=counted))
    plain = sum(sample.decode for row in timing for sample in row.plain)
    speculative = sum(sample.decode for row in timing for sample in row.speculative)
    rate = params.repeats * sum(row.generated for row in timing) / speculative
    say(f"{target} with {draft}, k={k}: {rate:.1f} tok/s, {plain / speculative:.2f}x")


def _where(params: Params, target: str, draft: str, k: int) -> str:
    cells = [(t, d, n) for t in params.targets for d in params.drafts for n in params.ks]
    return f" (cell {cells.index((target, draft, k)) + 1} of {len(cells)})" if (target, draft, k) in cells else ""


app = stage(sweep)

if __name__ == "__main__":
    app()
