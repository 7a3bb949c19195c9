"""Our own product: against sums taken one by one and float64, and the same bits for any rows and threads."""

import numpy as np
import pytest
import torch

from src.speculative import linear, native, panels
from src.speculative.quantize import Groups, quantize_weights

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(16, 32), (48, 7), (100, 50), (1, 1), (258, 64)]  # of odd columns, too, which two in 32 bits cannot be

pytestmark = pytest.mark.skipif(not native.available(), reason="this processor or this torch has no panels")


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def quantized(bits: int, outputs=112, columns=96) -> Groups:
    weight = torch.randn(outputs, columns, generator=torch.Generator().manual_seed(bits))
    name = "model.embed_tokens.weight" if bits == 8 else "model.layers.0.mlp.up_proj.weight"
    return quantize_weights({name: weight, "lm_head.weight": weight}, bits, 32)[name]


def one_by_one(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Column after column, each product added exactly and the sum rounded once, in arithmetic of 64 bits or more."""
    sums = np.zeros((len(x), len(weight)), np.float32)
    x, weight = x.numpy().astype(np.longdouble), weight.float().numpy().astype(np.longdouble)
    for i in range(x.shape[1]):
        sums = (sums + x[:, i : i + 1] * weight[:, i]).astype(np.float32)
    return torch.from_numpy(sums)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_those_of_fused_multiply_adds_in_the_order_of_the_columns(dtype, shape):
    generator = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(rows, shape[1], generator=generator) for rows in (shape[0], 14))
    weight = weight.to(dtype)
    assert torch.equal(panels.pack(weight)(x), one_by_one(x, weight))


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_weights_are_multiplied_as_the_numbers_that_they_stand_for(bits):
    weight, x = quantized(bits), torch.randn(7, 96)
    exact = x.double() @ weight.dequantize().double().T
    assert torch.allclose(panels.pack(weight)(x).double(), exact, rtol=0, atol=2e-5 * float(exact.abs().max()))


@pytest.mark.parametrize("weight", [*(torch.randn(100, 50).to(dtype) for dtype in DTYPES), quantized(4), quantized(8)])
def test_a_row_has_the_same_bits_whoever_is_with_it_and_however_many_threads(threads, weight):
    product, columns = panels.pack(weight), 96 if isinstance(weight, Groups) else 50
    x = torch.randn(40, columns)
    together = product(x)
    for count in (1, 2, 3, 5):
        threads(count)
        assert torch.equal(product(x), together)
        for rows in range(1, 20):
            assert torch.equal(product(x[rows : 2 * rows]), together[rows : 2 * rows])


def test_it_reads_no_more_than_the_weights_and_keeps_its_own_copy():
    weight = torch.randn(64, 32).bfloat16()
    product = panels.pack(weight)
    wanted = product(torch.ones(1, 32))
    assert product.reads == weight.nbytes
    weight.zero_()
    assert torch.equal(product(torch.ones(1, 32)), wanted)


@pytest.mark.parametrize("fmt", ["plain", "packed", "panels", "half"])
def test_all_formats_give_the_same_product(fmt):
    if fmt == "half" and "fbgemm" not in torch.backends.quantized.supported_engines:
        fmt = "plain"
    weight, bias, x = torch.randn(64, 32), torch.randn(64), torch.randn(3, 32)
    found = linear.pack(weight, bias, fmt)(x)
    assert torch.allclose(found, x @ weight.T + bias, atol=1e-2 if fmt == "half" else 1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_where_there_are_no_panels_torch_multiplies_quantized_weights(monkeypatch, bits):
    weight, x = quantized(bits), torch.randn(2, 96)
    ours = linear.pack(weight)(x)
    monkeypatch.setattr(native, "available", lambda: False)
    theirs = linear.pack(weight)(x)
    assert torch.allclose(ours, theirs, atol=0.03 * float(ours.abs().max())), "its activations are bfloat16"
    assert linear.best_format(torch.device("cpu"), torch.bfloat16) != "panels"
