"""How speculative decoding would have gone along an output that is known: in closed form, without a model.

Given that the target's output was x_1 x_2 .., with p_i and q_i the probabilities of x_i under target and draft, the
number of accepted proposals of a window that begins before x_1 has a law of its own. The chance that at least n are:

    token   product of min(1, q_i / p_i) over i <= n
    match   product of q_i
    block   r_n times the product of q_i / p_i, with r_0 = 1 and r_i = min(1, r_(i-1) p_i / q_i)

since a window that accepts exactly n and then emits x_(n+1) has the joint probability, proposals and coins together,
of the product of min(p_i, q_i) times max(p_(n+1) - q_(n+1), 0) by rule token (and likewise by the others), of which
the output's own, the product of p_i, is divided out. An average over outputs of the target is then unbiased for the
decoder's own figures, whatever the rule and k (Leviathan et al. 2023, arXiv 2211.17192; Sun et al. 2024, 2403.10444).
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Expected:
    """Expectations of what `Stats` counts, along outputs: whole windows only, but for passes and generated."""

    generated: float = 0.0
    passes: float = 0.0
    windows: float = 0.0
    accepted_by_position: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def row(self) -> np.ndarray:
        """All of it as one row of numbers, to be summed over prompts."""
        return np.array([self.generated, self.passes, self.windows, *self.accepted_by_position])


def survival(rule: str, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The chance that at least 0, 1, .., n proposals are accepted, (n + 1,), where the output's next n tokens have
    probabilities p and q, (n,) each."""
    ratios = q / p
    if rule == "token":
        steps = np.minimum(1.0, ratios)
    elif rule == "match":
        steps = q
    else:
        best, steps = 1.0, np.empty(len(p))
        for i, ratio in enumerate(ratios):
            # The product of ratios times r: r falls by just as much as a ratio exceeds it.
            after = min(1.0, best / ratio) if ratio > 0 else 1.0
            steps[i], best = ratio * after / best, after
    return np.concatenate(([1.0], np.cumprod(steps)))


def expect(rule: str, k: int, p: list[float], q: list[float]) -> Expected:
    """What decoding with that rule and k would have counted along one output of len(p) tokens."""
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    length = len(p)
    begins, found = np.zeros(length + 1), Expected(length, accepted_by_position=np.zeros(k))
    begins[0] = 1.0
    for at in range(length):
        width = min(k, length - at - 1)
        least = survival(rule, p[at : at + width], q[at : at + width])
        begins[at + 1 : at + width + 2] += begins[at] * (least - np.append(least[1:], 0.0))
        found.passes += begins[at]
        if width == k:
            found.windows += begins[at]
            found.accepted_by_position += begins[at] * least[1:]
    return found


def figures(rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(α, τ, rates by position) of summed rows (.., 3 + k): (..), (..) and (.., k); NaN where no window was whole."""
    generated, passes, windows = rows[..., 0], rows[..., 1], rows[..., 2]
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = rows[..., 3:] / windows[..., None]
        return rates.mean(-1), generated / passes, rates
