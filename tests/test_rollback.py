"""A cache that was fed and rolled back in any order gives the logits of a fresh pass over what remains."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import all_logits, tiny_model

from src.speculative.errors import ModelError
from src.speculative.models import TransformersModel

FED = st.lists(st.integers(0, 257), min_size=1, max_size=9)
pytestmark = pytest.mark.usefixtures("one_thread")
MOVES = st.lists(st.tuples(FED, st.integers(1, 9), st.floats(0, 1)), min_size=1, max_size=6)


@pytest.fixture(scope="module", params=["llama", "qwen2", "llama through transformers"])
def pair(request, tmp_path_factory):
    model, reference = tiny_model(tmp_path_factory.mktemp("model"), request.param.split()[0])
    model.chunk = 4  # so that most passes are run in pieces
    return (TransformersModel(reference) if "through" in request.param else model), reference


@settings(max_examples=30, deadline=None)
@given(moves=MOVES)
def test_any_sequence_of_passes_and_rollbacks(pair, moves):
    model, reference = pair
    model.rollback(0)
    held = []
    for fed, keep, share in moves:
        logits = model.forward(torch.tensor(fed), keep=keep)
        held += fed
        wanted = all_logits(reference, torch.tensor(held))[-min(keep, len(fed)) :]
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)
        assert model.tokens.tolist() == held
        del held[int(share * len(held)) :]
        model.rollback(len(held))


def test_rolling_back_to_what_never_was_is_an_error(pair):
    model, _ = pair
    model.rollback(0)
    model.forward(torch.tensor([1, 2, 3]))
    for length in (-1, 4):
        with pytest.raises(ModelError, match="cannot roll back"):
            model.rollback(length)
    assert model.length == 3
