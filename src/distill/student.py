"""The draft while it learns: some of a target's layers, trained, between the target's frozen embedding and head.

Its parameters have transformers' names, so that what comes out is a plain Llama or Qwen2 checkpoint.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .teacher import rotate, rotations


class Student(nn.Module):
    """Layers `kept` (indices) of the target that `weights` holds under transformers' names, and its final norm.

    Weights are float32; the pass computes in `dtype`. The embedding and the head are buffers: nothing trains them.
    """

    def __init__(self, config, weights: dict, kept: list[int], dtype=torch.bfloat16):
        super().__init__()
        self.config, self.kept, self.dtype = config, list(kept), dtype
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        embedding = weights["model.embed_tokens.weight"].to(dtype)
        head = weights.get("lm_head.weight")
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", embedding if head is None else head.to(dtype), persistent=False)
        # Dots are not allowed in the names of parameters, so a dictionary of them stands beside the module's list.
        self.weights = {"model.norm.weight": weights["model.norm.weight"]}
        for new, old in enumerate(kept):
            at = f"model.layers.{old}."
            for name in (name for name in weights if name.startswith(at)):
                self.weights[f"model.layers.{new}.{name.removeprefix(at)}"] = weights[name]
        self.weights = {name: nn.Parameter(tensor.float().clone()) for name, tensor in self.weights.items()}
        self.values = nn.ParameterList(self.weights.values())

    def forward(self, ids: torch.Tensor, kept: list[int] | None = None) -> torch.Tensor:
        """Normed hidden states (batch, length, hidden) in `dtype` of ids (batch, length); the head comes with the loss.

        kept: run only these of the student's layers (for choosing layers)."""
        place = tuple(angles.to(self.dtype) for angles in rotations(self.config, ids.shape[1]))
        x = F.embedding(ids, self.embedding)
        for layer in range(len(self.kept)) if kept is None else kept:
            x = self._block(f"model.layers.{layer}.", x, place)
        return self._norm(x, "model.norm")

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.weights[name + ".weight"].to(self.dtype)
        return F.rms_norm(x, x.shape[-1:], weight, self.config.rms_norm_eps)

    def _product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        bias = self.weights.get(name + ".bias")
        return F.linear(x, self.weights[name + ".weight"].to(self.dtype), bias if bias is None else bias.to(self.dtype))

    def _block(self, at: str, x: torch.Tensor, place: tuple) -> torch.Tensor:
        h = self._norm(x, at + "input_layernorm")
        q, k, v = (self._heads(h, f"{at}self_attn.{n}_proj", place if n != "v" else None) for n in "qkv")
        groups = self.heads // self.kv_heads
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self._product(mixed.transpose(1, 2).flatten(2), at + "self_attn.o_proj")
        h = self._norm(x, at + "post_attention_layernorm")
        gate, up = self._product(h, at + "mlp.gate_proj"), self._product(h, at + "mlp.up_proj")
        return x + self._product(F.silu(gate) * up, at + "mlp.down_proj")

    def _heads(self, h: torch.Tensor, name: str, place: tuple | None) -> torch.Tensor:
        x = self._product(h, name).unflatten(-1, (-1, self.dim)).transpose(1, 2)
        return x if place is None else rotate(x, *place)
