"""Faults that others shipped, each put into the code: what proves exactness must notice every one of them.

A fault is a change of the source of one function. If the code changes so that a fault's place is no longer found, the
test fails and asks for a new one.
"""

import inspect
import math
import textwrap

import pytest
import torch
from oracle import distance, law
from scipy.stats import chisquare
from toys import Toy

from src.speculative import coins, drafters, generate, loop, sampling, verification
from src.speculative.errors import ModelError
from src.speculative.loop import Plan
from src.speculative.sampling import Sampling

PROMPT = torch.tensor([1, 0])
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def sabotage(monkeypatch):
    """sabotage(owner, name, (old, new), ...): in the source of that function, `new` stands where `old` stood."""

    def change(owner, name, *changes):
        function = getattr(owner, name)
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in changes:
            assert source.count(old) == 1, f"{name} has {source.count(old)} places for this fault: {old}"
            source = source.replace(old, new)
        made = {}
        exec(compile(source, f"sabotaged {name}", "exec"), vars(inspect.getmodule(function)), made)
        monkeypatch.setattr(owner, name, made[name])

    return change


def measured(settings=None, *, draft=None, target=None, **plan):
    """How far the law is from the target's own, for a pair that shows every fault."""
    target = target or Toy(3, 1)
    draft = draft or Toy(3, 2, like=target, noise=0.7)
    plan = {"k": 2, "max_new_tokens": 3, "settings": settings or Sampling(temperature=0.8)} | plan
    return distance(target, draft, PROMPT, Plan(**plan))


def alpha(count, temperature=1.0):
    """The acceptance rate at k=4 of a draft that is the target."""
    _, stats = generate(Toy(4, 1), Toy(4, 1), None, PROMPT, k=4, max_new_tokens=count, temperature=temperature, seed=3)
    return stats.acceptance_rate


class Speechless(Toy):
    """Has no numbers after every second token."""

    def row(self, context):
        return super().row(context) if context[-1] % 2 else [math.nan] * self.vocabulary


def test_nothing_is_found_where_nothing_is_wrong():
    for settings in (None, Sampling(), Sampling(temperature=1.0, repetition_penalty=1.5, presence_penalty=0.5)):
        for rule in verification.RULES:
            assert measured(settings, verification=rule) < 1e-12
    assert alpha(10) == alpha(12) == alpha(12, temperature=0.0) == 1


def test_greedy_that_keeps_the_softmax(sabotage):
    """A token that is not the argmax is accepted with p / q."""
    sabotage(loop, "_verify", ("if settings.greedy:", "if False:"))
    sabotage(loop, "warp", ("if settings.greedy:", "if False:"), ("settings.temperature != 1", "False"))
    assert measured(Sampling()) > 0.1


def test_a_coin_that_accepts_what_has_no_chance(sabotage):
    sabotage(coins.Coins, "flip", ("denominator < numerator", "denominator <= numerator"))
    assert measured(Sampling(temperature=1.0, top_k=2), draft=Toy(3, 9)) > 0.01


def test_a_bonus_token_that_is_the_argmax(sabotage):
    sabotage(verification, "_verify_token", ("coins.pick(p[len(proposals)])", "int(p[len(proposals)].argmax())"))
    assert measured() > 0.1


def test_a_generator_that_starts_anew_before_every_coin(monkeypatch):
    """All numbers of a run are then the same one, and its tokens hang together where they should not."""
    law_of_one = torch.tensor(Toy(2, 3, order=0).row(()), dtype=torch.float64).div(3).softmax(-1)

    def chance(runs=300):
        seen = [0, 0, 0, 0]
        for seed in range(runs):
            tokens, _ = generate(Toy(2, 3, order=0), None, None, PROMPT, max_new_tokens=2, temperature=3.0, seed=seed)
            seen[2 * tokens[0] + tokens[1]] += 1
        return chisquare(seen, (runs * torch.outer(law_of_one, law_of_one)).flatten().tolist()).pvalue

    assert chance() > 1e-3
    uniform = coins.Coins.uniform

    def anew(self):
        self.generator.manual_seed(self.generator.initial_seed())
        self._numbers.clear()
        return uniform(self)

    monkeypatch.setattr(coins.Coins, "uniform", anew)
    assert chance() < 1e-6


RECORDED = {
    "of bfloat16": ("rows.append(q)", "rows.append(torch.tensor(q).bfloat16().double().numpy())"),
    "softmax, while the argmax is taken": ("self.coins.pick(q)", "int(q.argmax())"),
    "raw, while the warped one is drawn from": ("rows.append(q)", "rows.append(q**0.8 / (q**0.8).sum())"),
}


@pytest.mark.parametrize("fault", RECORDED)
@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_recorded_q_that_was_not_drawn_from(sabotage, rule, fault):
    sabotage(drafters.ModelDrafter, "_sampled", RECORDED[fault])
    assert measured(verification=rule) > 1e-4


def test_probabilities_of_the_target_that_are_overwritten_before_the_residual(sabotage):
    line = "return i, coins.pick(residual(p[i], draft[i]))"
    sabotage(verification, "_verify_token", (line, f"np.divide(p[i], draft[i], out=p[i]); {line}"))
    assert measured() > 0.01


