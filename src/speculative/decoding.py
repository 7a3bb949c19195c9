"""What a call of `generate` does before and after the loop."""

from collections.abc import Iterator
from dataclasses import fields

import torch

from .coins import Coins
from .drafters import Drafter
from .errors import PromptError, SettingsError
from .loop import Plan, Run, decode
from .models import CausalLM
from .sampling import Sampling
from .stats import Stats
from .vocabulary import count_ids

SAMPLING = tuple(field.name for field in fields(Sampling))
PLANNED = ("k", "max_new_tokens", "draft_settings", "verification", "schedule", "stop")


def generate(
    target: CausalLM,
    draft: CausalLM | Drafter | None,
    tok,
    prompt: str | torch.Tensor,
    *,
    k: int = 4,
    max_new_tokens: int = 96,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int | torch.Generator = 0,
    chat: bool = False,
    ignore_eos: bool = False,
    **more,
) -> tuple[torch.Tensor, Stats]:
    """Decodes up to max_new_tokens with the target's own distribution; the draft only makes it faster.

    prompt: a string, or a 1-D int64 tensor of token ids. chat: put the string into the tokenizer's chat template as a
    user's turn. draft: a model, any drafter (`PromptLookup()`), or None; with None or k = 0 this is plain decoding.
    k: most draft tokens a step. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off. seed: the same seed
    gives the same tokens, whatever else the process did; a generator is advanced. ignore_eos: go on to max_new_tokens.

    `more` may hold the penalties, logit_bias and forbidden of `Sampling`, and
        stop            strings that end the output; the tokens end with the one that completes a string
        verification    "token", "block" or "match": a rule of `verification.py`
        schedule        "fixed" (k) or "adaptive" (at most k): see `schedule.py`
        draft_settings  a `Sampling` for the draft, which otherwise is warped like the target, as is best

    Tokens that target or draft have cached from a former call are not processed again, if the prompt begins with them
    and if the model's arithmetic does not depend on how many tokens a pass has (`exact`).

    Returns the new tokens, 1-D int64 on the CPU, the EOS included if one was produced, and the call's Stats.
    Raises PromptError, SettingsError or ModelError with one sentence that says what was wrong and what is allowed.
    """
    chosen = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, **more}
    steps, stats = start(
        target, draft, tok, prompt, seed=seed, chat=chat, ignore_eos=ignore_eos,
        k=k, max_new_tokens=max_new_tokens, **chosen,
    )  # fmt: skip
    new = [token for step in steps for token in step]
    return torch.tensor(new, dtype=torch.int64), stats


def start(
    target, draft, tok, prompt, *, seed=0, chat=False, ignore_eos=False, **arguments
) -> tuple[Iterator[list[int]], Stats]:
    """The steps of a call of `generate`, lists of tokens still to be decoded, and the Stats that they will fill."""
    if not isinstance(target, CausalLM):
        raise SettingsError(f"target must be a model of load_models, not {_kind(target)}")
    planned = {name: arguments.pop(name) for name in PLANNED if name in arguments}
    if unknown := [name for name in arguments if name not in SAMPLING]:
        raise SettingsError(f"there is no setting {unknown[0]!r}; allowed are {', '.join(PLANNED + SAMPLING)}")
    ids = encode(tok, prompt, chat).to(target.device)
    eos_ids = () if ignore_eos else target.eos_ids
    plan = Plan(**planned, settings=Sampling(**arguments), eos_ids=eos_ids, tok=tok, vocabulary=_real_ids(target, tok))
    run = Run(target, draft, ids, plan, make_coins(seed))
    return decode(run), run.stats


def make_coins(seed: int | torch.Generator) -> tuple[Coins, Coins]:
    """The target's coins and the draft's, both out of one generator. Raises SettingsError.

    Two streams, so that how much a draft draws cannot change what the target draws: by rule "match" the target uses
    one number a token, and the same seed gives the same tokens for every draft and every k.
    """
    if not isinstance(seed, torch.Generator):
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
            raise SettingsError(f"seed must be a torch.Generator or a whole number from 0 to 2**63 - 1, not {seed!r}")
        seed = torch.Generator().manual_seed(seed)
    streams = torch.randint(2**62, (2,), generator=seed, device=seed.device).tolist()
    return tuple(Coins(torch.Generator().manual_seed(s)) for s in streams)


def encode(tok, prompt: str | torch.Tensor, chat: bool = False) -> torch.Tensor:
    """The prompt's token ids, 1-D int64. Raises PromptError if there is none, or if it is not one sequence."""
    if isinstance(prompt, str):
        if not prompt.strip():
            raise PromptError("the prompt is empty; it must hold at least one token")
        if any("\ud800" <= char <= "\udfff" for char in prompt):
            raise PromptError(
                "the prompt holds half of a surrogate pair, which is no character; it must be Unicode text"
            )
        if tok is None:
            raise PromptError("a prompt that is a string needs its tokenizer; tok must not be None")
        if chat:
            turn = [{"role": "user", "content": prompt}]
            prompt = tok.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        # The template writes the special tokens itself.
        prompt = torch.tensor(tok.encode(prompt, add_special_tokens=not chat), dtype=torch.int64)
    if not isinstance(prompt, torch.Tensor) or prompt.dtype != torch.int64:
        raise PromptError(f"a prompt is a string or a 1-D int64 tensor of token ids, not {_kind(prompt)}")
    if prompt.dim() != 1:
        raise PromptError(
            f"a prompt is one sequence, a 1-D tensor, not {tuple(prompt.shape)}: each sequence of a batch would accept "
            "another number of tokens, so call generate once for each"
        )
    if len(prompt) == 0:
        raise PromptError("the prompt is empty; it must hold at least one token")
    return prompt


def _kind(value) -> str:
    return f"a tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


def _real_ids(target: CausalLM, tok) -> int:
    """How many ids exist: padded rows of the head, beyond the tokenizer's last id, name no token."""
    real = target.real_ids or (target.vocab_size if tok is None else count_ids(tok))
    return min(target.vocab_size, real)
