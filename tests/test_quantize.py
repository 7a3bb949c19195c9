"""Weights in 4 and 8 bits: products against the dequantized matrix, and files against what was written."""

import pytest
import torch
from checkpoints import save_checkpoint

from src.speculative.errors import ModelError
from src.speculative.linear import pack
from src.speculative.loading import load_model, load_models
from src.speculative.quantize import load_quantized, quantize, quantize_checkpoint
from src.speculative.weights import read_weights

WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error(weight: torch.Tensor, approximation: torch.Tensor) -> float:
    return float((weight - approximation).norm() / weight.norm())


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(("shape", "bits", "size"), [
    ((16, 32), 4, 32), ((48, 256), 4, 64), ((960, 576), 4, 32), ((64, 512), 4, 256), ((7, 96), 8, None),
    ((576, 1536), 8, None),
])  # fmt: skip
def test_the_product_is_that_of_the_dequantized_matrix(shape, bits, size, rows):
    weight = quantize(normal(*shape), bits, size)
    x = normal(rows, shape[1], seed=1).bfloat16()
    wanted = x.float() @ weight.dequantize().T
    # The kernels add up in float32 but take and give bfloat16, which keeps 8 bits.
    torch.testing.assert_close(pack(weight)(x).float(), wanted, atol=2e-2 * float(wanted.std()), rtol=2e-2)


def test_a_bias_is_added():
    weight, bias = quantize(normal(32, 32), 4, 32), normal(32, seed=3)
    x = normal(1, 32, seed=1)
    torch.testing.assert_close(pack(weight, bias)(x), pack(weight)(x) + bias)


def test_a_matrix_that_lies_on_a_grid_of_four_bits_is_kept():
    values = torch.randint(0, 16, (32, 4, 32), generator=torch.Generator().manual_seed(0)).float()
    values[..., 0], values[..., 1] = 0, 15
    scale = torch.rand(32, 4, 1, generator=torch.Generator().manual_seed(1)) + 0.5
    weight = (values * scale - 5 * scale).flatten(1)
    # What is left is the rounding of scale and zero to bfloat16.
    assert error(weight, quantize(weight, 4, 32).dequantize()) < 4e-3


def test_four_bits_err_less_than_plain_rounding_over_the_range():
    weight = normal(256, 256)
    groups = weight.unflatten(1, (-1, 32))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    plain = ((groups - low) / (high - low) * 15).round() / 15 * (high - low) + low
    assert error(weight, quantize(weight, 4, 32).dequantize()) < 0.97 * error(weight, plain.flatten(1))


def test_eight_bits_err_by_half_a_step():
    weight = normal(64, 96)
    step = weight.abs().amax(1, keepdim=True) / 127
    off = (quantize(weight, 8).dequantize() - weight).abs()
    # Half a step, and what rounding the scale to bfloat16 adds at the largest values.
    assert bool((off <= 0.5 * step * 1.01 + weight.abs() / 256).all())


def test_constant_groups_and_zeros_are_kept():
    weight = torch.cat((torch.zeros(16, 32), torch.full((16, 32), 0.25)))
    torch.testing.assert_close(quantize(weight, 4, 32).dequantize(), weight, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(quantize(torch.zeros(4, 32), 8).dequantize(), torch.zeros(4, 32))


@pytest.mark.parametrize(("bits", "size"), [(4, 32), (8, None)])
def test_a_checkpoint_comes_back_as_it_was_written(tmp_path, bits, size):
    source = save_checkpoint(tmp_path / "source", **WIDE, vocabulary=272)
    quantize_checkpoint(source, tmp_path / "small", bits, size)
    original, stored = read_weights(source), load_quantized(tmp_path / "small")
    assert stored.keys() == original.keys()
    for name, weight in original.items():
        if weight.dim() == 1:
            assert torch.equal(stored[name], weight)
            continue
        wanted = quantize(weight, 8 if name == "model.embed_tokens.weight" else bits, size)
        assert torch.equal(stored[name].values, wanted.values)
        assert torch.equal(stored[name].dequantize(), wanted.dequantize())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("bits", "size"), [(4, 32), (8, None)])
def test_a_quantized_model_is_the_model_with_dequantized_weights(tmp_path, bits, size, dtype):
    from safetensors.torch import save_file

    source = save_checkpoint(tmp_path / "source", **WIDE, vocabulary=272)
    quantize_checkpoint(source, tmp_path / "small", bits, size)
    wide = {
        n: w if isinstance(w, torch.Tensor) else w.dequantize() for n, w in load_quantized(tmp_path / "small").items()
    }
    save_file(wide, source / "model.safetensors", metadata={"format": "pt"})
    ids = torch.arange(3, 20)
    wanted = load_model(source, dtype="float32").forward(ids)
    got = load_model(tmp_path / "small", dtype=dtype).forward(ids).float()
    # bfloat16 activations at each product: the distributions agree, not the digits.
    assert error(wanted, got) < 0.05


