"""Replaying an output in closed form: its average over outputs is what the decoder really does, by enumeration."""

import math

import numpy as np
import pytest
import torch
from oracle import Fork, Path, own_law, warped
from toys import Toy

from src.pipeline.along import expect, figures, survival
from src.speculative import generate
from src.speculative.loop import Plan, Run, decode
from src.speculative.sampling import Sampling
from src.speculative.verification import RULES

PROMPT = torch.tensor([1, 0])
pytestmark = pytest.mark.usefixtures("one_thread")


def counted(target, draft, plan):
    """Expectations of the loop's own counts, by following every path: passes, whole windows, accepted by position."""
    total, choices = np.zeros(2 + plan.k), []
    while choices is not None:
        path = Path(choices)
        coins = Fork(path)
        for model in (target, draft):
            model.rollback(0)
        run = Run(target, draft, PROMPT, plan, (coins, coins))
        for _ in decode(run):
            pass
        accepted = np.array([*run.stats.accepted_by_position, *[0] * plan.k])[: plan.k]
        total += path.chance * np.array([run.stats.target_passes, sum(run.stats.histogram), *accepted])
        choices = path.following(0)
    return total


def replayed(target, draft, plan):
    """The same from closed forms, averaged over the target's outputs."""
    total = np.zeros(3 + plan.k)
    for output, chance in own_law(target, PROMPT, plan).items():
        seen = [PROMPT.tolist() + list(output[:i]) for i in range(len(output))]
        p, q = (
            [warped(model.row(tuple(past)), plan.settings, past, ())[x] for past, x in zip(seen, output, strict=True)]
            for model in (target, draft)
        )
        total += chance * expect(plan.verification, plan.k, p, q).row()
    return total


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k, length", [(1, 3), (2, 4), (3, 4), (4, 3)])
def test_averaged_over_outputs_it_is_what_the_loop_counts(rule, k, length):
    target = Toy(2, 1)
    draft = Toy(2, 2, like=target, noise=0.8)
    plan = Plan(k=k, max_new_tokens=length, settings=Sampling(temperature=0.9), verification=rule)
    found = replayed(target, draft, plan)
    assert found[0] == pytest.approx(length, abs=1e-12)
    np.testing.assert_allclose(found[1:], counted(target, draft, plan), atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5, 16])
def test_greedily_it_is_what_every_single_run_counts(k):
    target, draft = Toy(5, 1, context=64), Toy(5, 2, like=Toy(5, 1), noise=0.4, context=64)
    tokens, stats = generate(target, draft, None, PROMPT, k=k, max_new_tokens=40)
    past = [tuple(PROMPT.tolist() + tokens[:i].tolist()) for i in range(40)]
    q = [float(np.argmax(draft.row(seen)) == x) for seen, x in zip(past, tokens.tolist(), strict=True)]
    for rule in RULES:
        found = expect(rule, k, [1.0] * 40, q)
        assert found.passes == stats.target_passes
        assert found.windows == sum(stats.histogram)
        assert found.accepted_by_position.tolist() == stats.accepted_by_position
        alpha, tau, _ = figures(found.row(), k)
        assert (alpha, tau) == pytest.approx((stats.acceptance_rate, stats.mean_accepted_length))


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_that_gives_an_output_no_chance_accepts_nothing(rule):
    assert survival(rule, np.array([0.5, 0.2]), np.array([0.0, 0.9])).tolist() == [1.0, 0.0, 0.0]


def test_no_rule_accepts_more_than_block():
    """On the average over outputs; on a single one it may."""
    target = Toy(2, 4)
    draft = Toy(2, 5, like=target, noise=1.2)
    found = {}
    for rule in RULES:
        plan = Plan(k=3, max_new_tokens=5, settings=Sampling(temperature=1.0), verification=rule)
        found[rule] = replayed(target, draft, plan)[1]
    assert found["block"] < found["token"] < found["match"] <= 5


def test_without_a_whole_window_there_is_no_rate():
    alpha, tau, _ = figures(expect("token", 4, [0.5] * 3, [0.5] * 3).row(), 4)
    assert math.isnan(alpha) and tau == 3
