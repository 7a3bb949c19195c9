"""From logits to the distribution that is sampled from: penalties, then temperature, top-k, top-p and min-p.

The order is that of transformers' generate(): logit bias, repetition penalty, (presence and frequency
penalty, which transformers lacks), forbidden tokens, temperature, top-k, top-p, min-p. What comes out, p,
*is* the target's law: exactness of speculative decoding is relative to it. Everything is computed row by row
in float32 (float64 if the logits have it), so that p does not depend on how many rows a pass had.

Every row has its own past. Row i of a pass over a window of proposals is conditioned on `context` (the
sequence up to and including the last accepted token) and on window[:i]:

    context = [5, 7], window = [7, 9]:   row 0 sees 5 7   row 1 sees 5 7 7   row 2 sees 5 7 7 9

so a penalty counts a proposal only in the rows after it, and a rejected proposal never reaches the next
context.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from .errors import ModelError, SettingsError


@dataclass(frozen=True)
class Sampling:
    """How p is made of logits; the defaults are greedy decoding. Raises SettingsError on a value outside its
    range.

    temperature: 0 is greedy (the truncations below then have nothing to do), else at least 1e-5. top_k: 0 is
    off. top_p in (0, 1], min_p in [0, 1). Tokens that tie with the last one kept by top-k or top-p are kept
    as well, since cutting ties would make p depend on the order in which a sort happened to leave them.
    repetition_penalty > 0 divides positive and multiplies negative logits of every token seen, prompt
    included (Keskar et al. 2019, arXiv 1909.05858, and transformers). presence_penalty is subtracted once,
    frequency_penalty once per occurrence, from the logits of the tokens *generated* so far; the prompt does
    not count, as with OpenAI and vLLM. logit_bias: token id -> what is added to its logit. forbidden: ids
    that are never produced.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    forbidden: tuple[int, ...] = ()

    def __post_init__(self):
        _demand("temperature", self.temperature, lambda t: t == 0 or t >= 1e-5, "0 (greedy) or at least 1e-5")
        _demand("top_k", self.top_k, lambda k: isinstance(k, int) and k >= 0, "a whole number, 0 is off")
        _demand("top_p", self.top_p, lambda p: 0 < p <= 1, "above 0 and at most 1 (off)")
        _demand("min_p", self.min_p, lambda p: 0 <= p < 1, "from 0 (off) up to, but not, 1")
        _demand("repetition_penalty", self.repetition_penalty, lambda r: r > 0, "above 0 (1 is off)")
        _demand("presence_penalty", self.presence_penalty, lambda r: True, "a finite number")
        _demand("frequency_penalty", self.frequency_penalty, lambda r: True, "a finite number")
        if not isinstance(self.logit_bias, Mapping):
            raise SettingsError(f"logit_bias must be a mapping from token ids to numbers, not {self.logit_bias!r}")
        if not isinstance(self.forbidden, list | tuple | set | frozenset):
            raise SettingsError(f"forbidden must be a list of token ids, not {self.forbidden!r}")
        for token, bias in self.logit_bias.items():
            _demand("logit_bias", token, _is_id, "a mapping from token ids, whole numbers from 0")
            _demand("logit_bias", bias, lambda b: True, "finite for every token")
        for token in self.forbidden:
            _demand("forbidden", token, _is_id, "a list of token ids, whole numbers from 0")

    @property
    def greedy(self) -> bool:
        """True where the most probable token is always taken."""
        return self.temperature == 0

    @property
    def plain_logits(self) -> bool:
        """True where nothing is added to the logits, so that they need neither a copy nor the context."""
        return not (self.logit_bias or self.forbidden or self._penalizes)

    @property
    def _penalizes(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def check_ids(self, vocab_size: int) -> None:
        """Raises SettingsError if logit_bias or forbidden names an id that the vocabulary does not have."""
        for token in (*self.logit_bias, *self.forbidden):
            if token >= vocab_size:
                raise SettingsError(f"logit_bias and forbidden name ids below {vocab_size}, not {token}")


def adjust(
    logits: torch.Tensor, settings: Sampling, context: torch.Tensor, window: torch.Tensor, prompt: int = 0
) -> torch.Tensor:
    """Logits with penalties, bias and forbidden tokens applied: float32, or float64 if the input is.

    logits: (n, V); context: int64 (c,), the sequence that row 0 continues; window: int64, at least n - 1
    long, the tokens that rows 1.. have seen on top of it; prompt: how many tokens of the context are the
    prompt's. The input stays as it is; with nothing to apply it may be returned itself. Ids at or above V are
    passed over.
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if settings.plain_logits:
        return logits.to(dtype)
    scores = logits.to(dtype, copy=True)
    if settings.logit_bias:
        ids = [i for i in settings.logit_bias if i < scores.shape[1]]
        scores[:, ids] += scores.new_tensor([settings.logit_bias[i] for i in ids])
    if settings.repetition_penalty != 1:
        ids, counts = _counts(context, window, scores)
        seen = scores[:, ids]
        scaled = torch.where(seen < 0, seen * settings.repetition_penalty, seen / settings.repetition_penalty)
        scores[:, ids] = torch.where(counts > 0, scaled, seen)
    if settings.presence_penalty or settings.frequency_penalty:
        ids, counts = _counts(context[prompt:], window, scores)
        present = (counts > 0).to(scores.dtype)
        scores[:, ids] -= settings.frequency_penalty * counts + settings.presence_penalty * present
    if settings.forbidden:
        scores[:, [i for i in settings.forbidden if i < scores.shape[1]]] = -math.inf
    return scores


def warp(
    logits: torch.Tensor, settings: Sampling, context: torch.Tensor, window: torch.Tensor, prompt: int = 0
) -> torch.Tensor:
    """The distribution p (n, V) that row i is sampled from; arguments as in `adjust`.

    Float32, or float64 if the logits are. Greedy gives exact one-hot rows at the argmax. Raises ModelError if
    a row holds NaN or +inf, or leaves no token at all.
    """
    if settings.greedy:
        best = argmax(logits, settings, context, window, prompt)
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        return torch.zeros(logits.shape, dtype=dtype, device=logits.device).scatter_(1, best[:, None], 1.0)
    scores = adjust(logits, settings, context, window, prompt)
    if settings.temperature != 1:
        scores = scores / settings.temperature
    if 0 < settings.top_k < scores.shape[1]:
        kept = scores.topk(settings.top_k).values[:, -1]
        scores = scores.clone() if scores is logits else scores
        _drop_below(scores, kept, -math.inf)
    p = scores.softmax(-1)
    # One NaN, or no finite logit, makes the whole row NaN: one column tells.
    _demand_numbers(p[:, 0])
    if settings.top_p < 1 or settings.min_p > 0:
        floor = settings.min_p * p.amax(-1).cpu()
        if settings.top_p < 1:
            floor = torch.stack([_nucleus(row, settings.top_p) for row in p]).maximum(floor)
        _drop_below(p, floor, 0.0)
        for row in p:
            # Row by row, for a sum over several rows at once is ordered otherwise than a sum over one.
            row /= row.sum()
    return p


def argmax(
    logits: torch.Tensor, settings: Sampling, context: torch.Tensor, window: torch.Tensor, prompt: int = 0
) -> torch.Tensor:
    """The greedy choice of each row, int64 (n,); the lowest id among equals. Arguments as in `warp`."""
    scores = logits if settings.plain_logits else adjust(logits, settings, context, window, prompt)
    values, best = peak(scores)
    _demand_numbers(values)
    return best


def peak(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest score of each row (n,), NaN if the row holds one, and the lowest id that has it, int64 (n,)."""
    if scores.device.type == "cpu" and scores.dtype == torch.float32:  # numpy takes a third of torch's time
        found = scores.numpy()
        best = found.argmax(-1)
        return torch.from_numpy(found[np.arange(len(best)), best]), torch.from_numpy(best)
    if scores.shape[1] % 64:
        return scores.max(-1)
    # Torch's argmax is not vectorized on the CPU, amax is: look for the block of 64 first.
    blocks = scores.unflatten(-1, (-1, 64))
    values, block = blocks.amax(-1).max(-1)
    return values, 64 * block + blocks[torch.arange(len(scores), device=scores.device), block].argmax(-1)


def _counts(past: torch.Tensor, window: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids (u,) that occur in past or window, and how often each row (n, u) has seen them."""
    n, vocab = scores.shape
    seen = torch.cat([past, window[: n - 1]])
    ids, place = seen.unique(return_inverse=True)
    counts = scores.new_zeros(n, len(ids))
    counts[0] = place[: len(past)].bincount(minlength=len(ids))
    counts[torch.arange(1, n, device=place.device), place[len(past) :]] = 1.0
    return ids[ids < vocab], counts.cumsum(0)[:, ids < vocab]


def _nucleus(row: torch.Tensor, top_p: float) -> torch.Tensor:
    """The least probability in the smallest set of likeliest tokens that has at least top_p of the mass.

    A sort of the whole vocabulary costs as much as a small model's pass. All tokens below (1 - top_p) / V
    together have less than 1 - top_p, so none of them is in the set: the sort is of the others (halved for
    rounding).
    """
    # On the CPU from there on: float64 exists there, whatever the device.
    likely = row[row >= 0.5 * (1 - top_p) / len(row)].sort(descending=True).values.cpu()
    before = likely.cumsum(0, dtype=torch.float64) - likely
    return likely[(before < top_p).sum() - 1]


def _drop_below(rows: torch.Tensor, floor: torch.Tensor, value: float) -> None:
    """Sets entries of rows (n, V) under floor (n,) to value, in place; NaN stays."""
    floor = floor.cpu()
    below = torch.nextafter(floor, torch.full_like(floor, -math.inf)).tolist()
    for row, limit in zip(rows, below, strict=True):
        torch.nn.functional.threshold_(row, limit, value)


def _demand_numbers(row_values: torch.Tensor) -> None:
    for row, value in enumerate(row_values.tolist()):
        if not math.isfinite(value):
            raise ModelError(
                f"no token can be chosen from row {row} of the model's logits: they hold NaN or infinity, "
                "or every token is forbidden"
            )


def _is_id(token) -> bool:
    return isinstance(token, int) and not isinstance(token, bool) and token >= 0


def _demand(name: str, value, allowed, words: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not (number and allowed(value)):
        raise SettingsError(f"{name} must be {words}, not {value!r}")
