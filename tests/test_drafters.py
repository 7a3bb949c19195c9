"""Prompt lookup, windows of adaptive length, drafts of another context, and continuing where a call ended."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Scripted, Toy

from src.speculative import PromptLookup, Sampling, generate
from src.speculative.errors import ModelError
from src.speculative.schedule import Adaptive, Fixed

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT = torch.tensor([1, 0])


def looked_up(tokens, limit):
    """What prompt lookup proposes, by search: the latest earlier place of the longest of the last 3, 2, 1 tokens."""
    for n in range(min(3, len(tokens) - 1), 0, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n : start + n + limit]
    return []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 6), st.lists(st.integers(1, 5), max_size=9))
@settings(max_examples=300, deadline=None)
def test_prompt_lookup_copies_from_the_latest_place(tokens, limit, steps):
    drafter, sequence = PromptLookup(), torch.tensor(tokens)
    drafter.begin(sequence[:1], 4)
    for end in sorted({*(min(len(tokens), sum(steps[:i]) + 1) for i in range(len(steps))), len(tokens)}):
        proposal = drafter.propose(sequence[:end], limit)
        assert proposal.tokens.tolist() == looked_up(tokens[:end], limit) and proposal.q is None
        drafter.settle(end)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_prompt_lookup_costs_nothing_and_changes_nothing(k):
    script = [5, 1, 2, 3, 4, 1, 2, 3, 6, 1, 2, 3, 4, 7]
    target = Scripted(8, script)
    plain, _ = generate(target, None, None, PROMPT, max_new_tokens=40)
    tokens, stats = generate(target, PromptLookup(), None, PROMPT, k=k, max_new_tokens=40)
    assert tokens.tolist() == plain.tolist()
    assert stats.draft_passes == 0 and stats.target_passes < 30 and stats.accepted > 5


def test_one_drafter_serves_many_calls():
    target, drafter = Toy(4, 1, context=64), PromptLookup()
    for seed in range(3):
        wanted = generate(target, PromptLookup(), None, PROMPT, temperature=1.0, max_new_tokens=30, seed=seed)[0]
        got = generate(target, drafter, None, PROMPT, temperature=1.0, max_new_tokens=30, seed=seed)[0]
        assert got.tolist() == wanted.tolist()


def test_the_limit_follows_what_was_accepted():
    schedule = Adaptive(6)
    limits = []
    for proposed, accepted in ((6, 2), (5, 4), (4, 0), (3, 3), (5, 5), (6, 6), (0, 0), (6, 5)):
        schedule.settle(proposed, accepted)
        limits.append(schedule.limit)
    assert limits == [5, 4, 3, 5, 6, 6, 6, 5]
    for _ in range(9):
        schedule.settle(1, 0)
    assert schedule.limit == 1
    fixed = Fixed(6)
    fixed.settle(6, 0)
    assert fixed.limit == 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_uncertain_token_ends_its_window_and_stays_in_it(temperature):
    """A draft that gives four tokens a quarter each proposes one a step; one that is sure proposes k at first."""
    settings = {"k": 4, "schedule": "adaptive", "temperature": temperature, "max_new_tokens": 12}
    for noise, most in ((0.0, 1), (60.0, 4)):
        target, draft = Toy(4, 1), Toy(4, 2, noise=noise)
        _, stats = generate(target, draft, None, PROMPT, **settings)
        assert sum(n > 0 for n in stats.proposed_by_position) == most


def test_nothing_of_a_schedule_outlives_its_call():
    target, draft = Toy(4, 1, context=64), Toy(4, 9, context=64)
    settings = {"k": 5, "schedule": "adaptive", "temperature": 1.0, "max_new_tokens": 30, "seed": 2}
    first = generate(target, draft, None, PROMPT, **settings)[1]
    again = generate(target, draft, None, PROMPT, **settings)[1]
    assert first.histogram == again.histogram and first.draft_passes == again.draft_passes


@pytest.mark.parametrize("context", [1, 2, 3, 6, 10])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_with_a_shorter_context_stops_proposing(context, temperature):
    target, draft = Toy(4, 1), Toy(4, 1, context=context)
    settings = {"temperature": temperature, "verification": "match", "max_new_tokens": 15, "seed": 3}
    plain, _ = generate(target, None, None, PROMPT, **settings)
    tokens, stats = generate(target, draft, None, PROMPT, k=4, **settings)
    assert tokens.tolist() == plain.tolist()
    assert draft.length <= context and (stats.draft_passes > 0) == (context > 1)


@pytest.mark.parametrize("length", [31, 32])
def test_a_prompt_as_long_as_the_context(length):
    """A token that fits no more can still be decoded, just not fed."""
    target, draft = Toy(4, 1, context=32), Toy(4, 2, context=32)
    prompt = torch.arange(length) % 4
    for other in (None, draft):
        tokens, stats = generate(target, other, None, prompt, k=4)
        assert len(tokens) == 33 - length and stats.stop == "context"


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_continuing_reuses_both_caches(k, temperature):
    """A second call whose prompt begins with the first one's tokens gives what it gives from empty caches."""
    target, draft = Toy(4, 1, context=64), Toy(4, 2, context=64)
    settings = {"k": k, "temperature": temperature, "max_new_tokens": 9}
    first, _ = generate(target, draft, None, PROMPT, **settings)
    for prompt in (
        torch.cat((PROMPT, first)),
        torch.cat((PROMPT, first, torch.tensor([2, 2]))),
        torch.cat((PROMPT, first[:4], torch.tensor([3]))),
        PROMPT,
        torch.tensor([3]),
    ):
        fresh = generate(Toy(4, 1, context=64), Toy(4, 2, context=64), None, prompt, **settings)
        tokens, stats = generate(target, draft, None, prompt, **settings)
        assert tokens.tolist() == fresh[0].tolist()
        assert stats.accepted == fresh[1].accepted
        shared = [a == b for a, b in zip(prompt[:-1].tolist(), [*PROMPT.tolist(), *first.tolist()][:-1], strict=False)]
        assert stats.reused_tokens >= (len(shared) if all(shared) else shared.index(False)) or prompt is PROMPT
        generate(target, draft, None, PROMPT, **settings)


def test_a_model_that_is_not_width_invariant_starts_anew():
    target, draft = Toy(4, 1), Toy(4, 2)
    target.exact = draft.exact = False
    generate(target, draft, None, PROMPT, max_new_tokens=5)
    assert generate(target, draft, None, PROMPT, max_new_tokens=5)[1].reused_tokens == 0


def test_a_trimmed_head_that_names_what_the_target_lacks_is_refused():
    with pytest.raises(ModelError, match="names token 5"):
        generate(Toy(4, 1), Toy(6, 2, token_ids=[1, 5]), None, PROMPT)


def test_a_draft_may_be_warped_otherwise():
    target, draft = Toy(4, 1), Toy(4, 1)
    settings = {"k": 4, "temperature": 1.0, "max_new_tokens": 25, "seed": 1}
    assert generate(target, draft, None, PROMPT, **settings)[1].acceptance_rate == 1
    hot = generate(target, draft, None, PROMPT, draft_settings=Sampling(temperature=3.0), **settings)[1]
    assert hot.acceptance_rate < 1
