"""From logits to p: equal to transformers' own processors, row by row, each row with its own past."""

import math

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import warped

from src.speculative.errors import ModelError
from src.speculative.sampling import Sampling, argmax, peak, warp

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = 24
IDS = st.integers(0, SIZE - 1)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0.2, 3),
    top_k=st.integers(0, SIZE + 3),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
    min_p=st.one_of(st.just(0.0), st.floats(0.01, 0.8)),
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.5, 2)),
    logit_bias=st.dictionaries(IDS, st.floats(-4, 4), max_size=3),
    forbidden=st.lists(IDS, max_size=3, unique=True).map(tuple),
)
PENALTIES = st.builds(
    Sampling,
    temperature=st.floats(0.2, 3),
    repetition_penalty=st.floats(0.5, 2),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    top_k=st.integers(0, 6),
    forbidden=st.lists(IDS, max_size=3, unique=True).map(tuple),
)
CASE = {
    "seed": st.integers(0, 10**6),
    "context": st.lists(IDS, min_size=1, max_size=8).map(torch.tensor),
    "window": st.lists(IDS, max_size=4).map(lambda ids: torch.tensor(ids, dtype=torch.int64)),
}


def logits_of(seed, rows, dtype=torch.float32):
    return 4 * torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def processed(logits, chosen, past):
    """One row (1, SIZE) through transformers' processors, in the order of its generate()."""
    steps = []
    if chosen.logit_bias:
        steps.append(hf.SequenceBiasLogitsProcessor({(i,): bias for i, bias in chosen.logit_bias.items()}))
    if chosen.repetition_penalty != 1:
        steps.append(hf.RepetitionPenaltyLogitsProcessor(chosen.repetition_penalty))
    if chosen.forbidden:
        steps.append(hf.SuppressTokensLogitsProcessor(list(chosen.forbidden)))
    steps.append(hf.TemperatureLogitsWarper(chosen.temperature))
    if chosen.top_k:
        steps.append(hf.TopKLogitsWarper(chosen.top_k))
    if chosen.top_p < 1:
        steps.append(hf.TopPLogitsWarper(chosen.top_p))
    if chosen.min_p:
        steps.append(hf.MinPLogitsWarper(chosen.min_p))
    return hf.LogitsProcessorList(steps)(past[None], logits).softmax(-1)[0]


@settings(max_examples=150, deadline=None)
@given(chosen=SAMPLINGS, **CASE)
def test_p_is_what_transformers_processors_give(chosen, seed, context, window):
    logits = logits_of(seed, len(window) + 1)
    before = logits.clone()
    p = warp(logits, chosen, context, window)
    for i, row in enumerate(p):
        wanted = processed(logits[i : i + 1].clone(), chosen, torch.cat((context, window[:i])))
        torch.testing.assert_close(row, wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(logits, before)


@settings(max_examples=100, deadline=None)
@given(chosen=PENALTIES, prompt=st.integers(0, 8), **CASE)
def test_penalties_count_what_each_row_has_seen(chosen, prompt, seed, context, window):
    """Presence and frequency, which transformers lacks, from their definitions: the prompt does not count."""
    logits = logits_of(seed, len(window) + 1, torch.float64)
    p = warp(logits, chosen, context, window, prompt)
    for i, row in enumerate(p.tolist()):
        generated = [*context[prompt:].tolist(), *window[:i].tolist()]
        wanted = warped(logits[i].tolist(), chosen, context[:prompt].tolist(), generated)
        assert row == pytest.approx(wanted, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(chosen=SAMPLINGS, **CASE)
def test_a_row_does_not_feel_its_neighbours(chosen, seed, context, window):
    """To the bit, or plain and speculative decoding would sample from laws that differ."""
    logits = logits_of(seed, len(window) + 1).bfloat16()
    p = warp(logits, chosen, context, window)
    assert p.dtype == torch.float32
    for i in range(len(p)):
        alone = warp(logits[i : i + 1], chosen, torch.cat((context, window[:i])), window[:0])
        assert torch.equal(p[i], alone[0])


@given(chosen=PENALTIES, **CASE)
@settings(max_examples=60, deadline=None)
def test_greedy_is_the_likeliest_token_after_the_penalties(chosen, seed, context, window):
    greedy = Sampling(0.0, 0, 1.0, 0.0, chosen.repetition_penalty, chosen.presence_penalty, forbidden=chosen.forbidden)
    same = Sampling(1.0, 0, 1.0, 0.0, chosen.repetition_penalty, chosen.presence_penalty, forbidden=chosen.forbidden)
    logits = logits_of(seed, len(window) + 1)
    best = argmax(logits, greedy, context, window)
    assert torch.equal(best, warp(logits, same, context, window).argmax(-1))
    assert torch.equal(warp(logits, greedy, context, window), torch.nn.functional.one_hot(best, SIZE).float())


@given(st.integers(1, 4), st.sampled_from([1, 5, 64, 128, 200]), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_peak_is_the_first_of_the_largest(rows, columns, seed):
    scores = torch.randint(-3, 4, (rows, columns), generator=torch.Generator().manual_seed(seed)).float()
    values, ids = peak(scores)
    for row, value, index in zip(scores.tolist(), values.tolist(), ids.tolist(), strict=True):
        assert value == max(row) and index == row.index(max(row))


def test_what_ties_with_the_last_one_kept_is_kept():
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0, 1.0]])
    none = torch.tensor([], dtype=torch.int64)
    for chosen in (Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.6)):
        assert (warp(logits, chosen, none, none)[0] > 0).tolist() == [True, True, True, False, True]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rows_that_are_no_numbers_are_an_error(value, temperature):
    for columns in (5, 128):
        logits = torch.zeros(3, columns)
        logits[1, 3] = value
        none = torch.tensor([], dtype=torch.int64)
        with pytest.raises(ModelError, match="row 1"):
            warp(logits, Sampling(temperature), none, none)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forbidding_every_token_is_an_error(temperature):
    with pytest.raises(ModelError, match="every token is forbidden"):
        none = torch.tensor([], dtype=torch.int64)
        warp(torch.zeros(1, 3), Sampling(temperature, forbidden=(0, 1, 2)), none, none)
