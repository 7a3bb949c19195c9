"""Toy language models, small enough for every one of their sequences to be listed.

The logits of a context are pseudo-random numbers seeded with the whole context, so that a cache that holds a wrong
token anywhere, or one token too many or too few, gives other logits. They are float64, and so is all that follows.
"""

import numpy as np
import torch

from src.speculative.coins import Coins
from src.speculative.drafters import Proposal
from src.speculative.models import CausalLM


class Toy(CausalLM):
    """A table from contexts to logits.

    like: another toy, whose logits are added to this one's own times `noise`: a draft that resembles its target.
    order: how many of the last tokens matter (None: all, and so their number). keeps: at most that many ids of a row,
    another set for each context, have a finite logit. token_ids: the columns are those ids only (a trimmed head).
    padding: columns beyond the vocabulary, which hold large numbers that nothing must ever look at.
    """

    exact = True

    def __init__(
        self, vocabulary, seed, *, like=None, noise=1.0, order=None, keeps=None, token_ids=None, padding=0,
        context=32, eos_ids=(),
    ):  # fmt: skip
        columns = vocabulary if token_ids is None else len(token_ids)
        super().__init__(columns + padding, context, dtype=torch.float64)
        self.vocabulary, self.seed, self.like, self.noise, self.order = vocabulary, seed, like, noise, order
        self.keeps, self.padding, self.eos_ids = keeps, padding, tuple(eos_ids)
        self.token_ids = None if token_ids is None else torch.tensor(token_ids)
        self._rows = {}

    def row(self, context: tuple[int, ...]) -> list[float]:
        """The logits of every id of the vocabulary after a context, padding and trimming apart."""
        past = context if self.order is None else context[len(context) - self.order :]
        chance = np.random.default_rng([self.seed, *past])
        values = self.noise * chance.normal(size=self.vocabulary) * 1.5
        if self.like is not None:
            values = values + np.array(self.like.row(context))
        if self.keeps is not None:
            values[chance.permutation(self.vocabulary)[self.keeps :]] = -np.inf
        return values.tolist()

    def _run(self, ids, start, keep):
        tokens = (*self._tokens[:start].tolist(), *ids.tolist())
        rows = [self._columns(tokens[: start + i + 1]) for i in range(len(ids) - keep, len(ids))]
        return torch.stack(rows) if rows else torch.empty(0, self.vocab_size, dtype=self.dtype)

    def _columns(self, context):
        context = context if self.order is None else context[len(context) - self.order :]
        if context not in self._rows:
            row = torch.tensor(self.row(context), dtype=torch.float64)
            row = row if self.token_ids is None else row[self.token_ids]
            self._rows[context] = torch.cat((row, torch.full((self.padding,), 50.0, dtype=torch.float64)))
        return self._rows[context]


class Restarting(CausalLM):
    """Another toy that forgets everything after every `period` tokens: one call decodes many short sequences."""

    exact = True

    def __init__(self, toy, period, context):
        super().__init__(toy.vocab_size, context, dtype=torch.float64)
        self.toy, self.period, self._rows = toy, period, {}

    def _run(self, ids, start, keep):
        first = start + len(ids) - keep
        base = (first + 1) // self.period * self.period
        tokens = (self._tokens[base:start].tolist() if base < start else []) + ids.tolist()[max(0, base - start) :]
        rows = [self._row(tokens, base, place + 1) for place in range(first, first + keep)]
        return torch.cat(rows) if rows else torch.empty(0, self.vocab_size, dtype=self.dtype)

    def _row(self, tokens, base, end):
        context = tuple(tokens[end // self.period * self.period - base : end - base])
        if context not in self._rows:
            self._rows[context] = torch.tensor([self.toy.row(context)], dtype=torch.float64)
        return self._rows[context]


class Guesses:
    """A drafter that draws from the rows of a `Restarting` toy without a pass of a model: a tenth of the time."""

    passes = failures = 0

    def __init__(self, model, seed):
        self.model, self.coins, self._rows = model, Coins(torch.Generator().manual_seed(seed)), {}

    def begin(self, prompt, vocabulary):
        self.period = self.model.period

    def room(self, length):
        return self.model.context - length

    def propose(self, sequence, limit):
        place = len(sequence)
        tokens, rows, context = [], [], tuple(sequence[place // self.period * self.period :].tolist())
        for _ in range(limit):
            if context not in self._rows:
                self._rows[context] = torch.tensor(self.model.toy.row(context)).softmax(-1).numpy()
            rows.append(self._rows[context])
            tokens.append(self.coins.pick(rows[-1]))
            context = (*context, tokens[-1]) if (place + len(tokens)) % self.period else ()
        return Proposal(torch.tensor(tokens), rows)

    def settle(self, length):
        pass


class Scripted(CausalLM):
    """Puts all its mass on script[position]: the token that follows position + 1 tokens."""

    exact = True

    def __init__(self, vocabulary, script, *, context=64, eos_ids=()):
        super().__init__(vocabulary, context)
        self.script, self.eos_ids = script, tuple(eos_ids)

    def _run(self, ids, start, keep):
        places = range(start + len(ids) - keep, start + len(ids))
        logits = torch.zeros(keep, self.vocab_size)
        for i, place in enumerate(places):
            logits[i, self.script[place % len(self.script)]] = 9.0
        return logits


class Letters:
    """A tokenizer of one letter a token; `pieces` gives other texts. Its length is the true vocabulary's."""

    def __init__(self, vocabulary, pieces=None):
        self.pieces = pieces or [chr(97 + i) for i in range(vocabulary)]

    def __len__(self):
        return len(self.pieces)

    def get_vocab(self):
        return {f"{i} {piece}": i for i, piece in enumerate(self.pieces)}

    def encode(self, text, add_special_tokens=True):
        return [self.pieces.index(letter) for letter in text]

    def decode(self, ids, skip_special_tokens=False):
        return "".join(self.pieces[int(i)] for i in ids)
