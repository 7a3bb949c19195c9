"""The identity under speculative sampling: accept or resample gives the target's law, whatever the draft's."""

import math

import pytest
import torch
from toys import one_thread  # noqa: F401

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


def coins(seed=0):
    return Coins(torch.Generator().manual_seed(seed))


def emitted(rule, p, q, k, draws, seed):
    """Tokens of a target that has p everywhere: windows of k proposals, drawn beforehand in one go."""
    p_rows, q_rows = torch.tensor(p).repeat(k + 1, 1), torch.tensor(q).repeat(k, 1)
    source = torch.Generator().manual_seed(seed)
    windows = torch.multinomial(torch.tensor(q), draws * k, replacement=True, generator=source).view(-1, k)
    toss, tokens = coins(seed + 1), []
    with torch.inference_mode():
        for window in windows:
            accepted, token = verify(rule, p_rows, q_rows, window, toss)
            tokens += [*window[:accepted].tolist(), token]
            if len(tokens) >= draws:
                return torch.tensor(tokens[:draws])


@pytest.mark.parametrize("draft", DRAFTS)
def test_accept_or_resample_gives_the_target_in_200_000_draws(draft):
    tokens = emitted("token", P, DRAFTS[draft], 2, DRAWS, seed=1)
    shares = tokens.bincount(minlength=len(P)) / DRAWS
    assert (shares - torch.tensor(P)).abs().max() < 5e-3
    assert shares[5] == 0


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_identity_holds_exactly(draft):
    """q(x) min(1, p(x)/q(x)) + (1 - sum min(p, q)) r(x) = p(x), with r from the code."""
    p, q = (torch.tensor(row, dtype=torch.float64) for row in (P, DRAFTS[draft]))
    overlap = torch.minimum(p, q)
    r = residual(p, q)
    torch.testing.assert_close(overlap + (1 - overlap.sum()) * r / r.sum(), p, rtol=0, atol=1e-15)


@pytest.mark.parametrize("rule", RULES)
def test_a_float32_window_gives_the_target(rule):
    tokens = emitted(rule, P, DRAFTS["fits badly"], 4, 20_000, seed=3)
    shares = tokens.bincount(minlength=len(P)) / len(tokens)
    assert (shares - torch.tensor(P)).abs().max() < 0.012


def test_acceptance_is_the_overlap_for_token_and_the_match_for_match():
    p, q = torch.tensor(P), torch.tensor(DRAFTS["fits badly"])
    for rule, expected in (
        ("token", torch.minimum(p, q).sum()), ("block", torch.minimum(p, q).sum()), ("match", (p * q).sum())
    ):  # fmt: skip
        toss, n = coins(5), 4000
        windows = torch.multinomial(q, n, replacement=True, generator=torch.Generator().manual_seed(6))
        p_rows, q_rows = p.repeat(2, 1), q[None]
        accepted = sum(verify(rule, p_rows, q_rows, x[None], toss)[0] for x in windows)
        assert abs(accepted / n - expected) < 4 * math.sqrt(0.25 / n)


@pytest.mark.parametrize("rule", RULES)
def test_the_target_as_its_own_draft_is_always_accepted(rule):
    if rule == "match":
        pytest.skip("match accepts a sample only if it draws the same once more")
    p = torch.rand(6, 7, generator=torch.Generator().manual_seed(0)).softmax(-1)
    toss = coins()
    for seed in range(200):
        x = torch.multinomial(p[:5], 1, generator=torch.Generator().manual_seed(seed))[:, 0]
        assert verify(rule, p, p[:5], x, toss)[0] == 5


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("certain", [True, False])
def test_greedy_shortcut_is_verification_with_one_hot_rows(rule, certain):
    source = torch.Generator().manual_seed(7)
    for k in range(0, 6):
        for _ in range(40):
            best = torch.randint(3, (k + 1,), generator=source)
            x = torch.randint(3, (k,), generator=source)
            p = torch.nn.functional.one_hot(best, 3).float()
            q = None if certain else torch.nn.functional.one_hot(x, 3).float().view(k, 3)
            assert verify(rule, p, q, x, coins()) == verify_greedy(best, x)


@pytest.mark.parametrize("rule", RULES)
def test_a_point_mass_may_be_left_unsaid(rule):
    p = torch.tensor(P).repeat(4, 1)
    for seed in range(200):
        x = torch.randint(6, (3,), generator=torch.Generator().manual_seed(seed))
        q = torch.nn.functional.one_hot(x, 6).float()
        assert verify(rule, p, None, x, coins(seed)) == verify(rule, p, q, x, coins(seed))


