"""Stage `sampling`: the second sweep, of verification rules and drafters at one temperature and one k."""

from typing import Annotated

import typer

from src.pipeline.console import progress, say, stage
from src.pipeline.files import read_json, write_json
from src.pipeline.pair import counts, decode, encode_all, open_pair, seconds, seeded, timed
from src.pipeline.params import Params, demand_known, load_params
from src.pipeline.prompts import load_prompts
from src.pipeline.results import MACHINE, Machine, Settings
from src.pipeline.traces import Sampled, Way, sampled_file

WAYS = {
    "token": {},
    "block": {"verification": "block"},
    "match": {"verification": "match"},
    "adaptive": {"schedule": "adaptive"},
    "prompt-lookup": {"drafter": "prompt-lookup"},
    "greedy": {"temperature": 0.0},  # only to see what drawing costs a step
}
PLAIN = {"verification": "token", "schedule": "fixed", "drafter": "model"}


def run(params: Params, prompts, pair, encoded) -> dict[str, Way]:
    """Every prompt in every way, back to back, the order turned by one from prompt to prompt; a warm-up comes first."""
    settings = {name: params.model_copy(update=PLAIN | changes) for name, changes in WAYS.items()}
    ways = {name: Way(prompts=[], plain=[], seconds=[]) for name in WAYS}
    for name in ("token", "prompt-lookup"):
        decode(settings[name], pair, encoded[0][:8], params.sampling.k)
    rows = list(zip(prompts, encoded, strict=True))
    for at, (prompt, ids) in enumerate(progress(rows, "ways of sampling")):
        runs = {}
        order = ["plain", *WAYS]
        with timed():
            for name in order[at % len(order) :] + order[: at % len(order)]:
                chosen = seeded(settings.get(name, params), at)
                runs[name] = decode(chosen, pair, ids, 0 if name == "plain" else params.sampling.k)
        for name, way in ways.items():
            way.prompts.append(counts(prompt, *runs[name]))
            way.plain.append(seconds(runs["plain"][1]))
            way.seconds.append(seconds(runs[name][1]))
    return ways


def sampling(
    target: Annotated[str, typer.Argument(help="the model to be sped up, a name of the catalogue in params.yaml")],
    draft: Annotated[str, typer.Argument(help="the model that proposes tokens, a name of the catalogue")],
) -> None:
    """Sample from TARGET with DRAFT by each verification rule, with adaptive windows, and by prompt lookup.

    All at `sampling.temperature` and `sampling.k`, after the first `sampling.prompts` prompts, each beside plain
    decoding of the same prompt. Tokens, counts and seconds go to results/sampling/TARGET/DRAFT.json. Example:
    python -m src.pipeline.sampling smollm2-135m smollm2-draft
    """
    params = load_params()
    demand_known(params, "models", target)
    demand_known(params, "models", draft)
    prompts = load_prompts(params.prompts)
    machine = read_json(MACHINE, Machine).fingerprint
    hot = params.sampling.heat(params)
    some = prompts[: params.sampling.prompts]
    say(f"sampling {target} with {draft} at temperature {hot.temperature}: {len(some)} prompts in {len(WAYS)} ways")
    pair = open_pair(params, target, draft)
    ways = run(hot, some, pair, encode_all(params, some, pair[0], pair[2]))
    write_json(
        sampled_file(target, draft),
        Sampled(target=target, draft=draft, k=params.sampling.k, temperature=hot.temperature,
                settings=Settings.of(hot, prompts), machine=machine, ways=ways),
    )  # fmt: skip
    for name, way in ways.items():
        passes = sum(row.target_passes for row in way.prompts)
        length = sum(len(row.tokens) for row in way.prompts) / passes
        faster = sum(x.decode for x in way.plain) / sum(x.decode for x in way.seconds)
        say(f"  {name}: {length:.2f} tokens a pass, {faster:.2f}x")


app = stage(sampling)

if __name__ == "__main__":
    app()
