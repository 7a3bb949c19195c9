"""The identity under speculative sampling: accept or resample gives the target's law, whatever the draft's."""

import itertools
import math

import numpy as np
import pytest
import torch
from oracle import Fork, Path

from src.speculative.coins import Coins
from src.speculative.verification import RULES, residual, verify, verify_greedy

P = [0.10, 0.20, 0.05, 0.40, 0.25, 0.00]
DRAFTS = {
    "fits badly": [0.60, 0.05, 0.20, 0.05, 0.05, 0.05],
    "zeros where the target has mass": [0.00, 0.50, 0.30, 0.00, 0.00, 0.20],
    "the target itself": P,
    "one-hot": [0.00, 0.00, 0.00, 1.00, 0.00, 0.00],
    "one-hot where the target has nothing": [0.00, 0.00, 0.00, 0.00, 0.00, 1.00],
}
DRAWS = 200_000
pytestmark = pytest.mark.usefixtures("one_thread")


def coins(seed=0):
    return Coins(torch.Generator().manual_seed(seed))


def laws(rows, size, seed=0):
    """Rows of probabilities (rows, size)."""
    return np.random.default_rng(seed).dirichlet(np.ones(size), rows)


def emitted(rule, p, q, k, draws, seed, dtype=np.float64):
    """Shares of the tokens of a target that has p everywhere: windows of k proposals, drawn beforehand in one go."""
    p_rows, q_rows = np.tile(dtype(p), (k + 1, 1)), np.tile(dtype(q), (k, 1))
    windows = np.random.default_rng(seed).choice(len(q), (draws, k), p=q).tolist()
    toss, tokens = coins(seed + 1), []
    for window in windows:
        accepted, token = verify(rule, p_rows, q_rows, window, toss)
        tokens += [*window[:accepted], token]
        if len(tokens) >= draws:
            return np.bincount(tokens[:draws], minlength=len(p)) / draws


@pytest.mark.parametrize("draft", list(DRAFTS)[:4])
def test_accept_or_resample_gives_the_target_in_200_000_draws(draft):
    shares = emitted("token", P, DRAFTS[draft], 2, DRAWS, seed=1)
    assert np.abs(shares - P).max() < 5e-3
    assert shares[5] == 0


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_identity_holds_exactly(draft):
    """q(x) min(1, p(x)/q(x)) + (1 - sum min(p, q)) r(x) = p(x), with r from the code."""
    p, q = np.array(P), np.array(DRAFTS[draft])
    overlap = np.minimum(p, q)
    r = residual(p, q)
    np.testing.assert_allclose(overlap + (1 - overlap.sum()) * r / r.sum(), p, rtol=0, atol=1e-15)


@pytest.mark.parametrize("rule", RULES)
def test_a_float32_window_gives_the_target(rule):
    shares = emitted(rule, P, DRAFTS["fits badly"], 4, 20_000, seed=3, dtype=np.float32)
    assert np.abs(shares - P).max() < 0.012


def test_acceptance_is_the_overlap_for_token_and_the_match_for_match():
    p, q = np.array(P), np.array(DRAFTS["fits badly"])
    for rule, expected in (
        ("token", np.minimum(p, q).sum()), ("block", np.minimum(p, q).sum()), ("match", (p * q).sum())
    ):  # fmt: skip
        toss, n = coins(5), 4000
        drawn = np.random.default_rng(6).choice(len(q), n, p=q).tolist()
        accepted = sum(verify(rule, np.stack([p, p]), [q], [x], toss)[0] for x in drawn)
        assert abs(accepted / n - expected) < 4 * math.sqrt(0.25 / n)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_target_as_its_own_draft_is_always_accepted(rule):
    p, toss = laws(6, 7), coins()
    for _ in range(200):
        assert verify(rule, p, p[:5], [toss.pick(row) for row in p[:5]], toss)[0] == 5


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("certain", [True, False])
def test_greedy_shortcut_is_verification_with_one_hot_rows(rule, certain):
    chance, one_hot = np.random.default_rng(7), np.eye(3)
    for k in range(0, 6):
        for _ in range(40):
            best, x = chance.integers(3, size=k + 1).tolist(), chance.integers(3, size=k).tolist()
            assert verify(rule, one_hot[best], None if certain else one_hot[x], x, coins()) == verify_greedy(best, x)


@pytest.mark.parametrize("rule", RULES)
def test_a_point_mass_may_be_left_unsaid(rule):
    p = np.tile(P, (4, 1))
    for seed in range(200):
        x = np.random.default_rng(seed).integers(6, size=3).tolist()
        assert verify(rule, p, None, x, coins(seed)) == verify(rule, p, np.eye(6)[x], x, coins(seed))


