"""Exactness proved by enumeration: decoding's law over sequences is the target's own, whatever the draft does."""

from collections import Counter
from dataclasses import asdict

import pytest
import torch
from oracle import distance, law, own_law
from scipy.stats import chisquare
from toys import Guesses, Letters, Restarting, Toy

from src.speculative import PromptLookup, generate
from src.speculative.loop import Plan
from src.speculative.sampling import Sampling
from src.speculative.verification import RULES

PROMPT = torch.tensor([1, 0])
SAMPLED = Sampling(temperature=1.0)
WARPERS = {
    "greedy": Sampling(),
    "temperature": Sampling(temperature=0.6),
    "hot": Sampling(temperature=1.7),
    "top-k": Sampling(temperature=1.0, top_k=2),
    "top-p": Sampling(temperature=1.0, top_p=0.7),
    "min-p": Sampling(temperature=1.0, min_p=0.3),
    "all three": Sampling(temperature=1.3, top_k=2, top_p=0.8, min_p=0.1),
    "repetition": Sampling(temperature=1.0, repetition_penalty=1.8),
    "presence": Sampling(temperature=1.0, presence_penalty=0.9),
    "frequency": Sampling(temperature=0.9, frequency_penalty=0.7),
    "bias": Sampling(temperature=1.0, logit_bias={0: 1.5, 2: -1.0}),
    "forbidden": Sampling(temperature=1.0, forbidden=(1,)),
    "everything": Sampling(2.5, 3, 0.98, 0.02, 1.2, 0.3, 0.2, {1: 0.3}, (0,)),
}
pytestmark = pytest.mark.usefixtures("one_thread")


def pair(size=4, noise=0.7, **draft):
    """A target and a draft that resembles it."""
    target = Toy(size, 1)
    return target, Toy(size, 2, like=target, noise=noise, **draft)


@pytest.mark.parametrize("k", range(1, 6))
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_at_every_k(rule, k):
    target = Toy(3, 1, keeps=2)
    plan = Plan(k=k, max_new_tokens=k + 1, settings=SAMPLED, verification=rule)
    assert distance(target, Toy(3, 2, like=target, noise=0.7), PROMPT, plan) < 1e-12


@pytest.mark.parametrize("warper", WARPERS)
@pytest.mark.parametrize("rule", ["token", "block"])  # match never looks at q, and draws from p as plain decoding does
def test_every_warper(rule, warper):
    plan = Plan(k=2, max_new_tokens=3, settings=WARPERS[warper], verification=rule)
    assert distance(*pair(3), PROMPT, plan) < 1e-12


DRAFTS = {
    "unrelated": Toy(4, 9),
    "has nothing where the target has much": Toy(4, 9, keeps=2),
    "the target itself": Toy(4, 1),
    "padded": Toy(4, 2, padding=3),
    "of fewer tokens": Toy(3, 2),
    "of more tokens": Toy(6, 2),
    "trimmed head": Toy(4, 2, token_ids=[0, 2, 3]),
    "trimmed head in another order": Toy(4, 2, token_ids=[3, 1]),
    "short context": Toy(4, 2, context=3),
    "context of the prompt": Toy(4, 2, context=1),
    "prompt lookup": PromptLookup(),
}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("rule", ["token", "block"])
def test_every_kind_of_draft(rule, draft):
    """With a target whose head is padded, by columns that would win if anybody looked at them."""
    plan = Plan(k=2, max_new_tokens=3, settings=SAMPLED, verification=rule, vocabulary=4)
    assert distance(Toy(4, 1, padding=2, keeps=3), DRAFTS[draft], PROMPT, plan) < 1e-12


@pytest.mark.parametrize("warper", ["greedy", "temperature", "everything"])
def test_a_trimmed_and_a_padded_head_under_warpers(warper):
    plan = Plan(k=2, max_new_tokens=3, settings=WARPERS[warper], vocabulary=4)
    for draft in (Toy(4, 2, token_ids=[3, 0, 1]), Toy(3, 2, padding=2)):
        assert distance(Toy(4, 1, padding=2), draft, PROMPT, plan) < 1e-12


