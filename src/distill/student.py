"""The draft while it learns: some of a target's layers, trained, between the target's frozen embedding and head.

Its parameters have transformers' names, so that what comes out is a plain Llama or Qwen2 checkpoint.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .product import product
from .teacher import fast_dtype, rotate, rotations


class Student(nn.Module):
    """Layers `kept` (indices) of the target that `weights` holds under transformers' names, and its final norm.

    Weights are float32; the pass computes in `dtype`. The embedding and the head are buffers: nothing trains them.
    """

    def __init__(self, config, weights: dict, kept: list[int], dtype: torch.dtype | None = None):
        super().__init__()
        self.config, self.kept, self.dtype = config, list(kept), dtype or fast_dtype()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        embedding = weights["model.embed_tokens.weight"].to(self.dtype)
        head = weights.get("lm_head.weight")
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", embedding if head is None else head.to(self.dtype), persistent=False)
        # Dots are not allowed in the names of parameters, so a dictionary of them stands beside the module's list.
        self.weights = {"model.norm.weight": weights["model.norm.weight"]}
        for new, old in enumerate(kept):
            at = f"model.layers.{old}."
            for name in (name for name in weights if name.startswith(at)):
                self.weights[f"model.layers.{new}.{name.removeprefix(at)}"] = weights[name]
        self.weights = {name: nn.Parameter(tensor.float().clone()) for name, tensor in self.weights.items()}
        self.values = nn.ParameterList(self.weights.values())

    def forward(self, ids: torch.Tensor, streams: list | None = None) -> torch.Tensor:
        """Normed hidden states (batch, length, hidden) in `dtype` of ids (batch, length); the head comes with the loss.

        streams: if given, the output of every layer is appended to it, each (batch, length, hidden)."""
        place, x = self.places(ids.shape[1]), F.embedding(ids, self.embedding)
        for layer in range(len(self.kept)):
            x = self.attend(layer, x, place)
            x = x + self.product(self.activate(layer, x), layer, "mlp.down_proj")
            if streams is not None:
                streams.append(x)
        return self.norm(x, "model.norm")

    @torch.no_grad()
    def take(self, layer: int, old: int, half: str, weights: dict) -> None:
        """Makes a half of a layer ("attention" or "units") what it is in layer `old` of the target."""
        at = f"model.layers.{layer}."
        for name, value in self.weights.items():
            if name.startswith(at) and ("attn" in name or "input" in name) == (half == "attention"):
                value.copy_(weights[f"model.layers.{old}.{name.removeprefix(at)}"])

    def places(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the first `length` positions, in `dtype`."""
        return tuple(angles.to(self.dtype) for angles in rotations(self.config, length))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """The RMS norm of that name."""
        weight = self.weights[name + ".weight"].to(self.dtype)
        return F.rms_norm(x, x.shape[-1:], weight, self.config.rms_norm_eps)

    def product(self, x: torch.Tensor, layer: int, name: str) -> torch.Tensor:
        """The layer's product of that name."""
        name = f"model.layers.{layer}.{name}"
        bias = self.weights.get(name + ".bias")
        weight = self.weights[name + ".weight"].to(self.dtype)
        return product(x, weight, bias if bias is None else bias.to(self.dtype))

    def mix(self, layer: int, x: torch.Tensor, place: tuple) -> torch.Tensor:
        """What the layer's attention heads gather, before their output product: (batch, length, heads * dim)."""
        h = self.norm(x, f"model.layers.{layer}.input_layernorm")
        q, k, v = (self.product(h, layer, f"self_attn.{n}_proj").unflatten(-1, (-1, self.dim)) for n in "qkv")
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        groups = self.heads // self.kv_heads
        k, v = (t.repeat_interleave(groups, 1) for t in (rotate(k, *place), v))
        mixed = F.scaled_dot_product_attention(rotate(q, *place), k, v, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)

    def attend(self, layer: int, x: torch.Tensor, place: tuple) -> torch.Tensor:
        """The stream after the layer's attention."""
        return x + self.product(self.mix(layer, x, place), layer, "self_attn.o_proj")

    def activate(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """What the layer's gated units say to the stream x, before their output product: (batch, length, units)."""
        h = self.norm(x, f"model.layers.{layer}.post_attention_layernorm")
        return F.silu(self.product(h, layer, "mlp.gate_proj")) * self.product(h, layer, "mlp.up_proj")
