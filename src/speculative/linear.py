"""A matrix product with fixed weights, in the format that suits the processor.

On one sequence a product costs what reading its weights costs, so the format of the weights decides. All formats give
x @ weight.T + bias; they differ in what is read, and in the order of summation, so not in every bit.

panels   our own (`panels.py`), float32 activations and sums: the fastest for a few rows, whatever the weights' type.
         Where torch's threads cannot be reached, there are the others:
packed   oneDNN's blocked layout, made once instead of in every call, for types that the processor multiplies:
         float32, bfloat16 with avx512_bf16 or AMX, float16 with avx512_fp16. torch emulates products of the others
         row by row, so that verifying would cost k+1 passes.
half     float16 weights, float32 activations and sums, by FBGEMM.
plain    the weight as it is, through torch's own kernel: what every device can do.
Groups   weights of 4 or 8 bits (`quantize.py`), for drafts: in panels, else by torch's kernels for one row.
"""

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F

from . import native, panels
from .quantize import Groups, refuse_shape

# oneDNN chooses a layout for a number of rows; the one for this many is as fast at one row and sums alike for all.
ROWS_HINT = 16


def best_format(device: torch.device, dtype: torch.dtype) -> str:
    """The fastest format for weights of that dtype on that device, for a few rows."""
    if device.type != "cpu":
        return "plain"
    if native.available():
        return "panels"
    if packs(dtype):
        return "packed"
    return "half" if "fbgemm" in torch.backends.quantized.supported_engines else "plain"


def packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies weights of that dtype on the CPU without emulation: the fastest for many rows."""
    return torch.backends.mkldnn.is_available() and (dtype == torch.float32 or multiplies(dtype))


def multiplies(dtype: torch.dtype) -> bool:
    """Whether the processor has instructions for products of bfloat16 or float16; without, they are emulated."""
    ops = torch.ops.mkldnn
    return ops._is_mkldnn_bf16_supported() if dtype == torch.bfloat16 else ops._is_mkldnn_fp16_supported()


def arithmetic(fmt: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of activations that a format takes and gives: float32 for "panels", "half", else the weights' own."""
    return torch.float32 if fmt in ("panels", "half") else dtype


def pack(weight: torch.Tensor | Groups, bias: torch.Tensor | None = None, fmt: str = "plain") -> Callable:
    """A function of x (rows, columns) -> (rows, outputs), both of the dtype that `arithmetic` tells. Its attribute
    `reads` is how many bytes of weights it reads.

    weight: (outputs, columns) or quantized; bias: (outputs,) or None. fmt: ignored for quantized weights, whose
    function takes any float dtype and gives it back. Raises ModelError for a shape that no kernel takes.
    """
    if isinstance(weight, Groups):
        refuse_shape(weight)
        product = _quantized(weight)
        return product if bias is None else _reading(product.reads, lambda x: product(x) + bias, product.panels, bias)
    if fmt == "panels":
        product = panels.pack(weight)
        add = product if bias is None else lambda x: product(x).add_(bias)
        return _reading(product.reads, add, product, bias)
    if fmt == "packed":
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
        return _reading(weight.nbytes, lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], ""))
    if fmt == "half":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that FBGEMM's packing will move to another package some day
            packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())
        return _reading(2 * weight.numel(), lambda x: torch.ops.quantized.linear_dynamic_fp16(x, packed))
    return _reading(weight.nbytes, lambda x: F.linear(x, weight, bias))


def _reading(size: int, product: Callable, in_panels: Callable | None = None, bias=None) -> Callable:
    product.reads, product.panels, product.bias = size, in_panels, bias
    return product


def _quantized(weight: Groups) -> Callable:
    if best_format(weight.values.device, torch.bfloat16) == "panels":
        product = panels.pack(weight)
        return _reading(product.reads, lambda x: product(x.float()).to(x.dtype), product)
    return _int4(weight) if weight.bits == 4 else _int8(weight)


def _int4(weight: Groups) -> Callable:
    size = weight.values.shape[1] // weight.scale.shape[1]
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.values.int(), 1)
    scales = torch.stack((weight.scale, weight.zero), -1).transpose(0, 1).bfloat16().contiguous()

    def product(x: torch.Tensor) -> torch.Tensor:
        # The kernel is fast for bfloat16 alone, on processors with and without products of that type.
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(x.bfloat16(), packed, size, scales)
        return y.to(x.dtype)

    return _reading(packed.nbytes + scales.nbytes, product)


def _int8(weight: Groups) -> Callable:
    values, scale = weight.values.contiguous(), weight.scale[:, 0].bfloat16().contiguous()
    return _reading(
        values.nbytes + scale.nbytes, lambda x: torch._weight_int8pack_mm(x.bfloat16(), values, scale).to(x.dtype)
    )