STOPS = {
    "one end token": {"eos_ids": (2,)},
    "several": {"eos_ids": (0, 3)},
    "a string of one token": {"stop": "c"},
    "a string across tokens": {"stop": ["aa", "cdd"]},
    "a string within a token": {"stop": "y", "tok": Letters(4, ["x", "xyx", "z", "zz"])},
    "a string of parts of tokens": {"stop": ("xz", "zx"), "tok": Letters(4, ["x", "xyx", "z", "zz"])},
    "both": {"eos_ids": (1,), "stop": "cc"},
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("rule", RULES)
def test_every_stop(rule, stop):
    common = {"k": 3, "max_new_tokens": 4, "settings": SAMPLED, "verification": rule, "tok": Letters(4)}
    plan = Plan(**(common | STOPS[stop]))
    target = Toy(4, 1, keeps=2)
    assert distance(target, Toy(4, 2, like=target, noise=0.7), PROMPT, plan) < 1e-12
    assert {1, 2, 3} & {len(output) for output in own_law(target, PROMPT, plan)}, "nothing ever stopped"


@pytest.mark.parametrize("context", [2, 3, 4])
def test_the_end_of_the_context(context):
    plan = Plan(k=3, max_new_tokens=5, settings=SAMPLED)
    target = Toy(3, 1, context=context)
    assert distance(target, Toy(3, 2, context=context), PROMPT, plan) < 1e-12
    assert {len(x) for x in law(target, Toy(3, 2), PROMPT, plan)} == {context - 1}


@pytest.mark.parametrize("rule", RULES)
def test_windows_that_end_with_an_uncertain_token(rule):
    """The length of a window depends on what was drawn, and the limit on what was accepted; the token stays."""
    plan = Plan(k=3, max_new_tokens=5, settings=SAMPLED, verification=rule, schedule="adaptive")
    target = Toy(3, 1, keeps=2)
    draft = Toy(3, 2, like=target, noise=1.0)
    assert distance(target, draft, PROMPT, plan) < 1e-12
    assert len({len(window) for window in windows(target, draft, plan)}) > 1


def windows(target, draft, plan):
    """The tokens of each step of some runs."""
    from src.speculative.decoding import make_coins
    from src.speculative.loop import Run, decode

    return [step for seed in range(20) for step in decode(Run(target, draft, PROMPT, plan, make_coins(seed)))]


@pytest.mark.parametrize("draft_settings", [Sampling(), Sampling(temperature=2.0), Sampling(1.0, top_k=1)])
@pytest.mark.parametrize("rule", RULES)
def test_a_draft_that_is_warped_otherwise(rule, draft_settings):
    for settings in (SAMPLED, Sampling()):
        plan = Plan(k=2, max_new_tokens=3, settings=settings, draft_settings=draft_settings, verification=rule)
        assert distance(*pair(3), PROMPT, plan) < 1e-12


class Speechless(Toy):
    """Has no numbers after every second token."""

    def row(self, context):
        return super().row(context) if context[-1] % 2 else [float("nan")] * self.vocabulary


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_without_numbers_leaves_it_to_the_target(rule):
    for settings in (SAMPLED, Sampling()):
        plan = Plan(k=2, max_new_tokens=4, settings=settings, verification=rule)
        assert distance(Toy(3, 1), Speechless(3, 2), PROMPT, plan) < 1e-12


def share_of_chance(target, draft, count, k, **settings):
    """The p-value of `count` sequences of two tokens that one call of `generate` decodes, against the target's law.

    The models forget everything after every second token, so that windows begin and end anywhere in a sequence.
    """
    tokens, stats = generate(
        Restarting(target, 2, 2 * count + 2),
        draft,
        None,
        torch.tensor([0, 0]),
        k=k,
        max_new_tokens=2 * count,
        **settings,
    )
    assert 0.1 < stats.acceptance_rate < 0.95
    sampling = {name: value for name, value in settings.items() if name not in ("verification", "seed")}
    wanted = own_law(target, PROMPT[:0], Plan(max_new_tokens=2, settings=Sampling(**sampling)))
    found = Counter(map(tuple, tokens.view(-1, 2).tolist()))
    assert found.keys() <= wanted.keys()
    outcomes = sorted(wanted)
    return chisquare([found[x] for x in outcomes], [count * wanted[x] for x in outcomes]).pvalue


@pytest.mark.parametrize("rule", RULES)
def test_what_is_proved_is_what_runs(rule):
    target, draft = pair(4, noise=0.4)
    settings = {"temperature": 0.9, "top_k": 3, "verification": rule, "seed": 7}
    assert share_of_chance(target, Restarting(draft, 2, 2500), 1000, 3, **settings) > 1e-3


def test_what_is_proved_is_what_runs_100_000_times():
    target, draft = pair(4, noise=0.25)
    assert share_of_chance(target, Guesses(Restarting(draft, 2, 200_002), 1), 100_000, 8, temperature=1.0) > 1e-3


@pytest.mark.parametrize("warper", [name for name in WARPERS if name != "greedy"])
def test_three_tokens_together_follow_the_target(warper):
    """The joint distribution, spec against exact, at a fixed seed; outcomes that are rare count as one."""
    target, draft, settings = Toy(3, 1), Toy(3, 2, like=Toy(3, 1), noise=0.7), WARPERS[warper]
    if penalized := settings.presence_penalty or settings.frequency_penalty or settings.repetition_penalty != 1:
        # What was generated before would count, so every sequence is a call of its own.
        calls, count, models = 150, 1, (target, draft)
    else:
        calls, count, models = 1, 500, [Restarting(model, 3, 3 * 500 + 3) for model in (target, draft)]
    prompt = torch.tensor([2, 0, 1])
    generator, found = torch.Generator().manual_seed(11), Counter()
    arguments = asdict(settings) | {"k": 2, "max_new_tokens": 3 * count, "seed": generator}
    for _ in range(calls):
        tokens, _ = generate(*models, None, prompt, **arguments)
        found.update(map(tuple, tokens.view(-1, 3).tolist()))
    wanted = own_law(target, prompt if penalized else prompt[:0], Plan(max_new_tokens=3, settings=settings))
    assert found.keys() <= wanted.keys()
    total = calls * count
    frequent = [x for x in wanted if total * wanted[x] >= 5]
    rare = 1 - sum(wanted[x] for x in frequent)
    seen = [found[x] for x in frequent] + [total - sum(found[x] for x in frequent)] * (rare > 1e-9)
    expected = [total * wanted[x] for x in frequent] + [total * rare] * (rare > 1e-9)
    assert chisquare(seen, expected).pvalue > 1e-3
