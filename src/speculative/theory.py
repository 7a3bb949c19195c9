"""The closed forms of speculative decoding: expected tokens, walltime factor, best k, break-even.

Everywhere: k is the number of draft tokens a step; `acceptance` is either one rate α, with which each draft token is
accepted independently of the others, or a list of k or more *cumulative* rates, entry i being the probability that
draft tokens 0..i are all accepted (what `Stats` counts by position; `cumulative` makes it of conditional rates).
Costs are in units of a one-row target pass: c of a draft pass, v(m) of a target pass over m rows, given as a list
whose entry m - 1 is v(m) (None: every width costs 1), o of what else a step does, plain_o of what else a step of
plain decoding does, catch_up of what a draft pass over two tokens costs more than one over one: the first pass after a
step whose k tokens were all accepted, for the draft was never fed the last of them (0: nothing).

Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192),
section 3; there k is γ, v is 1, and o and catch_up are 0.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul


def cumulative(conditional: Iterable[float]) -> list[float]:
    """Cumulative rates of conditional ones: entry i of these is the rate at which token i is accepted once 0..i-1 are.

    Worked example: 0.8, 0.5, 0.5 becomes 0.8, 0.4, 0.2.
    """
    return list(accumulate(conditional, mul))


def survival(acceptance: float | Sequence[float], k: int) -> list[float]:
    """The first k cumulative rates; α^1 .. α^k of a constant one. Raises ValueError if there are fewer, or no rates."""
    rates = list(acceptance) if isinstance(acceptance, Sequence) else cumulative([acceptance] * k)
    if k < 0 or len(rates) < k:
        raise ValueError(f"acceptance is known for {len(rates)} positions, and k is {k}")
    if not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"acceptance rates lie between 0 and 1, not {rates}")
    return rates[:k]


def expected_tokens(acceptance: float | Sequence[float], k: int) -> float:
    """τ: tokens per target pass, the bonus token included, from 1 (k = 0, or nothing accepted) to k + 1.

    Of a constant α, (1 - α^(k+1)) / (1 - α): Leviathan et al. 2023, equation 1. Summed term by term, which has no
    singularity at α = 1.
    """
    return 1.0 + sum(survival(acceptance, k))


def constant_rate(rate: float, k: int) -> float:
    """The constant α at which accepted over proposed is `rate` in windows of k: (α + α^2 + .. + α^k) / k = rate.

    A measured acceptance rate counts the draft tokens after the first rejected one as rejected, so it falls with k
    and is lower than α: 0.9 at k = 4 gives 0.774. Raises ValueError unless 0 <= rate <= 1 and k >= 1.
    """
    if k < 1 or not 0 <= rate <= 1:
        raise ValueError(f"an acceptance rate lies between 0 and 1, and its k is at least 1, not {rate} at {k}")
    return _root(lambda alpha: expected_tokens(alpha, k) - 1 - k * rate)


def step_cost(k: int, c: float, v: Sequence[float] | None = None, o: float = 0.0) -> float:
    """What a step costs, in one-row target passes: k c + v(k+1) + o. Raises ValueError if v has no entry for k + 1."""
    if v is not None and len(v) <= k:
        raise ValueError(f"the cost of a target pass is known for 1 to {len(v)} rows, and k = {k} needs {k + 1}")
    return k * c + (1.0 if v is None else v[k]) + o


def speedup(
    acceptance: float | Sequence[float], k: int, c: float, v: Sequence[float] | None = None, o: float = 0.0,
    plain_o: float = 0.0, catch_up: float = 0.0,
) -> float:  # fmt: skip
    """Walltime factor over plain decoding: τ (1 + plain_o) / (k c + v(k+1) + o + P catch_up).

    P is the rate at which all k tokens are accepted, that is, the last cumulative one. With v = 1 and the rest 0 it is
    Leviathan et al. 2023, theorem 3.8.
    """
    whole = survival(acceptance, k)[-1] if k else 0.0
    return expected_tokens(acceptance, k) * (1.0 + plain_o) / (step_cost(k, c, v, o) + whole * catch_up)


def mbsu(acceptance: float | Sequence[float], k: int, draft_parameters: float, target_parameters: float) -> float:
    """The factor by parameter counts alone, "memory-bound speedup": a pass costs what reading its weights costs.

    Goel et al. 2024 (arXiv 2403.00858), section 4.
    """
    return speedup(acceptance, k, draft_parameters / target_parameters)


def best_k(
    acceptance: float | Sequence[float], ks: Iterable[int], c: float, v: Sequence[float] | None = None, o: float = 0.0,
    plain_o: float = 0.0, catch_up: float = 0.0,
) -> tuple[int, float]:  # fmt: skip
    """(k, factor) of the fastest of ks, the smallest among equals; put 0 among them to allow plain decoding.

    k = 0 is plain decoding itself, whose factor is 1 whatever o is. Raises ValueError if ks is empty.
    """
    factors = {k: speedup(acceptance, k, c, v, o, plain_o, catch_up) if k else 1.0 for k in sorted(ks)}
    best = max(factors, key=factors.__getitem__)
    return best, factors[best]


def break_even_alpha(
    k: int, c: float, v: Sequence[float] | None = None, o: float = 0.0, plain_o: float = 0.0, catch_up: float = 0.0
) -> float | None:
    """The constant α above which the factor exceeds 1; 0 if it always does, None if α = 1 is not enough.

    With v = 1, k = 1 and the rest 0 it is c, and larger k need more: Leviathan et al. 2023, corollary 3.9.
    """
    if speedup(1.0, k, c, v, o, plain_o, catch_up) <= 1:
        return None
    if speedup(0.0, k, c, v, o, plain_o, catch_up) >= 1:
        return 0.0
    return _root(lambda alpha: speedup(alpha, k, c, v, o, plain_o, catch_up) - 1)


def largest_c(
    acceptance: float | Sequence[float], k: int, v: Sequence[float] | None = None, o: float = 0.0,
    plain_o: float = 0.0, catch_up: float = 0.0,
) -> float:  # fmt: skip
    """The c below which the factor exceeds 1, from theorem 3.8 solved for c; below 0 if no draft is cheap enough."""
    whole = survival(acceptance, k)[-1]
    return (expected_tokens(acceptance, k) * (1.0 + plain_o) - step_cost(k, 0.0, v, o) - whole * catch_up) / k


def _root(excess) -> float:
    """Where a function that is below 0 at 0 and above 0 at 1 is 0."""
    from scipy.optimize import brentq

    return float(brentq(excess, 0.0, 1.0, xtol=1e-12))