@pytest.mark.parametrize("rule", RULES)
def test_the_smaller_vocabulary_has_nothing_beyond_its_end(rule):
    """q narrower or wider than p behaves as if both had been filled up with zeros."""
    p, q = laws(4, 4), laws(3, 4, seed=1)
    wide_p, wide_q = (np.pad(rows, ((0, 0), (0, 2))) for rows in (p, q))
    for seed in range(100):
        x = [coins(seed + 100).pick(row) for row in q]
        wide = verify(rule, wide_p, wide_q, x, coins(seed))
        assert verify(rule, wide_p, q, x, coins(seed)) == wide
        assert verify(rule, p, wide_q, x, coins(seed)) == wide


@pytest.mark.parametrize("rule", RULES)
def test_nothing_of_probability_zero_comes_out(rule):
    p, q = np.tile([0.0, 0.5, 0.0, 0.5, 0.0], (3, 1)), np.tile([0.3, 0.0, 0.4, 0.0, 0.3], (2, 1))
    for number in (0.0, 0.5, 1 - 2**-53):
        toss = coins()
        toss.uniform = lambda number=number: number
        for x in ([0, 2], [4, 0]):
            accepted, token = verify(rule, p, q, x, toss)
            assert accepted == 0 and token in (1, 3)


def test_sample_and_match_uses_one_number_for_each_token_in_order():
    p, one = laws(6, 5), coins(9)
    plain = [one.pick(row) for row in p]
    for x in (plain[:5], [*plain[:3], (plain[3] + 1) % 5, 0], [(plain[0] + 1) % 5] * 5):
        toss = coins(9)
        accepted, token = verify("match", p, None, x, toss)
        assert [*x[:accepted], token] == plain[: accepted + 1]


def test_block_accepts_at_least_as_much_as_token():
    """The expectation of the accepted length, by enumerating windows of two (Sun et al. 2024, theorem 2)."""
    for seed in range(10):
        p, q = laws(3, 3, seed=seed), laws(2, 3, seed=seed + 100)
        expected = {}
        for rule in ("token", "block"):
            total = 0.0
            for x in itertools.product(range(3), repeat=2):
                weight, choices = q[0, x[0]] * q[1, x[1]], []
                while choices is not None:
                    path = Path(choices)
                    total += weight * verify(rule, p, q, list(x), Fork(path))[0] * path.chance
                    choices = path.following(0)
            expected[rule] = total
        assert expected["block"] > expected["token"] + 1e-3 or abs(expected["block"] - expected["token"]) < 1e-12


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_draft_row_of_nan_ends_the_window_there(rule):
    p, q = np.tile(P, (4, 1)), np.tile(DRAFTS["fits badly"], (3, 1))
    law = q[0].copy()
    q[1] = math.nan
    for seed in range(100):
        x = [coins(seed + 100 * i).pick(law) for i in range(3)]
        assert verify(rule, p, q, x, coins(seed)) == verify(rule, p[:2], q[:1], x[:1], coins(seed))


def test_a_residual_without_mass_is_the_target():
    p = np.array(P)
    for q in (p, p + 1e-3, np.full(6, math.nan)):
        assert np.array_equal(residual(p, q), p)


def test_verification_leaves_its_inputs_alone():
    p, q = np.tile(P, (3, 1)), np.tile(DRAFTS["fits badly"], (2, 1))
    before = p.copy(), q.copy()
    for rule in RULES:
        for seed in range(20):
            verify(rule, p, q, [0, 2], coins(seed))
    assert np.array_equal(p, before[0]) and np.array_equal(q, before[1])


@pytest.mark.parametrize("size", [2, 64, 65, 200])
def test_no_token_of_weight_zero_is_picked_at_either_end(size):
    """Short of a whole block of the running sum, just one, and several, with the mass at either end or in between."""
    for number in (0.0, 2**-53, 0.5, 1 - 2**-53):
        toss = coins()
        toss.uniform = lambda number=number: number
        for places in ([0], [size - 1], [size // 2], [0, size - 1], [size // 2, size - 1]):
            weights = np.zeros(size, np.float32)
            weights[places] = 1 / 3
            assert toss.pick(weights) in places
        assert not toss.flip(0.0, 1.0)
        assert toss.flip(1.0, 1.0)


def test_a_pick_inverts_the_running_sum():
    weights = np.random.default_rng(0).random(300)
    weights[::3] = 0.0
    sums = np.cumsum(weights)
    for number in np.linspace(0, 1, 400, endpoint=False):
        toss = coins()
        toss.uniform = lambda number=number: number
        x = toss.pick(weights)
        assert sums[x] - weights[x] <= number * sums[-1] + 1e-9 and number * sums[-1] < sums[x] + 1e-9


def test_coins_are_uniform_numbers_of_the_generator_in_order():
    toss, source = coins(3), torch.Generator().manual_seed(3)
    numbers = [toss.uniform() for _ in range(200)]
    assert numbers == torch.rand(256, dtype=torch.float64, generator=source).tolist()[:200]