def test_an_uncertain_token_that_is_dropped(sabotage):
    plan = {"schedule": "adaptive", "draft": Toy(3, 2), "target": Toy(3, 1)}
    assert measured(**plan) < 1e-12
    stop = "if self.go_on and not self.go_on(q.item(token)):"
    sabotage(drafters.ModelDrafter, "_sampled", (stop, f"{stop} del tokens[-1:], rows[-1:]\n        {stop}"))
    assert measured(**plan) > 0.05


@pytest.mark.parametrize("nothing", ["0 * weights", "weights / (0 * p)"])
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero")
def test_a_residual_of_zeros_or_nan(sabotage, nothing):
    sabotage(verification, "residual", ("return weights if mass > 0 else p", f"return {nothing}"))
    with pytest.raises((ModelError, ZeroDivisionError, IndexError)):
        measured()


def test_a_draft_row_of_nan_that_counts_as_accepted(sabotage, monkeypatch):
    """Three guards stand in the way, and each alone is enough; without all of them the law is another one."""
    assert measured(draft=Speechless(3, 2)) < 1e-12
    sabotage(drafters.ModelDrafter, "_sampled", ("self.coins.pick(q)", "0 if np.isnan(q[0]) else self.coins.pick(q)"))
    monkeypatch.setattr(sampling, "_demand_numbers", lambda values: None)
    assert measured(draft=Speechless(3, 2)) < 1e-12
    sabotage(loop, "verify", ("if not value > 0", "if False"))
    assert measured(draft=Speechless(3, 2)) < 1e-12
    sabotage(
        coins.Coins,
        "flip",
        ("self.uniform() * denominator < numerator", "not numerator <= self.uniform() * denominator"),
    )
    assert measured(draft=Speechless(3, 2)) > 0.01


@pytest.mark.parametrize("settings", [Sampling(), Sampling(temperature=1.0)])
def test_a_target_row_of_nan_that_gives_a_token(settings, monkeypatch):
    plan = Plan(k=2, max_new_tokens=3, settings=settings)
    models = Speechless(3, 1), Toy(3, 2)
    with pytest.raises(ModelError, match="NaN"):
        law(*models, PROMPT, plan)
    monkeypatch.setattr(sampling, "_demand_numbers", lambda values: None)
    if settings.greedy:
        assert law(*models, PROMPT, plan), "with nobody looking, the tokens are whatever they are"
    else:
        with pytest.raises((ModelError, IndexError)):
            law(*models, PROMPT, plan)


def test_columns_beyond_the_vocabulary_that_are_looked_at(sabotage):
    plan = {"target": Toy(3, 1, padding=2), "vocabulary": 3}
    assert measured(**plan) < 1e-12
    sabotage(loop, "_verify", ("logits = logits[:, : run.vocabulary]", "pass"))
    assert measured(**plan) > 0.1


FED = ("sequence[self.model.length :]", "sequence[-1:]")  # as if the draft had always seen all but the last token


def test_a_draft_cache_that_lacks_a_token_after_full_acceptance(sabotage):
    sabotage(drafters.ModelDrafter, "_sampled", FED)
    assert alpha(20) < 1
    with pytest.raises(AssertionError, match="cache"):
        measured(draft=Toy(3, 1), k=1, max_new_tokens=4)


def test_a_draft_cache_that_is_trimmed_by_one_too_many(sabotage):
    sabotage(
        drafters.ModelDrafter,
        "settle",
        ("min(self.model.length, length)", "max(0, min(self.model.length, length) - 1)"),
    )
    assert measured() < 1e-12 and alpha(20) == 1, "what the draft lacks is fed to it"
    sabotage(drafters.ModelDrafter, "_sampled", FED)
    assert alpha(20) < 1


def test_a_cut_window_that_counts_as_whole(sabotage):
    sabotage(
        loop,
        "_step",
        ("if wanted and kept == len(new):", "if run.drafter:"),
        ("record(len(proposed)", "record(run.plan.k"),
    )
    assert alpha(10) == 1
    assert alpha(12) < 0.85


PENALTIES = {
    "tokens that were rejected": (loop.Rows, "__getitem__", "run.length + i]", "run.length + len(self) - 1]"),
    "tokens that were rejected, greedily": (sampling, "_counts", "counts.cumsum(0)[:", "counts.sum(0).expand(n, -1)[:"),
    "the last accepted token alone": (sampling, "adjust", "_counts(context,", "_counts(context[-1:],"),
}


@pytest.mark.parametrize("fault", PENALTIES)
def test_penalties_that_see(sabotage, fault):
    owner, name, old, new = PENALTIES[fault]
    settings = Sampling(temperature=0.0 if "greedily" in fault else 1.0, repetition_penalty=1.8)
    assert measured(settings, draft=Toy(3, 9)) < 1e-12
    sabotage(owner, name, (old, new))
    assert measured(settings, draft=Toy(3, 9)) > 0.01
