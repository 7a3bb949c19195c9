"""Rotary position embedding in one multiplication, of complex numbers.

RoPE (Su et al. 2021, arXiv 2104.09864) turns pairs of dimensions by an angle that grows with the position. Checkpoints
of transformers pair dimension i with i + d/2. Scores do not care how dimensions are ordered if queries and keys agree,
so the rows of the q and k weights are put in the order 0, d/2, 1, d/2 + 1, ...: a pair then lies side by side, is one
complex number, and turning it is one product, in place of four operations on halves.
"""

import torch


def head_dim(config) -> int:
    """Dimensions of one attention head of a transformers config."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def paired(rows: int, dim: int) -> torch.Tensor:
    """Order for the rows of a q or k weight (rows, columns) of heads of `dim` rows, int64 (rows,)."""
    return torch.arange(rows).view(-1, 2, dim // 2).transpose(1, 2).flatten()


def turns(config, length: int) -> torch.Tensor:
    """The factors of positions 0..length-1, complex64 (length, 1, head_dim / 2), as the config's rope type has them."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        dim = head_dim(config)
        frequencies, scale = 1.0 / rope["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim), 1.0
    else:
        frequencies, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    angles = torch.arange(length).float()[:, None, None] * frequencies.float()
    return torch.polar(torch.full_like(angles, scale), angles)


def turn_(heads: torch.Tensor, factors: torch.Tensor, count: int) -> torch.Tensor:
    """Turns the first `count` of heads (n, all heads, dim), float32, in place by factors (n, 1, dim / 2)."""
    pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)))
    pairs[:, :count].mul_(factors)
    return heads
