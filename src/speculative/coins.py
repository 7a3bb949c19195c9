"""All randomness of decoding: uniform numbers from one generator, and the two decisions that are made with
them.

Whatever decoding decides by chance, it decides through these methods. The oracle of the tests relies on that:
it puts an enumeration of all outcomes in the place of `Coins.uniform` and so computes the decoder's law
exactly.
"""

import torch

from .errors import ModelError


class Coins:
    """A stream of uniform numbers out of a torch.Generator; each decision below uses up exactly one."""

    def __init__(self, generator: torch.Generator):
        self.generator = generator

    def uniform(self) -> float:
        """A float64 uniform in [0, 1): never 1."""
        device = self.generator.device
        return torch.rand((), dtype=torch.float64, generator=self.generator, device=device).item()

    def flip(self, numerator: float, denominator: float) -> bool:
        """True with probability min(1, numerator / denominator), and never where the numerator is 0.

        The comparison is strict, for a uniform number can be 0: with <=, a token of probability 0 would be
        accepted.
        """
        return self.uniform() * denominator < numerator

    def pick(self, weights: torch.Tensor) -> int:
        """An index drawn in proportion to weights (V,), by inverting their running sum in float64.

        The weights need not sum to 1. An index of weight 0 never comes out: the running sum does not grow
        there, and the first entry *above* the threshold is taken. Raises ModelError if the weights do not
        have a positive sum.
        """
        # On the CPU whatever the device: float64 exists there, and the sum is sequential and so never
        # decreases.
        sums = weights.cpu().cumsum(0, dtype=torch.float64)
        total = sums[-1].item()
        if not 0 < total < float("inf"):
            raise ModelError(f"cannot draw a token from weights that sum to {total}")
        index = int(torch.searchsorted(sums, self.uniform() * total, right=True))
        if index == len(sums):  # the product was rounded up to the total
            index = int(weights.nonzero()[-1])
        return index
