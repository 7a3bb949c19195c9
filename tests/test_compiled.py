"""The compiled pass: what the plain pass says, from a few programs that are made before anybody waits for them."""

import pytest
import torch
from checkpoints import save_checkpoint
from test_invariance import real_ids, windows

from src.speculative.errors import ModelError
from src.speculative.invariance import make_exact
from src.speculative.loading import load_model, load_models

SIZES = {"num_attention_heads": 6, "head_dim": 16, "max_position_embeddings": 1024}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Of the family that has most to it: norms of queries and keys, besides all that the others have."""
    return save_checkpoint(tmp_path_factory.mktemp("model"), "qwen3", **SIZES)


@pytest.fixture(scope="module")
def both(checkpoint):
    return load_model(checkpoint), load_model(checkpoint, compile=True)


def programs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_it_gives_the_plain_logits(both):
    ids = torch.randint(258, (200,), generator=torch.Generator().manual_seed(1))
    plain, compiled = (windows(model, ids, 50) for model in both)
    assert torch.allclose(plain, compiled, atol=1e-4)


def test_no_width_context_or_length_of_the_cache_makes_a_program_anew(both):
    before, ids = programs(), torch.randint(258, (600,), generator=torch.Generator().manual_seed(1))
    for width in (1, 2, 5, 17, 100):
        windows(both[1], ids, width)
    assert both[1].network.capacity > 512
    assert programs() == before > 0


def test_every_width_gives_the_same_bits(both):
    model = both[1]
    assert make_exact(model), "this processor has no invariant pass in float32"
    ids = torch.randint(258, (140,), generator=torch.Generator().manual_seed(1))
    single = windows(model, ids, 1)
    for width in range(2, 10):
        assert torch.equal(windows(model, ids, width), single), width


def test_without_a_compiler_there_is_one_sentence(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    with (
        torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(ModelError, match=r"^compile: torch cannot compile here \(.*\); allowed is false, or true where"),
    ):
        load_model(checkpoint, compile=True)


def test_a_model_of_transformers_own_pass_is_refused(tmp_path):
    save_checkpoint(tmp_path / "gpt", "gpt_neox")
    with pytest.raises(ModelError, match="so it cannot be trimmed, quantized or compiled"):
        load_model(tmp_path / "gpt", compile=True)


@pytest.mark.models
def test_the_real_pair_decodes_alike(real):
    from src.speculative.decoding import generate

    directory = real("smollm2-135m")
    draft = real("smollm2-int4")
    target, draft, tok = load_models(directory, draft, dtype="bfloat16", compile=True)
    assert target.exact
    plain = load_model(directory, dtype="bfloat16")
    ids = real_ids(directory, 150)
    assert torch.allclose(
        windows(plain, ids, 30), windows(target, ids, 30), atol=5e-3 if plain.dtype == torch.float32 else 0.5
    )
    alone, _ = generate(target, None, tok, "Why is the sky blue?", max_new_tokens=80, chat=True)
    for k in (1, 4):
        tokens, _ = generate(target, draft, tok, "Why is the sky blue?", k=k, max_new_tokens=80, chat=True)
        assert torch.equal(tokens, alone), k
