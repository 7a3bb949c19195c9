"""All randomness of decoding: uniform numbers from one generator, and the two decisions that are made with them.

Whatever decoding decides by chance, it decides through these methods. The oracle of the tests relies on that: it puts
an enumeration of all outcomes in the place of `Coins.uniform` and so computes the decoder's law exactly.
"""

import numpy as np
import torch

from .errors import ModelError

BLOCK = 64
BATCH = 64


class Coins:
    """A stream of uniform numbers out of a torch.Generator of its own; each decision below uses up exactly one."""

    def __init__(self, generator: torch.Generator):
        self.generator = generator
        self._numbers: list[float] = []

    def uniform(self) -> float:
        """A float64 uniform in [0, 1): never 1."""
        if not self._numbers:
            # Many at once: a call of torch costs more than all else that a decision does.
            device = self.generator.device
            drawn = torch.rand(BATCH, dtype=torch.float64, generator=self.generator, device=device)
            self._numbers = drawn.tolist()[::-1]
        return self._numbers.pop()

    def flip(self, numerator: float, denominator: float) -> bool:
        """True with probability min(1, numerator / denominator), and never where the numerator is 0.

        The comparison is strict, for a uniform number can be 0: with <=, a token of probability 0 would be accepted.
        """
        return self.uniform() * denominator < numerator

    def pick(self, weights: np.ndarray) -> int:
        """An index drawn in proportion to weights (V,), by inverting their running sum in float64.

        The weights need not sum to 1. An index of weight 0 never comes out: the running sum does not grow there, and
        the first entry *above* the threshold is taken. Raises ModelError if the weights have no positive sum.
        """
        if len(weights) <= BLOCK:
            sums = weights.cumsum(dtype=np.float64)
            return _first_above(sums, self._threshold(sums))
        # A running sum over a whole vocabulary cannot be vectorized: take one over the sums of blocks, then one inside.
        sums = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK), dtype=np.float64).cumsum()
        threshold = self._threshold(sums)
        block = _first_above(sums, threshold)
        inside = weights[BLOCK * block : BLOCK * (block + 1)].cumsum(dtype=np.float64)
        return BLOCK * block + _first_above(inside, threshold - (sums[block - 1] if block else 0.0))

    def _threshold(self, sums: np.ndarray) -> float:
        total = sums.item(-1)
        if not 0 < total < float("inf"):
            raise ModelError(f"cannot draw a token from weights that sum to {total}")
        return self.uniform() * total


def _first_above(sums: np.ndarray, threshold: float) -> int:
    """The first place of a running sum above the threshold; if rounding put it at the end, the last that grew."""
    place = int(sums.searchsorted(threshold, side="right"))
    return place if place < len(sums) else int(sums.searchsorted(sums[-1]))
