"""The models of a cell, its prompts as token ids, and one decoding with the settings of params.yaml."""

import gc
import json
import os
from contextlib import contextmanager
from pathlib import Path

from src.pipeline.params import Params, ParamsError, demand_known
from src.pipeline.prompts import Prompt
from src.pipeline.results import Counts, Seconds

MODELS = Path("models")
VOCABULARY = "draft_vocab.json"  # beside a distilled draft's weights


def open_pair(params: Params, target: str, draft: str | None = None, *, float32: bool = False):
    """(target, draft, tok) as params.yaml wants them, or in float32 on the CPU for the check; draft None loads none.

    Sets torch's threads for this process. Raises ModelError.
    """
    import torch

    from src.speculative.loading import load_models

    for slug in (target, draft) if draft else (target,):
        demand_known(params, "models", slug)
    torch.set_num_threads(params.threads)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(MODELS.absolute() / ".compiled"))
    return load_models(
        MODELS / target,
        MODELS / draft if draft else None,
        device="cpu" if float32 else params.device,
        dtype="float32" if float32 else params.dtype,
        exact=None if params.exact else False,
        compile=params.compile and not float32,
        draft_vocab=_vocabulary(params, draft),
        draft_quantization=params.models[draft].draft_quantization if draft else None,
    )


def _vocabulary(params: Params, draft: str | None):
    """The token ids that the draft's head computes, int64 (n,); None for all."""
    if draft is None or not getattr(params.models[draft], "draft_vocab", False):
        return None
    import torch

    from src.speculative.errors import ModelError

    file = MODELS / draft / VOCABULARY
    try:
        return torch.tensor(json.loads(file.read_text(encoding="utf-8")), dtype=torch.int64)
    except (OSError, ValueError):
        raise ModelError(f"{file}: cannot be read; make it anew with `dvc repro fetch`") from None


def encode_all(params: Params, prompts: list[Prompt], target, tok) -> list:
    """Token ids of every prompt, 1-D int64 tensors; ParamsError for one that the target's context cannot hold."""
    from src.speculative.decoding import encode

    encoded = [encode(tok, prompt.prompt, params.chat) for prompt in prompts]
    for prompt, ids in zip(prompts, encoded, strict=True):
        if len(ids) + params.max_new_tokens > target.context:
            raise ParamsError(
                f"{params.prompts}: prompt {prompt.id!r} has {len(ids)} tokens, which with max_new_tokens "
                f"{params.max_new_tokens} exceed the target's context; allowed: {target.context} together"
            )
    return encoded


def decode(params: Params, pair, ids, k: int, *, greedy_tokens: int | None = None, fresh: bool = True):
    """(tokens, Stats) after the prompt `ids`; k=0 is plain decoding.

    greedy_tokens: decode greedily, and that many tokens, instead of what params.yaml says. fresh: from empty caches;
    otherwise a prompt that was decoded just before finds its prefill done, where the models allow it.
    """
    from src.speculative.decoding import generate
    from src.speculative.prompt_lookup import PromptLookup

    target, draft, tok = pair
    if fresh:
        target.rollback(0)
        if draft is not None:
            draft.rollback(0)
    chosen = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p", "verification")}
    if greedy_tokens is not None:
        chosen = {}
    if params.drafter == "prompt-lookup":
        draft = PromptLookup()
    return generate(
        target, draft if k else None, tok, ids, k=k, max_new_tokens=greedy_tokens or params.max_new_tokens,
        seed=params.seed, ignore_eos=params.ignore_eos, schedule=params.schedule, **chosen,
    )  # fmt: skip


def seeded(params: Params, at: int) -> Params:
    """The settings for prompt number `at`: with one seed for all, what chance does to one it would do to the next."""
    return params.model_copy(update={"seed": (params.seed + at) % 2**63})


def counts(prompt: Prompt, tokens, stats, logits: list[str] | None = None) -> Counts:
    """The tokens and counts of one decoding as they are stored; logits: digests of the target's, if they are kept."""
    counted = {name: getattr(stats, name) for name in Counts.model_fields if hasattr(stats, name)}
    return Counts(id=prompt.id, category=prompt.category, tokens=tokens.tolist(), logits=logits or [], **counted)


def seconds(stats) -> Seconds:
    """The times of one decoding as they are stored."""
    return Seconds(
        prefill=stats.prefill_seconds, draft=stats.draft_seconds, target=stats.target_seconds, other=stats.other_seconds
    )


@contextmanager
def timed():
    """A block without garbage collection; what lives already is set aside, so that collecting between is cheap."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
