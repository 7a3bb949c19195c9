"""Stage `trace`: a target's own output, and the probabilities that it and each draft give to every token of it."""

from dataclasses import asdict
from typing import Annotated

import typer

from src.pipeline.console import progress, say, stage
from src.pipeline.files import read_json, write_json
from src.pipeline.pair import decode, encode_all, open_pair, seeded
from src.pipeline.params import Params, demand_known, load_params
from src.pipeline.prompts import Prompt, load_prompts
from src.pipeline.results import BaselineTokens, Settings, baseline_files
from src.pipeline.traces import TOP, DraftTrace, Row, Trace, Traced, Vocabularies, trace_file

FEW = 5  # ids of tokens that only one vocabulary has, as they are shown


def laws(model, ids, tokens: list[int], params: Params, vocabulary: int):
    """The distributions (len(tokens), vocabulary), float32 on the CPU, that a model has for the tokens after ids.

    They are what decoding samples from: warped, cut to the vocabulary, and zero where a draft's head has no column.
    """
    import torch

    from src.speculative.sampling import Sampling, warp

    chosen = Sampling(**{name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")})
    sequence = torch.cat((ids, torch.tensor(tokens, dtype=torch.int64))).to(model.device)
    model.rollback(0)
    logits = model.forward(sequence[:-1], keep=len(tokens))
    columns = model.token_ids
    if columns is None:
        columns = torch.arange(min(vocabulary, model.real_ids or vocabulary, model.vocab_size))
        logits = logits[:, : len(columns)]
    wide = torch.zeros(len(tokens), vocabulary)
    wide[:, columns.cpu()] = warp(logits, chosen, sequence, sequence[:0]).cpu()
    return wide


def describe(prompt: Prompt, tokens: list[int], p, q) -> Traced:
    """One output with what stands in its distributions p and q, (len(tokens), vocabulary)."""
    import torch

    at = torch.tensor(tokens)[:, None]
    return Traced(
        id=prompt.id, category=prompt.category, tokens=tokens,
        p=_round(p.gather(1, at)[:, 0]), q=_round(q.gather(1, at)[:, 0]), overlap=_round(torch.minimum(p, q).sum(1)),
        tops=[(_top(a), _top(b)) for a, b in zip(p, q, strict=True)],
    )  # fmt: skip


def _top(row) -> Row:
    values, ids = row.topk(min(TOP, int((row > 0).sum())))
    return Row(ids=ids.tolist(), logs=[round(x, 4) for x in values.log().tolist()])


def _round(values) -> list[float]:
    return [float(f"{value:.7g}") for value in values.tolist()]


def write(hot: Params, target: str, prompts: list[Prompt]) -> list[tuple]:
    """What the target writes alone after each prompt: the prompt's ids, and the new tokens."""
    pair = open_pair(hot, target)
    encoded = progress(encode_all(hot, prompts, pair[0], pair[2]), "writing")
    return [(ids, decode(seeded(hot, at), pair, ids, 0)[0].tolist()) for at, ids in enumerate(encoded)]


def trace_draft(params: Params, pair, prompts: list[Prompt], outputs: list, greedy: list, slugs) -> DraftTrace:
    """What one draft thinks of the target's outputs: (ids, tokens) by prompt, sampled and greedy ones."""
    target, draft, _ = pair
    vocabulary = _vocabularies(*slugs, target, draft)
    sampled = []
    for prompt, (ids, tokens) in progress(list(zip(prompts, outputs, strict=False)), slugs[1]):
        p, q = (laws(model, ids, tokens, params, vocabulary.size) for model in (target, draft))
        sampled.append(describe(prompt, tokens, p, q))
    certain, argmax = [], params.model_copy(update={"temperature": 0.0})
    for prompt, (ids, tokens) in zip(prompts, greedy, strict=False):
        q = laws(draft, ids, tokens, argmax, vocabulary.size)
        agrees = [q[i, token].item() for i, token in enumerate(tokens)]
        certain.append(
            Traced(id=prompt.id, category=prompt.category, tokens=tokens, p=[1.0] * len(tokens), q=agrees,
                   overlap=agrees, tops=[])
        )  # fmt: skip
    return DraftTrace(vocabulary=vocabulary, sampled=sampled, greedy=certain)


def _vocabularies(target_slug: str, draft_slug: str, target, draft) -> Vocabularies:
    from src.pipeline.pair import MODELS
    from src.speculative.loading import load_tokenizer
    from src.speculative.vocabulary import reconcile

    toks = (load_tokenizer(MODELS / slug) for slug in (target_slug, draft_slug))
    found = asdict(reconcile(*toks, target.vocab_size, None if draft.token_ids is not None else draft.vocab_size))
    return Vocabularies(**(found | {name: list(found[name][:FEW]) for name in ("only_target", "only_draft")}))


def trace(target: Annotated[str, typer.Argument(help="a name of the catalogue `models` in params.yaml")]) -> None:
    """Let TARGET write, and record what it and each draft make of every token: enough to replay any k and rule.

    It writes once at `sampling.temperature` after the first `sampling.prompts` prompts; the baseline's output, where
    that is greedy, is taken too. Probabilities of the tokens, their overlap, and the likeliest 64 of both go to
    results/trace/TARGET.json, which the stage `replay` reads. Example: python -m src.pipeline.trace smollm2-135m
    """
    params = load_params()
    demand_known(params, "targets", target)
    prompts = load_prompts(params.prompts)
    base = read_json(baseline_files(target)[0], BaselineTokens)
    hot = params.sampling.heat(params)
    say(f"trace {target}: {params.sampling.prompts} outputs at temperature {hot.temperature}")
    outputs, drafts = write(hot, target, prompts[: params.sampling.prompts]), {}
    for slug in params.drafts:
        pair = open_pair(params, target, slug)
        encoded = encode_all(params, prompts, pair[0], pair[2])
        say(f"trace {target}: what {slug} makes of them")
        rows = base.prompts if params.temperature == 0 else []
        greedy = [(ids, row.tokens) for ids, row in zip(encoded, rows, strict=False)]
        drafts[slug] = trace_draft(hot, pair, prompts, outputs, greedy, (target, slug))
        del pair
    write_json(
        trace_file(target),
        Trace(target=target, settings=Settings.of(hot, prompts), temperature=hot.temperature, drafts=drafts),
    )


app = stage(trace)

if __name__ == "__main__":
    app()
