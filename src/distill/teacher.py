"""The target as a teacher: many sequences decoded side by side over one preallocated KV cache.

All sequences are of the same length at any time, so a step is a product with `batch` rows (the weights are read once
for all of them), attention needs no mask, and its cost grows only as the cache fills.
"""

import torch
import torch.nn.functional as F

BLOCK = 32  # positions by which the cache grows


class Teacher:
    """A Llama or Qwen2 checkpoint that decodes `batch` sequences of up to `length` tokens in lockstep.

    config: a transformers config. weights: a mapping from transformers' parameter names to tensors.
    """

    def __init__(self, config, weights: dict, batch: int, length: int, dtype=torch.bfloat16):
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.scale, self.eps, self.batch = self.dim**-0.5, config.rms_norm_eps, batch
        weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = weights.get("lm_head.weight", self.embedding)
        self.norm = weights["model.norm.weight"]
        self.layers = [_layer(weights, f"model.layers.{i}.") for i in range(config.num_hidden_layers)]
        self.cos, self.sin = (angles.to(dtype) for angles in rotations(config, length))
        self.header: list[int] | None = None  # the tokens that the cache of every sequence begins with, if known
        self.places = torch.arange(length + BLOCK)
        shape = (2, batch * self.kv_heads, BLOCK, self.dim)
        self.cache = [torch.zeros(shape, dtype=dtype) for _ in self.layers]

    @torch.inference_mode()
    def step(self, ids: torch.Tensor, at: int) -> torch.Tensor:
        """Logits (batch, vocabulary) after feeding ids (batch,) int64, one a sequence, at position `at` of each."""
        self._reserve(at + 1)
        x = F.embedding(ids, self.embedding)
        for layer, cache in zip(self.layers, self.cache, strict=True):
            x = self._block(layer, cache, x, at)
        return F.linear(F.rms_norm(x, x.shape[-1:], self.norm, self.eps), self.head)

    def _reserve(self, length: int) -> None:
        """Caches of just the blocks in use: a product over a part of a larger one would copy that part every time."""
        room = -(-length // BLOCK) * BLOCK
        for i, cache in enumerate(self.cache):
            if room < cache.shape[2]:
                self.cache[i] = cache[:, :, :room].contiguous()
            elif room > cache.shape[2]:
                self.cache[i] = F.pad(cache, (0, 0, 0, room - cache.shape[2]))

    def _block(self, layer: dict, cache: torch.Tensor, x: torch.Tensor, at: int) -> torch.Tensor:
        width, turned = x.shape[-1:], self.heads + self.kv_heads
        qkv = F.linear(F.rms_norm(x, width, layer["before"], self.eps), layer["qkv"], layer["bias"])
        qkv = qkv.view(self.batch, -1, self.dim)
        qk = rotate(qkv[:, :turned], self.cos[at], self.sin[at])
        cache[0, :, at] = qk[:, self.heads :].reshape(-1, self.dim)
        cache[1, :, at] = qkv[:, turned:].reshape(-1, self.dim)
        # The queries that share a key head are rows of one product, so that each key is read once. Plain products
        # take half the time of the fused attention kernel, which is made for many queries.
        q = (qk[:, : self.heads] * self.scale).reshape(self.batch * self.kv_heads, -1, self.dim)
        scores = torch.bmm(q, cache[0].transpose(1, 2))
        scores = scores.masked_fill_(self.places[: cache.shape[2]] > at, -torch.inf).softmax(-1)
        mixed = torch.bmm(scores, cache[1])
        x = x + F.linear(mixed.view(self.batch, -1), layer["o"])
        gate, up = F.linear(F.rms_norm(x, width, layer["between"], self.eps), layer["gate_up"]).chunk(2, -1)
        return x + F.linear(F.silu(gate).mul_(up), layer["down"])


def rotations(config, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin (length, dim) of all positions for `rotate`: the first half of sin is negated."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(length)[None])
    half = sin.shape[-1] // 2
    return cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE (Su et al. 2021) in the half-split layout: x * cos + (halves of x swapped) * sin."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def _layer(weights: dict, at: str) -> dict:
    def joined(names: str, kind: str):
        parts = [weights.get(f"{at}{name}.{kind}") for name in names.split()]
        return None if parts[0] is None else torch.cat(parts)

    qkv = "self_attn.q_proj self_attn.k_proj self_attn.v_proj"
    return {
        "before": weights[at + "input_layernorm.weight"],
        "qkv": joined(qkv, "weight"),
        "bias": joined(qkv, "bias"),
        "o": weights[at + "self_attn.o_proj.weight"],
        "between": weights[at + "post_attention_layernorm.weight"],
        "gate_up": joined("mlp.gate_proj mlp.up_proj", "weight"),
        "down": weights[at + "mlp.down_proj.weight"],
    }
