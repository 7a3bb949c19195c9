"""theory.py against a seeded simulation of steps, against the published forms, and at the limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from src.speculative import theory

ALPHAS = st.floats(0, 1)
KS = st.integers(1, 12)
COSTS = st.floats(0.01, 2)
WIDE = [1 + 0.15 * rows for rows in range(13)]

settings.register_profile("theory", deadline=None)
settings.load_profile("theory")


def simulate(conditional, c, v, o, plain_o, catch_up, steps=200_000):
    """Tokens a pass and walltime factor of steps in which draft tokens are drawn one after the other; their errors.

    The draft is fed two tokens at once where the step before was accepted whole.
    """
    coins = np.random.default_rng(7).random((steps, len(conditional)))
    accepted = np.cumprod(coins < np.array(conditional), axis=1).sum(axis=1)
    k = len(conditional)
    clock = steps * (sum(c for _ in range(k)) + v[k] + o) + catch_up * (accepted[:-1] == k).sum()
    tokens = accepted + 1
    error = tokens.std() / np.sqrt(steps)
    return tokens.mean(), tokens.sum() * (1 + plain_o) / clock, error


@pytest.mark.parametrize("conditional", [[0.7] * 4, [0.9, 0.6, 0.3], [0.05], [1.0] * 6, [0.8, 0.0, 0.9]])
def test_expected_tokens_and_factor_are_those_of_simulated_steps(conditional):
    k, c, o, plain_o, catch_up = len(conditional), 0.13, 0.04, 0.02, 0.05
    tokens, factor, error = simulate(conditional, c, WIDE, o, plain_o, catch_up)
    rates = theory.cumulative(conditional)
    assert theory.expected_tokens(rates, k) == pytest.approx(tokens, abs=5 * error + 1e-12)
    computed = theory.speedup(rates, k, c, WIDE, o, plain_o, catch_up)
    assert computed == pytest.approx(factor, rel=5 * error / tokens + 1e-5)


@given(alpha=st.floats(0, 0.999), k=KS, c=COSTS)
def test_constant_rates_give_the_published_forms(alpha, k, c):
    tokens = (1 - alpha ** (k + 1)) / (1 - alpha)
    assert theory.expected_tokens(alpha, k) == pytest.approx(tokens)
    assert theory.speedup(alpha, k, c) == pytest.approx((1 - alpha ** (k + 1)) / ((1 - alpha) * (k * c + 1)))
    assert theory.mbsu(alpha, k, c * 7e9, 7e9) == pytest.approx(theory.speedup(alpha, k, c))
    assert theory.expected_tokens(theory.cumulative([alpha] * k), k) == pytest.approx(tokens)


@given(k=KS, c=COSTS, o=st.floats(0, 1))
def test_limits(k, c, o):
    assert theory.expected_tokens(0.0, k) == 1
    assert theory.expected_tokens(1.0, k) == k + 1
    assert theory.expected_tokens(1 - 1e-9, k) == pytest.approx(k + 1)
    assert theory.expected_tokens(0.5, 0) == 1
    assert theory.speedup(0.0, k, c, WIDE, o) == 1 / (k * c + WIDE[k] + o) < 1
    assert theory.speedup(1.0, k, 0.0) == k + 1
    assert theory.best_k(0.0, range(13), c, WIDE, o) == (0, 1.0)
    assert theory.best_k(1.0, range(13), 0.0)[0] == 12


@given(alpha=ALPHAS, k=KS)
def test_a_constant_rate_is_found_again_in_what_it_makes_measurable(alpha, k):
    rate = (theory.expected_tokens(alpha, k) - 1) / k
    again = theory.constant_rate(rate, k)
    assert theory.expected_tokens(again, k) == pytest.approx(theory.expected_tokens(alpha, k), abs=1e-9)
    assert rate <= alpha + 1e-12


def test_the_example_of_a_rate_that_is_lower_than_alpha():
    assert theory.constant_rate(0.774, 4) == pytest.approx(0.9, abs=1e-3)


@given(k=KS, c=COSTS, o=st.floats(0, 1), plain_o=st.floats(0, 0.2), catch_up=st.floats(-0.1, 2))
def test_at_the_break_even_the_factor_is_one_and_on_its_sides_it_is_not(k, c, o, plain_o, catch_up):
    alpha = theory.break_even_alpha(k, c, WIDE, o, plain_o, catch_up)
    factor = [theory.speedup(at, k, c, WIDE, o, plain_o, catch_up) for at in (0.0, 1.0)]
    if alpha is None:
        assert factor[1] <= 1 + 1e-9
    elif alpha == 0:
        assert factor[0] >= 1 - 1e-9
    else:
        assert theory.speedup(alpha, k, c, WIDE, o, plain_o, catch_up) == pytest.approx(1)
        assert factor[0] < 1 < factor[1]


@given(c=st.floats(0.01, 0.99), k=st.integers(2, 12))
def test_alpha_above_c_is_what_any_k_needs(c, k):
    assert theory.break_even_alpha(1, c) == pytest.approx(c)
    more = theory.break_even_alpha(k, c)
    assert more is None or more >= c - 1e-9


@given(alpha=st.floats(0, 1), k=KS, o=st.floats(0, 1), catch_up=st.floats(0, 1))
def test_at_the_largest_c_the_factor_is_one(alpha, k, o, catch_up):
    c = theory.largest_c(alpha, k, WIDE, o, catch_up=catch_up)
    if c >= 0:
        assert theory.speedup(alpha, k, c, WIDE, o, catch_up=catch_up) == pytest.approx(1)
    else:
        assert theory.speedup(alpha, k, 0.0, WIDE, o, catch_up=catch_up) < 1


@given(alpha=ALPHAS, c=COSTS)
def test_no_k_beats_the_best(alpha, c):
    ks = range(1, 13)
    k, factor = theory.best_k(alpha, ks, c, WIDE)
    assert factor == theory.speedup(alpha, k, c, WIDE)
    assert all(theory.speedup(alpha, other, c, WIDE) <= factor for other in ks)


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.expected_tokens([0.5, 0.2], 3),
        lambda: theory.expected_tokens(1.2, 3),
        lambda: theory.expected_tokens([-0.1], 1),
        lambda: theory.expected_tokens(0.5, -1),
        lambda: theory.step_cost(3, 0.1, [1.0, 1.0, 1.1]),
        lambda: theory.constant_rate(0.5, 0),
        lambda: theory.constant_rate(1.5, 2),
    ],
)
def test_what_is_not_known_is_not_made_up(call):
    with pytest.raises(ValueError, match=r"acceptance|cost"):
        call()
