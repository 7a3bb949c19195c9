"""Prompt lookup: propose what followed the last time that the sequence ended as it does now. No model at all.

It costs nothing and helps where output repeats input (summaries, code), so it is the baseline that a draft model has
to beat. Yang et al. 2023 (arXiv 2304.04487); Saxena 2023, prompt lookup decoding.
"""

import torch

from .drafters import Proposal

LONGEST = 3


class PromptLookup:
    """A drafter that copies from the context: after the latest earlier place of its last 3 tokens, else 2, else 1.

        a b c d a b   ->   "a b" stood at the beginning; "c d a b" is proposed

    The proposals are certain: q is a point mass on each. `vocabulary` and the context need no care, for everything that
    is copied stands in the sequence already.
    """

    passes = failures = 0

    def begin(self, prompt: torch.Tensor, vocabulary: int) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # an n-gram -> where the latest one that something follows ends

    def room(self, length: int) -> int:
        return length

    def propose(self, sequence: torch.Tensor, limit: int) -> Proposal:
        self._read(sequence)
        for n in range(min(LONGEST, len(self._tokens)), 0, -1):
            end = self._ends.get(tuple(self._tokens[-n:]))
            if end is not None:
                return Proposal(sequence[end : end + limit], None)
        return Proposal(sequence[:0], None)

    def _read(self, sequence: torch.Tensor) -> None:
        """Takes in the new tokens; an n-gram is entered when the token after it is known."""
        for token in sequence[len(self._tokens) :].tolist():
            for n in range(1, min(LONGEST, len(self._tokens)) + 1):
                self._ends[tuple(self._tokens[-n:])] = len(self._tokens)
            self._tokens.append(token)

    def settle(self, length: int) -> None:
        """Nothing to forget: only tokens that stand are ever read."""