@pytest.mark.parametrize("rule", RULES)
def test_the_smaller_vocabulary_has_nothing_beyond_its_end(rule):
    """q narrower or wider than p behaves as if both had been filled up with zeros."""
    source = torch.Generator().manual_seed(1)
    p, q = (torch.rand(n, 4, generator=source).softmax(-1) for n in (4, 3))
    pad = torch.nn.functional.pad
    for seed in range(100):
        x = torch.multinomial(q, 1, generator=source)[:, 0]
        wide = verify(rule, pad(p, (0, 2)), pad(q, (0, 2)), x, coins(seed))
        assert verify(rule, pad(p, (0, 2)), q, x, coins(seed)) == wide
        assert verify(rule, p, pad(q, (0, 2)), x, coins(seed)) == wide


@pytest.mark.parametrize("rule", RULES)
def test_nothing_of_probability_zero_comes_out(rule):
    p = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).repeat(3, 1)
    q = torch.tensor([[0.3, 0.0, 0.4, 0.0, 0.3]]).repeat(2, 1)
    for number in (0.0, 0.5, 1 - 2**-53):
        toss = coins()
        toss.uniform = lambda number=number: number
        for x in (torch.tensor([0, 2]), torch.tensor([4, 0])):
            accepted, token = verify(rule, p, q, x, toss)
            assert accepted == 0 and token in (1, 3)


def test_sample_and_match_uses_one_number_for_each_token_in_order():
    p = torch.rand(6, 5, generator=torch.Generator().manual_seed(2)).softmax(-1)
    one = coins(9)
    plain = [one.pick(row) for row in p]
    for x in (plain[:5], [*plain[:3], (plain[3] + 1) % 5, 0], [(plain[0] + 1) % 5] * 5):
        toss = coins(9)
        accepted, token = verify("match", p, None, torch.tensor(x), toss)
        assert [*x[:accepted], token] == plain[: accepted + 1]


def test_block_accepts_at_least_as_much_as_token():
    """The expectation of the accepted length, by enumerating windows of two (Sun et al. 2024, theorem 2)."""
    from oracle import Fork, Path

    source = torch.Generator().manual_seed(4)
    for _ in range(10):
        p, q = (torch.randn(n, 3, generator=source, dtype=torch.float64).softmax(-1) for n in (3, 2))
        expected = {}
        for rule in ("token", "block"):
            total = 0.0
            for x in torch.cartesian_prod(torch.arange(3), torch.arange(3)):
                weight, choices = (q[0, x[0]] * q[1, x[1]]).item(), []
                while choices is not None:
                    path = Path(choices)
                    total += weight * verify(rule, p, q, x, Fork(path))[0] * path.chance
                    choices = path.following(0)
            expected[rule] = total
        assert expected["block"] >= expected["token"] - 1e-12


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_draft_row_of_nan_ends_the_window_there(rule):
    p = torch.tensor(P).repeat(4, 1)
    q = torch.tensor(DRAFTS["fits badly"]).repeat(3, 1)
    q[1] = math.nan
    for seed in range(100):
        x = torch.multinomial(q[0], 3, replacement=True, generator=torch.Generator().manual_seed(seed))
        assert verify(rule, p, q, x, coins(seed)) == verify(rule, p[:2], q[:1], x[:1], coins(seed))


def test_a_residual_without_mass_is_the_target():
    p = torch.tensor(P)
    for q in (p, p + 1e-3, torch.full((6,), math.nan)):
        assert torch.equal(residual(p, q), p)


def test_verification_leaves_its_inputs_alone():
    p, q = torch.tensor(P).repeat(3, 1), torch.tensor(DRAFTS["fits badly"]).repeat(2, 1)
    before = p.clone(), q.clone()
    for rule in RULES:
        for seed in range(20):
            verify(rule, p, q, torch.tensor([0, 2]), coins(seed))
    assert torch.equal(p, before[0]) and torch.equal(q, before[1])


def test_no_token_of_weight_zero_is_picked_at_either_end():
    for number in (0.0, 2**-53, 0.5, 1 - 2**-53):
        toss = coins()
        toss.uniform = lambda number=number: number
        assert toss.pick(torch.tensor([0.0, 0.0, 3.0, 0.0])) == 2
        assert toss.pick(torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])) in (1, 3)
        assert not toss.flip(0.0, 1.0)
        assert toss.flip(1.0, 1.0)
