"""The fast forward pass of the Llama family: Llama, SmolLM2, Qwen2, Qwen2.5, Qwen3, Mistral without sliding window.

A decoder-only transformer reads every weight once for a pass, however many tokens the pass has. On one sequence that
reading is the whole cost, so what this file saves is everything else: q, k and v are one matrix product, gate and up
another; queries, keys and values are rotated together by three operations (values by an angle of zero); keys and
values go into a preallocated cache by one copy; and nothing of the vocabulary's size is computed for a row that
nobody asked for.

Width invariance. `rows` and `attention` decide whether the bits of a position depend on how many tokens its pass
had (see `invariance.py`, which probes it):

- A pass narrower than `rows` is padded with copies of its last token, because kernels switch to another order of
  summation below a certain number of rows.
- attention "plain" gives all queries of a pass to one kernel call, which tiles queries and keys together and so rounds
  according to the number of queries. "batched" makes each query a batch entry of its own, over keys padded to a
  multiple of 64, hidden ones masked: every query then goes through the same arithmetic in every pass. "rowwise" makes
  one call a query, over exactly the keys that it sees.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F

from .errors import ModelError
from .linear import pack

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
ATTENTION = ("plain", "batched", "rowwise")
KEY_BLOCK = 64


def unsupported(config) -> str | None:
    """Why this pass cannot run a transformers config, in a few words; None if it can."""
    if config.model_type not in FAMILIES:
        return f"architecture {config.model_type!r}"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ROPE_TYPES:
        return f"rope type {rope!r}"
    if config.hidden_act not in ("silu", "swish"):
        return f"activation {config.hidden_act!r}"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "layers with a sliding window"
    if config.model_type == "mistral" and config.sliding_window:
        return "a sliding window"
    return None


def rotations(config, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of positions 0..length-1, float32 (length, head_dim), scaled as the config's rope type has it.

    RoPE of Su et al. 2021 (arXiv 2104.09864) in the half-split layout of transformers: dimension i turns with
    dimension i + head_dim/2. The first half of sin is negated, so that rotating is x*cos + swap_halves(x)*sin.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        dim = _head_dim(config)
        frequencies, scale = 1.0 / rope["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim), 1.0
    else:
        frequencies, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    angles = torch.arange(length).float()[:, None] * frequencies[None, :].float()
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def _head_dim(config) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


class Llama:
    """Weights, cache buffers and the pass over them. It keeps no length: the caller says where a pass starts.

    config: a transformers config that `unsupported` accepts. weights: a mapping from transformers' parameter names to
    tensors, or to whatever `linear.pack` takes; entries are removed as they are packed, so that no weight is held
    twice. head_ids: 1-D int64, the vocabulary rows that the head computes (all if None).
    Raises ModelError if a weight is missing or a product refuses its shape.
    """

    def __init__(
        self, config, weights: dict, *, device="cpu", dtype=torch.float32, head_ids=None, product: str = "plain"
    ):
        self.config, self.device, self.dtype, self.product = config, torch.device(device), dtype, product
        self.rows, self.attention = 1, "plain"
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.eps = _head_dim(config), config.rms_norm_eps
        self.scale = 1.0 / math.sqrt(self.head_dim)
        self.embedding = self._plain(weights["model.embed_tokens.weight"])
        self.layers = [self._layer(weights, f"model.layers.{i}.") for i in range(config.num_hidden_layers)]
        self.norm = self._plain(self._take(weights, "model.norm.weight"))
        head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
        self.head = self._product([head if head_ids is None else head[head_ids]], [])
        self._cos = self._sin = torch.empty(0)
        self._cache: list[torch.Tensor] = []
        self.capacity = 0

    def _take(self, weights: dict, name: str):
        try:
            return weights.pop(name)
        except KeyError:
            raise ModelError(f"the checkpoint lacks the weight {name!r}") from None

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, self.dtype)

    def _product(self, parts: list, biases: list):
        """One product whose rows are those of all parts, in order."""
        bias = torch.cat(biases).to(self.device, self.dtype) if biases else None
        return pack(torch.cat(parts).to(self.device, self.dtype), bias, self.product)

    def _layer(self, weights: dict, at: str) -> dict:
        def product(*names):
            biases = [weights.pop(at + n + ".bias") for n in names if at + n + ".bias" in weights]
            return self._product([self._take(weights, at + n + ".weight") for n in names], biases)

        def norm(name):
            return self._plain(self._take(weights, at + name))

        layer = {
            "before": norm("input_layernorm.weight"),
            "qkv": product("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "o": product("self_attn.o_proj"),
            "between": norm("post_attention_layernorm.weight"),
            "gate_up": product("mlp.gate_proj", "mlp.up_proj"),
            "down": product("mlp.down_proj"),
        }
        if self.config.model_type == "qwen3":
            layer["q_norm"], layer["k_norm"] = norm("self_attn.q_norm.weight"), norm("self_attn.k_norm.weight")
        return layer

    def reserve(self, length: int) -> None:
        """Makes room for `length` positions; what is cached stays. Grows by doubling, so that appending is O(1)."""
        if length <= self.capacity:
            return
        capacity = max(512, 2 * self.capacity)
        while capacity < length:
            capacity *= 2
        cache = []
        for layer in range(len(self.layers)):
            # Zeros, not whatever memory held: a masked key is multiplied by 0, and 0 * NaN is NaN.
            grown = torch.zeros(2 * self.kv_heads, capacity, self.head_dim, dtype=self.dtype, device=self.device)
            if self.capacity:
                grown[:, : self.capacity] = self._cache[layer]
                self._cache[layer] = None
            cache.append(grown)
        self._cache, self.capacity = cache, capacity
        cos, sin = rotations(self.config, capacity)
        self._cos, self._sin = (t[:, None].to(self.device, self.dtype) for t in (cos, sin))

    def __call__(self, ids: torch.Tensor, start: int, keep: int) -> torch.Tensor:
        """Logits of the last `keep` of the positions start..start+n-1, (keep, vocabulary) in the model's dtype.

        ids: (n,) int64. The positions' keys and values are written into the cache, over what stood there.
        """
        n = len(ids)
        wide = max(n, self.rows)
        self.reserve(start + wide)
        if wide > n:
            ids = torch.cat((ids, ids[-1:].expand(wide - n)))
        x = F.embedding(ids, self.embedding)
        turn = self._turns(start, wide)
        attend = self._attention(start, n)
        for layer, cache in zip(self.layers, self._cache, strict=True):
            x = self._block(layer, cache, x, turn, attend, start, n)
        if not keep:
            return x[:0]
        x = F.rms_norm(x[n - keep : max(n, n - keep + self.rows)], x.shape[-1:], self.norm, self.eps)
        return self.head(self._widen(x))[:keep]

    def _widen(self, x: torch.Tensor) -> torch.Tensor:
        short = self.rows - len(x)
        return x if short <= 0 else torch.cat((x, x[-1:].expand(short, -1)))

    def _turns(self, start: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin for queries, keys and values of n positions, (n, heads, head_dim); values do not turn."""
        turned = (n, self.heads + self.kv_heads, self.head_dim)
        still = (n, self.kv_heads, self.head_dim)
        cos, sin = self._cos[start : start + n].expand(turned), self._sin[start : start + n].expand(turned)
        return torch.cat((cos, cos.new_ones(still)), 1), torch.cat((sin, sin.new_zeros(still)), 1)

    def _block(self, layer: Mapping, cache: torch.Tensor, x, turn, attend, start: int, n: int) -> torch.Tensor:
        width, d = x.shape[-1:], self.head_dim
        qkv = layer["qkv"](F.rms_norm(x, width, layer["before"], self.eps)).view(len(x), -1, d)
        if "q_norm" in layer:
            q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), 1)
            q, k = F.rms_norm(q, (d,), layer["q_norm"], self.eps), F.rms_norm(k, (d,), layer["k_norm"], self.eps)
            qkv = torch.cat((q, k, v), 1)
        swapped = qkv.view(len(x), -1, 2, d // 2).flip(2).view(qkv.shape)
        qkv = torch.addcmul(qkv * turn[0], swapped, turn[1])
        cache[:, start : start + n].copy_(qkv[:n, self.heads :].transpose(0, 1))
        mixed = attend(qkv[:n, : self.heads], cache[: self.kv_heads], cache[self.kv_heads :])
        x = x + layer["o"](self._widen(mixed))
        gate, up = layer["gate_up"](F.rms_norm(x, width, layer["between"], self.eps)).chunk(2, -1)
        return x + layer["down"](F.silu(gate).mul_(up))

    def _attention(self, start: int, n: int):
        """The attention of n queries from position `start`: a function of q (n, heads, d), keys and values
        (kv_heads, capacity, d) -> (n, heads * d). What depends on positions alone is made once a pass, not a layer."""
        if self.attention == "rowwise" and n > 1:
            rows = [self._attention(start + i, 1) for i in range(n)]
            return lambda q, k, v: torch.cat([row(q[i : i + 1], k, v) for i, row in enumerate(rows)])
        batched, end = self.attention == "batched", start + n
        if batched:
            end = -(-end // KEY_BLOCK) * KEY_BLOCK
        mask = None
        if batched or (n > 1 and start > 0):
            places = torch.arange(end, device=self.device)
            visible = places <= places[start : start + n, None]
            mask = torch.zeros(n, end, dtype=self.dtype, device=self.device).masked_fill_(~visible, -math.inf)
        causal = not batched and n > 1 and start == 0

        def attend(q, k, v):
            k, v = k[:, :end], v[:, :end]
            if batched:
                k, v = k.expand(n, *k.shape), v.expand(n, *v.shape)
                mixed = F.scaled_dot_product_attention(
                    q[:, :, None], k, v, attn_mask=mask[:, None, None], scale=self.scale, enable_gqa=True
                )
                return mixed.reshape(n, -1)
            mixed = F.scaled_dot_product_attention(
                q.transpose(0, 1)[None], k[None], v[None], attn_mask=mask, is_causal=causal, scale=self.scale,
                enable_gqa=True,
            )  # fmt: skip
            return mixed[0].transpose(0, 1).reshape(n, -1)

        return attend
