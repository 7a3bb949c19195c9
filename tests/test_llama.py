"""The fast pass against transformers' own forward, in float32, for every family and rope type that it takes."""

import pytest
import torch
from checkpoints import save_checkpoint

from src.speculative.errors import ModelError
from src.speculative.llama import unsupported
from src.speculative.loading import load_model
from src.speculative.models import FastModel, TransformersModel

ROPE = {"rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **ROPE}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, **ROPE,
}  # fmt: skip
FAMILIES = {
    "llama": ("llama", {}),
    "llama untied": ("llama", {"tie_word_embeddings": False}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama with linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, **ROPE}}),
    "llama with yarn": ("llama", {"rope_parameters": YARN}),
    "llama with wide heads": ("llama", {"head_dim": 16}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
}


def reference(directory, ids: torch.Tensor) -> torch.Tensor:
    """Logits (n, vocabulary) of transformers' own forward without a cache."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(ids[None], use_cache=False).logits[0]


def some_ids(n: int, below: int = 258, seed: int = 0) -> torch.Tensor:
    return torch.randint(below, (n,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("attention", ["plain", "batched", "rowwise"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(tmp_path, name, attention):
    family, config = FAMILIES[name]
    directory = save_checkpoint(tmp_path / "model", family, **config)
    model = load_model(directory, dtype="float32")
    assert isinstance(model, FastModel)
    model.network.attention, model.network.widths = attention, (3, 5, 18) if attention == "batched" else ()
    ids = some_ids(40)
    pieces = [model.forward(piece) for piece in ids.split([1, 17, 1, 2, 19])]
    torch.testing.assert_close(torch.cat(pieces), reference(directory, ids), atol=1e-4, rtol=1e-4)


def test_other_architectures_run_through_transformers(tmp_path):
    directory = save_checkpoint(tmp_path / "model", "gpt_neox", use_parallel_residual=False)
    model = load_model(directory, dtype="float32")
    assert isinstance(model, TransformersModel)
    ids = some_ids(30)
    model.forward(some_ids(12, seed=1))
    model.rollback(0)
    model.forward(ids[:20])
    model.rollback(11)
    logits = torch.cat([model.forward(ids[11:12]), model.forward(ids[12:])])
    torch.testing.assert_close(logits, reference(directory, ids)[11:], atol=1e-4, rtol=1e-4)


def test_a_sliding_window_is_left_to_transformers(tmp_path):
    directory = save_checkpoint(tmp_path / "model", "mistral", sliding_window=8)
    model = load_model(directory, dtype="float32")
    assert isinstance(model, TransformersModel)
    ids = some_ids(30)
    torch.testing.assert_close(model.forward(ids), reference(directory, ids), atol=1e-4, rtol=1e-4)


def test_what_the_fast_pass_cannot_do_is_named():
    from transformers import AutoConfig

    assert unsupported(AutoConfig.for_model("llama")) is None
    assert "gpt2" in unsupported(AutoConfig.for_model("gpt2"))
    assert "gelu" in unsupported(AutoConfig.for_model("llama", hidden_act="gelu"))
    dynamic = {"rope_type": "dynamic", "factor": 2.0, **ROPE}
    assert "dynamic" in unsupported(AutoConfig.for_model("llama", rope_parameters=dynamic))


def test_a_trimmed_head_gives_the_columns_of_the_whole_one(tmp_path):
    directory = save_checkpoint(tmp_path / "model")
    kept = torch.tensor([3, 100, 17, 257])
    whole, trimmed = load_model(directory), load_model(directory, vocab=kept)
    ids = some_ids(9)
    torch.testing.assert_close(trimmed.forward(ids), whole.forward(ids)[:, kept], atol=1e-5, rtol=1e-5)


def test_a_cache_that_grows_keeps_what_it_holds(tmp_path):
    directory = save_checkpoint(tmp_path / "model", max_position_embeddings=2048)
    model, ids = load_model(directory, dtype="float32"), some_ids(1100)
    pieces = [model.forward(piece) for piece in ids.split(300)]
    torch.testing.assert_close(torch.cat(pieces)[-1:], reference(directory, ids)[-1:], atol=1e-4, rtol=1e-4)


def test_a_missing_weight_is_named(tmp_path):
    from safetensors.torch import load_file, save_file

    directory = save_checkpoint(tmp_path / "model")
    weights = load_file(directory / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.down_proj"):
        load_model(directory)


@pytest.mark.models
def test_the_real_model_agrees_with_transformers(real):
    directory = real("smollm2-135m")
    from src.speculative.loading import load_tokenizer

    text = "Decoding one token reads every weight of the model once, so its speed is that of the memory. " * 4
    ids = load_tokenizer(directory)(text, return_tensors="pt").input_ids[0]
    model = load_model(directory, dtype="float32")
    logits = torch.cat([model.forward(piece) for piece in ids.split(17)])
    torch.testing.assert_close(logits, reference(directory, ids), atol=1e-4, rtol=0)
