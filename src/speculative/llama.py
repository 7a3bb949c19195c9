"""The fast forward pass of the Llama family: Llama, SmolLM2, Qwen2, Qwen2.5, Qwen3, Mistral without sliding window.

A decoder-only transformer reads every weight once for a pass, however many tokens the pass has. On one sequence that
reading is the whole cost, so what this file saves is everything else: q, k and v are one matrix product, gate and up
another; queries and keys are turned together by one multiplication; keys and values go into a preallocated cache by
one copy; a norm is four operations; and nothing of the vocabulary's size is computed for a row that nobody asked for.
Products and attention, nine tenths of the time, are `linear.py` and `attention.py`, each with code of our own. Where
all of a model can be, its layers are one program (`program.py`): what `_block` says, without Python in between.

Width invariance. Two settings decide whether the bits of a position depend on how many tokens its pass had (they are
probed in `invariance.py`): `attention`, one of the forms of `attention.py` or "program", and `widths`: a pass is padded
with copies of its last token to the next of them, because kernels sum in another order for a few rows, or for the few
that remain when the others were taken in blocks.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F

from .attention import FORMS, candidates
from .errors import ModelError
from .linear import arithmetic, pack
from .program import program, shape_of
from .quantize import Groups, stack
from .rotary import head_dim, paired, turn_, turns

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
PRODUCTS = ("qkv", "o", "gate_up", "down")  # of a layer; compiled programs number them in this order


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


class Llama:
    """Weights, cache buffers and the pass over them. It keeps no length: the caller says where a pass starts.

    config: a transformers config that `unsupported` accepts. weights: a mapping from transformers' parameter names to
    tensors or `Groups`; entries are removed as they are packed, so that no weight is held twice. dtype: of the weights;
    `self.dtype`, of activations, cache and logits, is float32 where the format `product` computes in it. head_ids: 1-D
    int64, the vocabulary rows that the head computes (all if None).
    Raises ModelError if a weight is missing or a product refuses its shape.
    """

    def __init__(
        self, config, weights: dict, *, device="cpu", dtype=torch.float32, head_ids=None, product: str = "plain"
    ):
        self.config, self.device, self.product = config, torch.device(device), product
        self.weight_dtype, self.dtype = dtype, arithmetic(product, dtype)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.eps = head_dim(config), config.rms_norm_eps
        self.embedding = self._table(weights["model.embed_tokens.weight"])
        self.layers = [self._layer(weights, f"model.layers.{i}.") for i in range(config.num_hidden_layers)]
        self.norm = self._norm(self._take(weights, "model.norm.weight"))
        head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
        self.head = self._product([head if head_ids is None else head[head_ids]], [])
        self._shape = shape_of(self)
        self.attention, self.widths = next((form for form in self.forms if form in ("program", "fused")), "plain"), ()
        self._turns, self._program = torch.empty(0), None
        self._cache: list[torch.Tensor] = []
        self.capacity = 0

    @property
    def reads(self) -> int:
        """How many bytes of weights a pass reads, in the formats that they are held in."""
        return self.head.reads + sum(layer[name].reads for layer in self.layers for name in PRODUCTS)

    @property
    def forms(self) -> tuple[str, ...]:
        """What `attention` can be so that passes may be width invariant, the cheapest first."""
        return (*(("program",) if self._shape else ()), *candidates(self.head_dim, self.device, self.dtype))

    def _take(self, weights: dict, name: str):
        try:
            return weights.pop(name)
        except KeyError:
            raise ModelError(f"the checkpoint lacks the weight {name!r}") from None

    def _table(self, weight):
        """The embedding, as it lies in the file where that loses nothing: then the file's own pages serve as memory."""
        if isinstance(weight, Groups):
            return weight
        wide = weight.dtype == torch.float32
        return weight.to(self.device, self.weight_dtype if wide else weight.dtype)

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        if isinstance(self.embedding, Groups):
            return self.embedding[ids].dequantize().to(self.dtype)
        return F.embedding(ids, self.embedding).to(self.weight_dtype).to(self.dtype)

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, self.weight_dtype).to(self.dtype)

    def _product(self, parts: list, biases: list):
        """One product whose rows are those of all parts, in order."""
        bias = self._plain(torch.cat(biases)) if biases else None
        if isinstance(parts[0], Groups):
            return pack(stack(parts), bias)
        return pack(torch.cat(parts).to(self.device, self.weight_dtype), bias, self.product)

    def _norm(self, weight: torch.Tensor):
        """RMS normalization of the last dimension (Zhang & Sennrich 2019, arXiv 1910.07467) as a function of x."""
        weight = self._plain(weight)
        size = len(weight)
        # torch's own is eight operations in float32. x w / sqrt(|x|^2 / d + eps) is
        # x (w sqrt(d)) / hypot(|x|, sqrt(d eps)).
        scaled = weight * math.sqrt(size)
        least = torch.tensor(math.sqrt(size * self.eps), device=self.device)

        def norm(x: torch.Tensor) -> torch.Tensor:
            if x.dtype != torch.float32:
                return F.rms_norm(x, (size,), weight, self.eps)
            return (x * scaled).div_(torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), least))

        norm.weight = weight
        return norm

    def _layer(self, weights: dict, at: str) -> dict:
        def parts(kind, *names):
            found = [weights.pop(f"{at}{n}.{kind}") for n in names if f"{at}{n}.{kind}" in weights]
            if kind == "weight" and len(found) < len(names):
                raise ModelError(f"the checkpoint lacks a weight of {at}{names[0]}")
            # Queries and keys in the order that `rotary` turns.
            turned = ("self_attn.q_proj", "self_attn.k_proj")
            return [p[paired(len(p), self.head_dim)] if n in turned else p for n, p in zip(names, found, strict=False)]

        def product(*names):
            return self._product(parts("weight", *names), parts("bias", *names))

        layer = {
            "before": self._norm(self._take(weights, at + "input_layernorm.weight")),
            "qkv": product("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "o": product("self_attn.o_proj"),
            "between": self._norm(self._take(weights, at + "post_attention_layernorm.weight")),
            "gate_up": product("mlp.gate_proj", "mlp.up_proj"),
            "down": product("mlp.down_proj"),
        }
        if self.config.model_type == "qwen3":
            for name in ("q_norm", "k_norm"):
                weight = self._take(weights, f"{at}self_attn.{name}.weight")
                layer[name] = self._norm(weight[paired(len(weight), self.head_dim)])
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
        self._turns = turns(self.config, capacity).to(self.device)
        self._program = program(self, self._shape) if self._shape else None

    def __call__(self, ids: torch.Tensor, start: int, keep: int) -> torch.Tensor:
        """Logits of the last `keep` of the positions start..start+n-1, (keep, vocabulary) in the model's dtype.

        ids: (n,) int64. The positions' keys and values are written into the cache, over what stood there.
        """
        n = len(ids)
        ids = self._widen(ids)
        self.reserve(start + len(ids))
        x = self._embed(ids)
        x = self._through(x, start, n)
        return self.head(self.norm(self._widen(x[n - keep : n])))[:keep] if keep else x[:0]

    def _widen(self, x: torch.Tensor) -> torch.Tensor:
        """x (n, ...) with its last row repeated until their number is one of `widths`, if one is as large."""
        short = next((width - len(x) for width in self.widths if width >= len(x)), 0)
        return torch.cat((x, x[-1:].expand(short, *x.shape[1:]))) if short else x

    def _through(self, x: torch.Tensor, start: int, n: int) -> torch.Tensor:
        """x (n or more, hidden), of which the first n rows are tokens, after all layers."""
        if self.attention == "program":
            return self._program(x, start)
        turn = self._turns[start : start + len(x)]
        attend = FORMS[self.attention](start, n, self.device, self.dtype)
        for layer, cache in zip(self.layers, self._cache, strict=True):
            x = self._block(layer, cache, x, turn, attend, start, n)
        return x

    def _block(self, layer: Mapping, cache: torch.Tensor, x, turn, attend, start: int, n: int) -> torch.Tensor:
        turned = self.heads + self.kv_heads
        qkv = layer["qkv"](layer["before"](x)).view(len(x), -1, self.head_dim)
        if "q_norm" in layer:
            q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), 1)
            qkv = torch.cat((layer["q_norm"](q), layer["k_norm"](k), v), 1)
        qkv = turn_(qkv.float(), turn, turned)
        cache[:, start : start + n].copy_(qkv[:n, self.heads :].transpose(0, 1))
        mixed = attend(qkv[:, : self.heads].to(self.dtype), cache[: self.kv_heads], cache[self.kv_heads :])
        x = x.add_(layer["o"](mixed if len(mixed) == len(x) else self._widen(mixed)))
        gate, up = layer["gate_up"](layer["between"](x)).chunk(2, -1)
        return x.add_(layer["down"](F.silu(gate).mul_(up)))
