"""The loop of plain and of speculative decoding: they are one.

A step is: the drafter proposes x_1..x_m; one pass of the target over the tokens that it has not seen and x_1..x_m
gives p_1..p_{m+1}; verification says how many are accepted and what the next token is; both models roll back to what
stands. With m = 0 this is plain decoding. Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (2302.01318).

`sequence` holds the prompt and room for all new tokens; a window is written where its tokens will stand:

    length 5, x_1..x_3 proposed:     t t t t t x x x . .     the target is fed from its own length (4) on: t x x x
    x_1 accepted, "y" after it:      t t t t t x y . . .     the length is 7, both models roll back to 6 or less
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from .drafters import Drafter, ModelDrafter, Proposal
from .errors import PromptError, SettingsError
from .models import CausalLM
from .sampling import Sampling, argmax, warp
from .schedule import Fixed, make_schedule
from .stats import Stats, now
from .stopping import Stop, check_strings
from .verification import RULES, verify, verify_greedy


@dataclass(frozen=True)
class Plan:
    """What stays the same through one call; the arguments of `generate` that are not named here are `settings`."""

    k: int = 4
    max_new_tokens: int = 96
    settings: Sampling = field(default_factory=Sampling)
    draft_settings: Sampling | None = None
    verification: str = "token"
    schedule: str = "fixed"
    eos_ids: tuple[int, ...] = ()
    stop: str | Sequence[str] = ()
    tok: object = None
    vocabulary: int | None = None

    def __post_init__(self):
        for name, least in (("k", 0), ("max_new_tokens", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise SettingsError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if not isinstance(self.draft_settings, Sampling | None):
            raise SettingsError(f"draft_settings must be a Sampling or None, not {self.draft_settings!r}")
        if self.verification not in RULES:
            raise SettingsError(f"verification must be one of {', '.join(RULES)}, not {self.verification!r}")
        make_schedule(self.schedule, self.k)
        object.__setattr__(self, "stop", check_strings(self.stop, self.tok))


class Run:
    """One call under way: the models, what they made so far, and all state that must not outlive the call."""

    def __init__(self, target: CausalLM, draft: CausalLM | Drafter | None, ids: torch.Tensor, plan: Plan, coins):
        self.target, self.plan, self.coins = target, plan, coins[0]
        self.prompt = self.length = len(ids)
        self.vocabulary = plan.vocabulary or target.vocab_size
        self._check(ids, draft)
        # The last token of all is never fed, so that one more than the context holds can be decoded.
        self.sequence = torch.cat((ids, ids.new_zeros(min(plan.max_new_tokens, target.context + 1 - len(ids)))))
        self.stats = Stats(k=plan.k if draft is not None else 0, prompt_tokens=len(ids))
        self.stop = Stop(plan.eos_ids, plan.stop, plan.tok)
        self.schedule: Fixed = make_schedule(plan.schedule, plan.k)
        self.drafter = draft if plan.k > 0 else None
        if isinstance(self.drafter, CausalLM):
            settings = plan.settings if plan.draft_settings is None else plan.draft_settings
            go_on = None if plan.schedule == "fixed" else self.schedule.go_on
            self.drafter = ModelDrafter(draft, settings, coins[1], go_on)

    def _check(self, ids: torch.Tensor, draft) -> None:
        if not (draft is None or isinstance(draft, CausalLM) or hasattr(draft, "propose")):
            raise SettingsError(f"draft must be a model of load_models, a drafter or None, not {type(draft).__name__}")
        if len(ids) > self.target.context:
            raise PromptError(f"the prompt has {len(ids)} tokens, and the target's context holds {self.target.context}")
        if int(ids.min()) < 0 or int(ids.max()) >= self.vocabulary:
            raise PromptError(
                f"the prompt holds a token id outside of 0..{self.vocabulary - 1}, the ids that the target has"
            )
        self.plan.settings.check_ids(self.vocabulary)


def decode(run: Run) -> Iterator[list[int]]:
    """The loop itself: yields the tokens of each step as they stand, and keeps `run.stats` up to date.

    However it ends, early leaving and errors included, each cache then holds at most what plain decoding's would:
    prompt and output but for the last token.
    """
    try:
        with torch.inference_mode():
            _prefill(run)
        while run.length < len(run.sequence) and run.stats.stop == "":
            with torch.inference_mode():
                new = _step(run)
            yield new
        full = run.stats.generated == run.plan.max_new_tokens
        run.stats.stop = run.stats.stop or ("length" if full else "context")
    finally:
        run.target.rollback(min(run.target.length, run.length - 1))
        if run.drafter is not None:
            run.drafter.settle(run.length - 1)


def _prefill(run: Run) -> None:
    """All of the prompt but its last token, so that every step after it is the same."""
    target, prompt = run.target, run.sequence[: run.length]
    begun = now(target.device)
    run.stats.reused_tokens = target.reuse(prompt)
    if len(unseen := prompt[target.length : -1]):
        target.forward(unseen, keep=0)
    if run.drafter is not None:
        run.drafter.begin(prompt, run.vocabulary)
    run.stats.prefill_seconds = now(target.device) - begun


def _step(run: Run) -> list[int]:
    """One window: draft, score, verify, and roll back to what stands. Returns the new tokens."""
    target, stats, length = run.target, run.stats, run.length
    begun = now(target.device)
    wanted, proposal = _propose(run)
    drafted = now(target.device)
    end = length + len(proposal.tokens)
    run.sequence[length:end] = proposal.tokens
    logits = target.forward(run.sequence[target.length : end], keep=end - length + 1)
    scored = now(target.device)
    proposed = proposal.tokens.tolist()
    accepted, token = _verify(run, logits, proposed, proposal.q)
    new = [*proposed[:accepted], token]
    kept, stats.stop = run.stop.look(new)
    if wanted and kept == len(new):
        stats.record(len(proposed), accepted)
    run.schedule.settle(len(proposed), accepted)
    if kept > accepted:
        run.sequence[length + accepted] = token
    run.length += kept
    # The last token is always fed by the pass that follows it.
    target.rollback(run.length - 1)
    if run.drafter is not None:
        run.drafter.settle(run.length - 1)
    stats.generated += kept
    stats.target_passes += 1
    stats.draft_seconds += drafted - begun
    stats.target_seconds += scored - drafted
    stats.other_seconds += now(target.device) - scored
    return new[:kept]


def _propose(run: Run) -> tuple[bool, Proposal]:
    """Whether nothing but the schedule limits the window, and what is proposed."""
    drafter, length = run.drafter, run.length
    if drafter is None:
        return False, Proposal(run.sequence[:0], None)
    # The pass gives one token more than it verifies, so drafting the last of the budget would be wasted.
    left = min(len(run.sequence) - length - 1, drafter.room(length))
    limit = min(run.schedule.limit, left)
    if limit <= 0:
        return False, Proposal(run.sequence[:0], None)
    passes, failures = drafter.passes, drafter.failures
    proposal = drafter.propose(run.sequence[:length], limit)
    run.stats.draft_passes += drafter.passes - passes
    run.stats.draft_failures += drafter.failures - failures
    return limit == run.schedule.limit, proposal


def _verify(run: Run, logits: torch.Tensor, proposed: list[int], q) -> tuple[int, int]:
    """How many proposals are accepted, and the token after them. logits: (len(proposed) + 1, columns)."""
    settings = run.plan.settings
    logits = logits[:, : run.vocabulary]
    if settings.greedy:
        context, window = run.sequence[: run.length], run.sequence[run.length : run.length + len(proposed)]
        return verify_greedy(argmax(logits, settings, context, window, run.prompt).tolist(), proposed)
    return verify(run.plan.verification, Rows(run, logits), q, proposed, run.coins)


class Rows(Sequence):
    """p (vocabulary,) of each position of a window, made when it is first asked for: after a rejection none is."""

    def __init__(self, run: Run, logits: torch.Tensor):
        self._run, self._logits, self._made = run, logits, {}

    def __len__(self) -> int:
        return len(self._logits)

    def __getitem__(self, i: int) -> np.ndarray:
        if i not in self._made:
            run = self._run
            context = run.sequence[: run.length + i]
            row = warp(self._logits[i : i + 1], run.plan.settings, context, context[:0], run.prompt)
            self._made[i] = row[0].numpy(force=True)
        return self._made[i]
