"""What proposes tokens: up to k of them, each with the distribution that it was really drawn from."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch

from .coins import Coins
from .errors import ModelError
from .models import CausalLM
from .sampling import Sampling, adjust, peak, warp


class Proposal(NamedTuple):
    """tokens: int64 (m,). q: m rows (vocabulary,), what each was drawn from; None if each was certain."""

    tokens: torch.Tensor
    q: list[np.ndarray] | None


class Drafter(Protocol):
    """The loop calls `begin` once, then `propose` and `settle` in turn.

    passes: forward passes of a draft model so far. failures: steps in which it could not propose for want of numbers.
    """

    passes: int
    failures: int

    def begin(self, prompt: torch.Tensor, vocabulary: int) -> None:
        """Prefill of prompt (n,) int64, all but its last token. vocabulary: ids from there on must not be proposed."""

    def room(self, length: int) -> int:
        """The most tokens that it could propose after a sequence of that length, for want of context."""

    def propose(self, sequence: torch.Tensor, limit: int) -> Proposal:
        """At most `limit` tokens to follow sequence (n,) int64; fewer, or none, are allowed."""

    def settle(self, length: int) -> None:
        """The first `length` tokens stand; forget what lies beyond."""


class ModelDrafter:
    """Proposes what a draft model says, drawn as the target's tokens are: greedily, or from its warped logits.

    Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; the draft is warped like the target since acceptance is
    best where both distributions were shaped alike. go_on(confidence) may end a window after a token that was drawn
    with that probability; the token stays proposed, for dropping it would bias the output.
    """

    def __init__(self, model: CausalLM, settings: Sampling, coins: Coins, go_on: Callable | None = None):
        self.model, self.settings, self.coins, self.go_on = model, settings, coins, go_on
        self.passes = self.failures = 0
        self.vocabulary = self.columns = model.vocab_size
        self.prompt, self._rows = 0, []

    def begin(self, prompt: torch.Tensor, vocabulary: int) -> None:
        """Raises ModelError if a trimmed head names tokens that the target lacks."""
        self.vocabulary, self.prompt = vocabulary, len(prompt)
        self._rows = []
        self.columns = min(vocabulary, self.model.real_ids or vocabulary)
        if self.model.token_ids is not None and int(self.model.token_ids.max()) >= vocabulary:
            raise ModelError(
                f"the draft's head names token {int(self.model.token_ids.max())}, and the target has ids "
                f"0..{vocabulary - 1}; allowed is a draft with the target's tokens"
            )
        # Greedily drafted tokens need no law, so that it does not matter how the draft rounded.
        self.model.reuse(prompt, loosely=self.settings.greedy)
        unseen = prompt[self.model.length : -1]
        if len(unseen) and len(prompt) - 1 <= self.model.context:
            self.model.forward(unseen, keep=0)

    def room(self, length: int) -> int:
        return self.model.context - length + 1  # its own last proposal need not be fed

    def propose(self, sequence: torch.Tensor, limit: int) -> Proposal:
        draw = self._greedy if self.settings.greedy else self._sampled
        return draw(sequence, limit)

    def _greedy(self, sequence: torch.Tensor, limit: int) -> Proposal:
        tokens, peaks, unseen = [], [], sequence[self.model.length :]
        for _ in range(limit):
            logits = self._adjusted(self._next(unseen), sequence, tokens)
            value, token = peak(logits)
            if self._narrow():
                token = self.model.token_ids[token]
            tokens.append(unseen := token)
            peaks.append(value)
            if self.go_on and not self.go_on(float(torch.softmax(logits.float(), -1).max())):
                break
        # One look for the whole window, so that an accelerator is not made to wait for each token.
        bad = (~torch.cat(peaks).isfinite()).nonzero()
        proposed = torch.cat(tokens)
        if len(bad):
            self.failures += 1
            proposed = proposed[: int(bad[0, 0])]
        return Proposal(proposed, None)

    def _sampled(self, sequence: torch.Tensor, limit: int) -> Proposal:
        tokens, rows, unseen = [], [], sequence[self.model.length :]
        for _ in range(limit):
            try:
                q = self._distribution(self._next(unseen), sequence, tokens)
            except ModelError:
                self.failures += 1
                break
            token = self.coins.pick(q)
            tokens.append(unseen := sequence.new_tensor([token]))
            rows.append(q)
            if self.go_on and not self.go_on(q.item(token)):
                break
        return Proposal(torch.cat(tokens) if tokens else sequence[:0], rows)

    def _next(self, unseen: torch.Tensor) -> torch.Tensor:
        """Logits (1, n) of the next token, of the ids that may be proposed."""
        self.passes += 1
        logits = self.model.forward(unseen, keep=1)
        return logits if self.model.token_ids is not None else logits[:, : self.columns]

    def _narrow(self) -> bool:
        """Whether columns are those of a trimmed head still, and not token ids."""
        return self.model.token_ids is not None and self.settings.plain_logits

    def _adjusted(self, logits: torch.Tensor, sequence: torch.Tensor, tokens: list) -> torch.Tensor:
        if self.settings.plain_logits:
            return logits
        seen = torch.cat((sequence, *tokens))
        return adjust(self._spread(logits, -torch.inf), self.settings, seen, sequence[:0], self.prompt)

    def _distribution(self, logits: torch.Tensor, sequence: torch.Tensor, tokens: list) -> np.ndarray:
        """q (vocabulary,), zero where the draft has no column."""
        if self.settings.plain_logits:
            q = self._placed(warp(logits, self.settings, sequence, sequence[:0]), len(tokens))
        else:
            seen = torch.cat((sequence, *tokens))
            q = warp(self._spread(logits, -torch.inf), self.settings, seen, sequence[:0], self.prompt)
        return q[0].numpy(force=True)

    def _placed(self, q: torch.Tensor, place: int) -> torch.Tensor:
        """`_spread` with zeros; where the columns are always the same, into a row that is kept for this place."""
        if self.model.token_ids is None:
            return self._spread(q, 0.0)
        if place == len(self._rows):
            self._rows.append(q.new_zeros(1, self.vocabulary))
        self._rows[place][:, self.model.token_ids] = q
        return self._rows[place]

    def _spread(self, rows: torch.Tensor, fill: float) -> torch.Tensor:
        """Columns of the draft (1, n) put where their token ids are, (1, vocabulary)."""
        ids = self.model.token_ids
        if ids is None:
            missing = self.vocabulary - rows.shape[-1]
            return torch.nn.functional.pad(rows, (0, missing), value=fill) if missing else rows
        wide = rows.new_full((1, self.vocabulary), fill)
        wide[:, ids] = rows
        return wide

    def settle(self, length: int) -> None:
        self.model.rollback(min(self.model.length, length))
