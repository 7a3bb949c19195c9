"""The target as a teacher: many sequences decoded side by side over one preallocated KV cache.

All sequences are of the same length at any time, so a step is a product with `batch` rows (the weights are read once
for all of them), attention needs no mask, and its cost grows only as the cache fills.
"""

import torch
import torch.nn.functional as F

from src.speculative.linear import multiplies, pack, packs

BLOCK = 32  # positions by which the cache grows


class Teacher:
    """A Llama or Qwen2 checkpoint that decodes `batch` sequences of up to `length` tokens in lockstep.

    config: a transformers config. weights: a mapping from transformers' parameter names to tensors. depths: after how
    many layers the residual stream of a step is kept in `seen`.
    """

    def __init__(self, config, weights: dict, batch: int, length: int, depths: tuple[int, ...] = (), dtype=None):
        dtype = dtype or fast_dtype()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.scale, self.eps, self.batch, self.depths = self.dim**-0.5, config.rms_norm_eps, batch, depths
        self.seen: list[torch.Tensor] = []
        weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
        fmt = "packed" if packs(dtype) else "plain"
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = pack(weights.get("lm_head.weight", self.embedding), fmt=fmt)
        self.norm = weights["model.norm.weight"]
        self.layers = [_layer(weights, f"model.layers.{i}.", fmt) for i in range(config.num_hidden_layers)]
        self.cos, self.sin = (angles.to(dtype) for angles in rotations(config, length))
        self.header: list[int] | None = None  # the tokens that the cache of every sequence begins with, if known
        self.places = torch.arange(length + BLOCK)
        shape = (2, batch * self.kv_heads, BLOCK, self.dim)
        self.cache = [torch.zeros(shape, dtype=dtype) for _ in self.layers]

    @torch.inference_mode()
    def step(self, ids: torch.Tensor, at: int) -> torch.Tensor:
        """Logits (batch, vocabulary) after feeding ids (batch,) int64, one a sequence, at position `at` of each."""
        self._reserve(at + 1)
        x, self.seen = F.embedding(ids, self.embedding), []
        for depth, (layer, cache) in enumerate(zip(self.layers, self.cache, strict=True), 1):
            x = self._block(layer, cache, x, at)
            if depth in self.depths:
                self.seen.append(x)
        return self.head(F.rms_norm(x, x.shape[-1:], self.norm, self.eps))

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
        qkv = layer["qkv"](F.rms_norm(x, width, layer["before"], self.eps))
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
        x = x + layer["o"](mixed.view(self.batch, -1))
        gate, up = layer["gate_up"](F.rms_norm(x, width, layer["between"], self.eps)).chunk(2, -1)
        return x + layer["down"](F.silu(gate).mul_(up))


def fast_dtype() -> torch.dtype:
    """bfloat16 on processors that multiply it, else float32: emulated, it would take several times as long."""
    return torch.bfloat16 if multiplies(torch.bfloat16) else torch.float32


def rotations(config, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin (length, dim) of all positions for `rotate`: the first half of sin is negated."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(length)[None])
    half = sin.shape[-1] // 2
    return cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE (Su et al. 2021) in the half-split layout: x * cos + (halves of x swapped) * sin."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def _layer(weights: dict, at: str, fmt: str) -> dict:
    def joined(names: str, kind: str):
        parts = [weights.get(f"{at}{name}.{kind}") for name in names.split()]
        return None if parts[0] is None else torch.cat(parts)

    qkv = "self_attn.q_proj self_attn.k_proj self_attn.v_proj"
    return {
        "before": weights[at + "input_layernorm.weight"],
        "qkv": pack(joined(qkv, "weight"), joined(qkv, "bias"), fmt),
        "o": pack(weights[at + "self_attn.o_proj.weight"], fmt=fmt),
        "between": weights[at + "post_attention_layernorm.weight"],
        "gate_up": pack(joined("mlp.gate_proj mlp.up_proj", "weight"), fmt=fmt),
        "down": pack(weights[at + "mlp.down_proj.weight"], fmt=fmt),
    }
