"""All layers as one program: what the layers say one by one, and the same bits for any rows and threads."""

import pytest
import torch
from checkpoints import save_checkpoint
from test_llama import FAMILIES, reference, some_ids

from src.speculative import llama, native
from src.speculative.invariance import make_exact, probe
from src.speculative.loading import load_model

pytestmark = pytest.mark.skipif(not native.available(), reason="this processor or this torch has no panels")
# Heads of whole vectors, and rows that make whole panels of 16 and of 32 outputs.
WHOLE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def pieces(model, ids: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    model.rollback(0)
    return torch.cat([model.forward(piece) for piece in ids.split(sizes)])


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(tmp_path, name):
    family, config = FAMILIES[name]
    directory = save_checkpoint(tmp_path / "model", family, **(config | WHOLE))
    model = load_model(directory, dtype="float32")
    assert model.network.attention == "program"
    ids = some_ids(40)
    torch.testing.assert_close(pieces(model, ids, [1, 17, 1, 2, 19]), reference(directory, ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_it_says_what_the_layers_say_one_by_one(tmp_path, dtype, bits):
    directory = save_checkpoint(tmp_path / "model", "qwen2", **WHOLE)
    model, ids = load_model(directory, dtype=dtype, bits=bits), some_ids(60)
    assert model.network.attention == "program"
    together = pieces(model, ids, [20, 1, 39])
    model.network.attention = "rowwise"
    one_by_one = pieces(model, ids, [20, 1, 39])
    assert torch.allclose(together, one_by_one, atol=1e-4 * float(one_by_one.abs().max()))


@pytest.mark.parametrize("bits", [None, 4, 8])
def test_a_row_has_the_same_bits_whoever_is_with_it_and_however_many_threads(tmp_path, threads, bits):
    directory = save_checkpoint(tmp_path / "model", "qwen3", **WHOLE, head_dim=32)
    model, ids = load_model(directory, dtype="bfloat16", bits=bits), some_ids(70)
    threads(1)
    wanted = pieces(model, ids, [1] * 70)
    for count in (1, 2, 3, 7):
        threads(count)
        for sizes in ([70], [40, 5, 5, 20], [13] * 5 + [5], [2] * 35):
            assert torch.equal(pieces(model, ids, sizes), wanted), (count, sizes)


def test_what_lies_beyond_a_pass_is_neither_read_nor_kept(tmp_path):
    model = load_model(save_checkpoint(tmp_path / "model", **WHOLE), dtype="float32")
    ids = some_ids(50)
    wanted = pieces(model, ids, [50])
    model.forward(some_ids(150, seed=1))
    with torch.inference_mode():
        for cache in model.network._cache:
            cache[:, 50:] = torch.nan
    model.rollback(30)
    assert torch.equal(model.forward(ids[30:]), wanted[30:])


def test_a_cache_that_grows_is_followed(tmp_path):
    model = load_model(save_checkpoint(tmp_path / "model", max_position_embeddings=2048, **WHOLE), dtype="float32")
    ids = some_ids(700)
    grown = pieces(model, ids, [500, 1, 199])
    assert model.network.capacity > 512
    assert torch.equal(pieces(model, ids, [700]), grown)


@pytest.mark.parametrize("sizes", [{"head_dim": 8}, {"head_dim": 24}, {"intermediate_size": 72}, {"hidden_size": 40}])
def test_sizes_that_make_no_whole_panels_go_layer_by_layer(tmp_path, sizes):
    directory = save_checkpoint(tmp_path / "model", **(WHOLE | {"head_dim": 16} | sizes))
    model, ids = load_model(directory, dtype="float32"), some_ids(20)
    assert model.network.attention != "program"
    torch.testing.assert_close(pieces(model, ids, [20]), reference(directory, ids), atol=1e-4, rtol=1e-4)


def test_what_is_no_number_is_not_hidden(tmp_path):
    model = load_model(save_checkpoint(tmp_path / "model", **WHOLE), dtype="float32")
    model.network.embedding[7] = torch.nan
    assert pieces(model, torch.tensor([1, 7, 2]), [3])[1:].isnan().all()


def test_a_program_that_feels_its_rows_passes_no_probe(tmp_path, monkeypatch):
    def broken(network, shape, made=llama.program):
        through = made(network, shape)
        return lambda x, start: through(x, start) * (1 + len(x) * 2.0**-20)

    monkeypatch.setattr(llama, "program", broken)
    model = load_model(save_checkpoint(tmp_path / "model", max_position_embeddings=1024, **WHOLE), dtype="float32")
    assert probe(model.network)[0] != "program"
    assert make_exact(model)
    assert model.network.attention != "program"