def test_quantizing_at_load_is_quantizing_a_checkpoint(tmp_path):
    source = save_checkpoint(tmp_path / "source", **WIDE, vocabulary=272)
    quantize_checkpoint(source, tmp_path / "small", 4, 32)
    ids = torch.arange(3, 20)
    at_load = load_models(source, source, draft_quantization=4)[1]
    assert torch.equal(at_load.forward(ids), load_model(tmp_path / "small", dtype="float32").forward(ids))


@pytest.mark.parametrize(("shape", "bits", "size", "says"), [
    ((16, 50), 4, 32, "does not divide 50 columns"),
    ((16, 64), 4, None, "does not divide"),
    ((16, 64), 3, 32, "allowed: 4 or 8"),
])  # fmt: skip
def test_sizes_that_cannot_be_quantized_are_refused(shape, bits, size, says):
    with pytest.raises(ModelError, match=says):
        quantize(normal(*shape), bits, size)


@pytest.mark.parametrize(("shape", "size"), [((20, 64), 32), ((16, 64), 16)])
def test_sizes_that_no_kernel_takes_are_refused(shape, size):
    with pytest.raises(ModelError, match="cannot be multiplied in 4 bits; allowed: rows that 16 divides"):
        pack(quantize(normal(*shape), 4, size))


def test_rows_beyond_whose_end_the_kernel_would_read_are_refused():
    with pytest.raises(ModelError, match=r"a weight of 16 x 50 .* allowed: columns that 32 divides"):
        pack(quantize(normal(16, 50), 8))


def test_a_checkpoint_that_no_kernel_takes_leaves_nothing_behind(tmp_path):
    source = save_checkpoint(tmp_path / "source", **(WIDE | {"head_dim": 8, "num_key_value_heads": 1}))
    with pytest.raises(ModelError, match=r"source: .*[kv]_proj\.weight: a weight of 8 x 64"):
        quantize_checkpoint(source, tmp_path / "small", 4, 32)
    assert not (tmp_path / "small").exists()


def test_devices_without_such_kernels_are_refused(tmp_path, monkeypatch):
    from src.speculative import loading

    source = save_checkpoint(tmp_path / "source", **WIDE)
    monkeypatch.setattr(loading, "check_device", lambda device: torch.device("cuda"))
    with pytest.raises(ModelError, match="kernels on the CPU alone; device is cuda"):
        load_model(source, device="cuda", bits=8)


@pytest.mark.models
def test_a_target_off_the_grid_of_four_bits_keeps_a_useful_draft_in_them(real, tmp_path, capsys):
    """SmolLM2's weights come out of a 4-bit file, which flatters a draft of 4 bits. With noise of 3 % of each matrix's
    standard deviation they do not."""
    from safetensors.torch import save_file

    from src.pipeline.prompts import load_prompts
    from src.speculative.decoding import generate

    source, noisy = real("smollm2-135m"), tmp_path / "noisy"
    noisy.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (noisy / file.name).write_bytes(file.read_bytes())
    chance = torch.Generator().manual_seed(0)
    weights = {
        name: w if w.dim() < 2 else (w.float() + 0.03 * w.float().std() * torch.randn(w.shape, generator=chance)).to(w)
        for name, w in read_weights(source).items()
    }
    save_file(weights, noisy / "model.safetensors", metadata={"format": "pt"})
    quantize_checkpoint(noisy, tmp_path / "small", 4, 32)
    target, draft, tok = load_models(noisy, tmp_path / "small", dtype="bfloat16")
    totals = {"passes": 0, "tokens": 0, "proposed": 0, "accepted": 0}
    for prompt in load_prompts("prompts/default.jsonl")[:6]:
        options = {"max_new_tokens": 32, "chat": True, "ignore_eos": True}
        tokens, stats = generate(target, draft, tok, prompt.prompt, k=4, **options)
        plain, _ = generate(target, None, tok, prompt.prompt, **options)
        if target.exact:
            assert torch.equal(tokens, plain)
        totals["passes"] += stats.target_passes
        totals["tokens"] += stats.generated
        totals["proposed"] += stats.proposed
        totals["accepted"] += stats.accepted
    alpha, tau = totals["accepted"] / totals["proposed"], totals["tokens"] / totals["passes"]
    with capsys.disabled():
        print(f"\nnoise of 3 %, four bits, k=4, greedy: α {alpha:.2f}, τ {tau:.2f}")
    assert tau > 2
