"""Stage `peers`: plain and speculative decoding beside transformers' own, in one run on one machine."""

from typing import Annotated

import typer

from src.pipeline.bandwidth import weights_read
from src.pipeline.comparison import Peers, Run, best, figures, in_words, peers_file
from src.pipeline.console import progress, say, stage
from src.pipeline.files import read_json, write_json
from src.pipeline.memory import peak_growth
from src.pipeline.pair import MODELS, decode, encode_all, open_pair, timed
from src.pipeline.params import Params, demand_known, load_params
from src.pipeline.prompts import load_prompts
from src.pipeline.results import MACHINE, Machine, Settings
from src.pipeline.sources import DistillSource, QuantizeSource

PROMPTS, TOKENS, REPEATS = 6, 32, 2
KS = (1, 2, 3)  # tried on the first TRIAL prompts, to find each side's best
TRIAL = 1


def comparable(params: Params) -> str | None:
    """The draft to compare with: a distilled one if there is one, else the first that transformers can load."""
    loadable = [slug for slug in params.drafts if not isinstance(params.models[slug], QuantizeSource)]
    distilled = [slug for slug in loadable if isinstance(params.models[slug], DistillSource)]
    return next(iter(distilled + loadable), None)


def measure(params: Params, target: str, draft: str | None) -> dict:
    """Both sides' best k, then each way of decoding each prompt, back to back, in an order that rotates."""
    from src.pipeline.rivals import generate, open_rivals

    prompts = load_prompts(params.prompts)[:PROMPTS]
    pair = open_pair(params, target, draft)
    encoded = encode_all(params, prompts, pair[0], pair[2])
    tokens = min(TOKENS, params.max_new_tokens)
    short = params.model_copy(update={"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0.0})

    def ours(ids, k):
        tokens, stats = decode(short, pair, ids, k)
        return tokens, stats.prefill_seconds + stats.decode_seconds

    room = peak_growth(lambda: ours(encoded[0], KS[-1] if draft else 0))
    rivals = open_rivals(params, target, draft)

    def theirs(ids, k):
        return generate(rivals, ids, k, tokens)

    ways, trials, ks = [("plain", ours, 0), ("generate", theirs, 0)], {}, [None, None]
    if draft is not None:
        for name, side in (("tinydraft", ours), ("transformers", theirs)):
            side(encoded[0], KS[0])
            tries = progress(KS, f"{name}, best k")
            trials[name] = {str(k): sum(side(ids, k)[1] for ids in encoded[:TRIAL]) for k in tries}
        ks = [best(trials["tinydraft"]), best(trials["transformers"])]
        ways += [("speculative", ours, ks[0]), ("assisted", theirs, ks[1])]
    rows = progress(list(zip(prompts, encoded, strict=True)), f"{len(ways)} ways of decoding")
    runs = [_run(prompt.id, ids, ways, at) for at, (prompt, ids) in enumerate(rows)]
    memory = None if room is None else max(0, room - _cache_bytes(pair))
    return {"tokens": tokens, "k": ks[0], "assisted_k": ks[1], "trials": trials, "runs": runs, "memory": memory}


def _run(id: str, ids, ways: list, at: int) -> Run:
    import torch

    seconds: dict[str, list[float]] = {"speculative": [], "assisted": []}
    tokens = {}
    for repeat in range(REPEATS):
        turn = (at + repeat) % len(ways)
        for name, side, width in ways[turn:] + ways[:turn]:
            with timed():
                tokens[name], spent = side(ids, width)
            seconds.setdefault(name, []).append(spent)
    same = torch.equal(tokens["assisted"], tokens["generate"]) if "assisted" in tokens else None
    return Run(id=id, **seconds, same_plain=torch.equal(tokens["plain"], tokens["generate"]), same_assisted=same)


def _cache_bytes(pair) -> int:
    models = [model for model in pair[:2] if model is not None]
    return sum(tensor.nbytes for model in models for tensor in getattr(getattr(model, "network", None), "_cache", []))


def peers(target: Annotated[str, typer.Argument(help="a name of the catalogue `models` in params.yaml")]) -> None:
    """Time TARGET's plain and speculative decoding beside transformers' generate and assisted generation.

    Same weights, dtype, threads, prompts and number of tokens, greedy, prefill included; the draft is the distilled
    one, and each side uses the k that is best for it, transformers' with a constant number of assistant
    tokens and no confidence threshold. Raw samples go to results/peers/TARGET.json. Takes two to three minutes on two
    cores. Example: python -m src.pipeline.peers smollm2-135m
    """
    params = load_params()
    demand_known(params, "targets", target)
    draft = comparable(params)
    say(f"peers: {target}{f' with {draft}' if draft else ''}, beside transformers")
    record = Peers(
        target=target, draft=draft, settings=Settings.of(params, load_prompts(params.prompts)),
        machine=read_json(MACHINE, Machine).fingerprint, weight_bytes=weights_read(MODELS / target, params.dtype)[0],
        repeats=REPEATS, **measure(params, target, draft),
    )  # fmt: skip
    write_json(peers_file(target), record)
    say(in_words(target, figures(record), str(record.machine["transformers"])))


app = stage(peers)

if __name__ == "__main__":
    app()
