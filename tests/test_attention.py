"""Every form of the attention against the sum over keys that the definition writes down."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from src.speculative import native
from src.speculative.attention import FORMS, KEY_BLOCK, candidates
from src.speculative.fused import fits, fused


def written_down(q: np.ndarray, k: np.ndarray, v: np.ndarray, place: int) -> np.ndarray:
    """One query head over the keys up to its own position (Vaswani et al. 2017, section 3.2.1), in float64."""
    scores = np.array([q @ k[at] for at in range(place + 1)]) / np.sqrt(len(q))
    weights = np.exp(scores - scores.max())
    return sum(weight * v[at] for at, weight in enumerate(weights / weights.sum()))


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=25, deadline=None)
@example(start=KEY_BLOCK - 2, n=5, spare=1, kv_heads=2, shared=3)
@example(start=0, n=1, spare=0, kv_heads=1, shared=1)
@given(
    start=st.integers(0, 140),
    n=st.integers(1, 9),
    spare=st.integers(0, 2),
    kv_heads=st.integers(1, 3),
    shared=st.integers(1, 4),
)
def test_a_query_gets_the_mean_of_values_by_its_scores(name, start, n, spare, kv_heads, shared):
    draw = torch.Generator().manual_seed(start * 100 + n)
    q = torch.randn(n + spare, kv_heads * shared, 16, generator=draw)
    k, v = torch.randn(2, kv_heads, 256, 16, generator=draw)
    k[:, start + n :], v[:, start + n :] = 1e4, 1e4  # what an earlier pass left there must not be seen
    found = FORMS[name](start, n, q.device, q.dtype)(q, k, v)
    for row in range(n):
        for head in range(kv_heads * shared):
            keys, values = (part[head // shared].double().numpy() for part in (k, v))
            wanted = written_down(q[row, head].double().numpy(), keys, values, start + row)
            assert np.allclose(found[row].view(-1, 16)[head], wanted, atol=1e-5)


def test_what_rounds_scores_to_the_dtype_is_for_float32_alone():
    assert "products" in candidates(64, "cpu", torch.float32)
    assert not {"products", "fused"} & set(candidates(64, "cpu", torch.bfloat16))


def test_our_own_form_is_for_heads_whose_vectors_are_whole():
    assert fits(64, "cpu", torch.float32) == native.available() == (candidates(64, "cpu", torch.float32)[0] == "fused")
    assert not fits(24, "cpu", torch.float32)
    assert not fits(64, "cuda", torch.float32)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_query_of_the_fused_form_has_the_same_bits_whoever_is_with_it(threads):
    q, (k, v) = torch.randn(9, 6, 32), torch.randn(2, 2, 300, 32)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = fused(200, 9, "cpu", torch.float32)(q, k, v)
        alone = [fused(200 + i, 1, "cpu", torch.float32)(q[i : i + 1], k, v) for i in range(9)]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.cat(alone), together)


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 1000.0])
def test_the_fused_form_is_exact_for_scores_of_any_size(spread):
    """Its exponential is our own: even weights, weights that fall to nothing, and one that is all."""
    draw = torch.Generator().manual_seed(0)
    q, (k, v) = spread * torch.randn(1, 1, 16, generator=draw), torch.randn(2, 1, 90, 16, generator=draw)
    found = fused(80, 1, "cpu", torch.float32)(q, k, v)
    wanted = written_down(q[0, 0].double().numpy(), k[0].double().numpy(), v[0].double().numpy(), 80)
    assert np.allclose(found[0], wanted, atol=1e-6 * (1 + spread))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_what_is_no_number_is_not_hidden(name, where):
    parts = {"q": torch.randn(1, 1, 16), "k": torch.randn(1, 128, 16), "v": torch.randn(1, 128, 16)}
    parts[where][0, 0, 3] = torch.nan
    found = FORMS[name](80, 1, torch.device("cpu"), torch.float32)(parts["q"], parts["k"], parts["v"])
    assert found.isnan().any()
