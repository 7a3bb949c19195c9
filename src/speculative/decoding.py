"""Plain decoding and speculative decoding: one loop.

A step is: the drafter proposes x_1..x_m; one pass of the target over the tokens that it has not seen and x_1..x_m
gives p_1..p_{m+1}; verification says how many are accepted and what the next token is; both models roll back to what
stands. With m = 0 this is plain decoding. Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (2302.01318).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from .drafters import Drafter, ModelDrafter, Proposal
from .errors import PromptError, SettingsError
from .models import CausalLM
from .sampling import RULES, Coins, Sampling, argmax, verify, verify_greedy, warp
from .stats import Stats, now


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
    verification: str = "token",
    **more,
) -> tuple[torch.Tensor, Stats]:
    """Decodes up to max_new_tokens with the target's own distribution; the draft only makes it faster.

    prompt: a string, or a 1-D int64 tensor of token ids. chat: put the string into the tokenizer's chat template as a
    user's turn. draft: a model, any drafter, or None; with None or k = 0 this is plain decoding. k: most draft tokens
    a step. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off; `more` takes the penalties, biases and
    forbidden ids of `Sampling`. seed: the same seed gives the same tokens, whatever else the process did; a generator
    is advanced. ignore_eos: go on to max_new_tokens. verification: a rule of `sampling.RULES`.

    Returns the new tokens, 1-D int64 on the CPU, the EOS included if one was produced, and the call's Stats.
    Raises PromptError, SettingsError or ModelError with one sentence that says what was wrong and what is allowed.
    """
    settings = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, **more)
    ids = encode(tok, prompt, chat).to(target.device)
    eos_ids = () if ignore_eos else target.eos_ids
    plan = Plan(k, max_new_tokens, settings, verification, eos_ids, vocabulary_size(target, tok))
    stats = Stats(k=k if draft is not None else 0, prompt_tokens=len(ids))
    new = [token for step in decode(target, draft, ids, plan, stats, seed) for token in step]
    return torch.tensor(new, dtype=torch.int64), stats


@dataclass(frozen=True)
class Plan:
    """What stays the same through one call."""

    k: int = 4
    max_new_tokens: int = 96
    settings: Sampling = field(default_factory=Sampling)
    verification: str = "token"
    eos_ids: tuple[int, ...] = ()
    vocabulary: int | None = None

    def __post_init__(self):
        for name, least in (("k", 0), ("max_new_tokens", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise SettingsError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if self.verification not in RULES:
            raise SettingsError(f"verification must be one of {', '.join(RULES)}, not {self.verification!r}")


def decode(
    target: CausalLM,
    draft: CausalLM | Drafter | None,
    ids: torch.Tensor,
    plan: Plan,
    stats: Stats,
    seed: int | torch.Generator = 0,
) -> Iterator[list[int]]:
    """The loop itself: yields the tokens of each step as they stand, and keeps `stats` up to date.

    ids: the prompt, 1-D int64 on the target's device. However it ends, early leaving included, each cache then holds
    at most what plain decoding's would: prompt and output but for the last token.
    """
    if len(ids) > target.context:
        raise PromptError(f"the prompt has {len(ids)} tokens, and the target's context holds {target.context}")
    vocabulary = plan.vocabulary or target.vocab_size
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise PromptError(f"the prompt holds a token id outside of 0..{vocabulary - 1}, the ids that the target has")
    plan.settings.check_ids(vocabulary)
    coins, draft_coins = _coins(seed)
    drafter = None
    if draft is not None and plan.k > 0:
        drafter = ModelDrafter(draft, plan.settings, draft_coins) if isinstance(draft, CausalLM) else draft
    sequence = torch.cat((ids, ids.new_zeros(plan.max_new_tokens)))
    length, end = len(ids), len(sequence)
    try:
        with torch.inference_mode():
            _prefill(target, drafter, ids, plan, stats)
        while length < end and length <= target.context and stats.stop == "":
            with torch.inference_mode():
                new = _step(target, drafter, sequence, length, plan, coins, stats)
            length += len(new)
            yield new
        stats.stop = stats.stop or ("length" if length == end else "context")
    finally:
        target.rollback(min(target.length, length - 1))
        if drafter is not None:
            drafter.settle(length - 1, 0)


def _prefill(target: CausalLM, drafter: Drafter | None, ids: torch.Tensor, plan: Plan, stats: Stats) -> None:
    """All of the prompt but its last token, so that every step after it is the same."""
    begun = now(target.device)
    stats.reused_tokens = target.reuse(ids)
    if len(unseen := ids[target.length : -1]):
        target.forward(unseen, keep=0)
    if drafter is not None:
        drafter.begin(ids, plan.vocabulary or target.vocab_size)
    stats.prefill_seconds = now(target.device) - begun


def _step(
    target: CausalLM,
    drafter: Drafter | None,
    sequence: torch.Tensor,
    length: int,
    plan: Plan,
    coins: Coins,
    stats: Stats,
) -> list[int]:
    """One window after the first `length` tokens of sequence: writes what stands into it, and returns it."""
    begun = now(target.device)
    # The pass gives one token more than it verifies, so drafting the last of the budget would be wasted.
    room = min(plan.k, len(sequence) - length - 1, target.context - length)
    proposal = Proposal(sequence[:0], None)
    if drafter is not None and (room := min(room, drafter.room(length))) > 0:
        passes, failures = drafter.passes, drafter.failures
        proposal = drafter.propose(sequence[:length], room)
        stats.draft_passes += drafter.passes - passes
        stats.draft_failures += drafter.failures - failures
    drafted = now(target.device)
    width = len(proposal.tokens) + 1
    logits = target.forward(torch.cat((sequence[target.length : length], proposal.tokens)), keep=width)
    scored = now(target.device)
    accepted, token = _verify(logits, proposal, sequence[:length], stats.prompt_tokens, plan, coins)
    new = [*proposal.tokens[:accepted].tolist(), token]
    kept = next((i + 1 for i, token in enumerate(new) if token in plan.eos_ids), len(new))
    if kept < len(new) or new[-1] in plan.eos_ids:
        stats.stop = "eos"
    if drafter is not None and room == plan.k and kept == len(new):
        stats.record(width - 1, accepted)
    sequence[length : length + kept] = sequence.new_tensor(new[:kept])
    stands = length + min(accepted, kept)
    target.rollback(min(target.length, stands))
    if drafter is not None:
        drafter.settle(stands, accepted)
    stats.generated += kept
    stats.target_passes += 1
    stats.draft_seconds += drafted - begun
    stats.target_seconds += scored - drafted
    stats.other_seconds += now(target.device) - scored
    return new[:kept]


def _verify(
    logits: torch.Tensor, proposal: Proposal, sequence: torch.Tensor, prompt: int, plan: Plan, coins: Coins
) -> tuple[int, int]:
    """How many proposals are accepted, and the token after them. logits: (len(proposal.tokens) + 1, columns)."""
    logits, settings = logits[:, : plan.vocabulary], plan.settings
    if settings.greedy:
        return verify_greedy(argmax(logits, settings, sequence, proposal.tokens, prompt), proposal.tokens)
    p = warp(logits, settings, sequence, proposal.tokens, prompt)
    return verify(plan.verification, p, proposal.q, proposal.tokens, coins)


def _coins(seed: int | torch.Generator) -> tuple[Coins, Coins]:
    """The target's coins and the draft's, both out of one generator.

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
        if chat:
            turn = [{"role": "user", "content": prompt}]
            prompt = tok.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        # The template writes the special tokens itself.
        prompt = torch.tensor(tok.encode(prompt, add_special_tokens=not chat), dtype=torch.int64)
    if not isinstance(prompt, torch.Tensor) or prompt.dtype != torch.int64:
        raise PromptError(f"a prompt is a string or a 1-D int64 tensor of token ids, not {type(prompt).__name__}")
    if prompt.dim() != 1:
        raise PromptError(
            f"a prompt is one sequence, a 1-D tensor, not {tuple(prompt.shape)}: each sequence of a batch would accept "
            "another number of tokens, so call generate once for each"
        )
    if len(prompt) == 0:
        raise PromptError("the prompt is empty; it must hold at least one token")
    return prompt


def vocabulary_size(target: CausalLM, tok) -> int:
    """How many ids exist: padded rows of the head, beyond the tokenizer's last id, name no token."""
    return target.vocab_size if tok is None else min(target.vocab_size, len(tok))
