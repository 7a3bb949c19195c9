"""Stage `baseline`: plain decoding of every prompt by one target, which everything else is compared with."""

from typing import Annotated

import typer

from src.pipeline.console import progress, say, stage
from src.pipeline.files import read_json, write_json
from src.pipeline.pair import decode, encode_all, open_pair, seconds, seeded, timed
from src.pipeline.params import Params, demand_known, load_params
from src.pipeline.prompts import Prompt, load_prompts
from src.pipeline.results import MACHINE, BaselineTiming, BaselineTokens, Machine, Settings, Timing, Tokens
from src.pipeline.results import baseline_files as files
from src.pipeline.widths import digests


def decode_plain(params: Params, prompts: list[Prompt], pair, encoded: list) -> tuple[list[Tokens], list[Timing]]:
    """Tokens and timing of each prompt, once; the warm-up comes first and is not timed.

    Speedups are not made of these seconds but of the sweep's own, which are paired.
    """
    for ids in encoded[: params.warmup]:
        decode(params, pair, ids, 0)
    tokens, timing = [], []
    for at, (prompt, ids) in enumerate(progress(list(zip(prompts, encoded, strict=True)), "plain decoding")):
        with timed():
            new, stats = decode(seeded(params, at), pair, ids, 0)
        row = {"id": prompt.id, "category": prompt.category}
        tokens.append(Tokens(**row, tokens=new.tolist(), logits=digests(pair[0], ids, new.tolist(), 1)))
        timing.append(Timing(**row, generated=stats.generated, plain=[seconds(stats)]))
    return tokens, timing


def decode_check(params: Params, prompts: list[Prompt], target: str) -> list[Tokens]:
    """Greedy tokens of the check's prompts in float32 on the CPU."""
    pair = open_pair(params, target, float32=True)
    some = prompts[: params.check.prompts]
    encoded = encode_all(params, some, pair[0], pair[2])
    rows = []
    for prompt, ids in progress(list(zip(some, encoded, strict=True)), "float32 on the CPU"):
        new, _ = decode(params, pair, ids, 0, greedy_tokens=params.check.max_new_tokens)
        rows.append(Tokens(id=prompt.id, category=prompt.category, tokens=new.tolist()))
    return rows


def baseline(target: Annotated[str, typer.Argument(help="a name of the catalogue `models` in params.yaml")]) -> None:
    """Decode every prompt plainly with TARGET: first in the dtype of params.yaml, timed, then in float32 on the CPU.

    Writes tokens to results/baseline/TARGET.json and seconds to results/baseline/TARGET-timing.json. The float32
    tokens of the first `check.prompts` prompts are what the stage `lossless` compares with. Example:
    python -m src.pipeline.baseline smollm2-135m
    """
    params = load_params()
    demand_known(params, "models", target)
    prompts = load_prompts(params.prompts)
    machine = read_json(MACHINE, Machine).fingerprint
    settings = Settings.of(params, prompts)
    say(f"baseline {target}: {len(prompts)} prompts x {params.max_new_tokens} tokens")
    pair = open_pair(params, target)
    encoded = encode_all(params, prompts, pair[0], pair[2])
    tokens, timing = decode_plain(params, prompts, pair, encoded)
    exact = bool(pair[0].exact)
    del pair
    check = decode_check(params, prompts, target)
    tokens_file, timing_file = files(target)
    write_json(timing_file, BaselineTiming(target=target, settings=settings, machine=machine, prompts=timing))
    write_json(
        tokens_file,
        BaselineTokens(target=target, settings=settings, exact=exact, prompts=tokens, check=check),
    )
    spent = sum(sample.decode for row in timing for sample in row.plain)
    say(f"{target}: {sum(row.generated for row in timing) / spent:.1f} tok/s plain")


app = stage(baseline)

if __name__ == "__main__":
    app()
