"""The matrix product of training, and the two products of its gradient."""

import torch
import torch.nn.functional as F

from src.speculative.linear import packs


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x (..., in) times weight (out, in) transposed, plus bias (out,): differentiable, (..., out)."""
    if x.device.type != "cpu" or not packs(x.dtype):
        return F.linear(x, weight, bias)
    y = _OneDnnProduct.apply(x, weight)
    return y if bias is None else y + bias


class _OneDnnProduct(torch.autograd.Function):
    """Through oneDNN, which multiplies float32 up to half faster than the BLAS behind `F.linear`."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        x, weight = ctx.saved_tensors
        to_x = _multiply(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        # The sum over all positions is the one product that the BLAS does as fast.
        to_weight = gradient.flatten(0, -2).t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        return to_x, to_weight


def _multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
