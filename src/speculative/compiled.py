"""The layers of the fast pass as programs that torch compiles: faster on some machines, after a wait.

Between the matrix products of a layer stand some twenty small operations; compiled, they are a few loops. The products
stay what they are (`linear.py`), behind an operation that the compiler does not look into, so that one program serves
all layers; and widths and contexts are left open in it, so that one serves all passes of more than one row, and what
`invariance.py` asks for is nearly given. Programs are kept on disk by torch (TORCHINDUCTOR_CACHE_DIR says where).
"""

import itertools
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F

from .attention import KEY_BLOCK, ROW_BLOCK, block, visible
from .errors import ModelError
from .llama import PRODUCTS, Llama
from .rotary import paired

RECOMPILE_LIMIT = 64  # programs a process may hold: a few for each model's sizes; torch's own limit is eight

_numbers = itertools.count()
_layers: WeakValueDictionary = WeakValueDictionary()
_library = torch.library.Library("tinydraft", "DEF")
# The layer's number is a tensor, for a program is made anew for every int that it is given.
_library.define("product(Tensor x, Tensor number, int which, int outputs) -> Tensor")


def _product(x, number, which, outputs):
    return _layers[int(number)][which](x)


def _shape(x, number, which, outputs):
    return x.new_empty(x.shape[0], outputs)  # len(x) would tie the program to this number of rows


_library.impl("product", _product, "CompositeExplicitAutograd")
torch.library.register_fake("tinydraft::product", _shape, lib=_library)


class Products(list):
    """The products of a layer, where its number finds them as long as its model lives."""


class CompiledLlama(Llama):
    """A `Llama` whose layers are compiled: the same weights and arithmetic in another order of summation.

    Its attention is always the "batched" form. Arguments and errors as for `Llama`; besides, ModelError where torch
    has no compiler to work with.
    """

    def __init__(self, config, weights: dict, **options):
        torch._dynamo.config.recompile_limit = max(RECOMPILE_LIMIT, torch._dynamo.config.recompile_limit)
        super().__init__(config, weights, **options)
        self._shape, self.attention = None, "batched"
        self._compiled = torch.compile(_layer, fullgraph=True)
        self._warming = True
        self._warm()
        self._warming = False

    def _layer(self, weights: dict, at: str) -> dict:
        norms = [weights.get(f"{at}{name}_layernorm.weight") for name in ("input", "post_attention")]
        norms += [weights.get(f"{at}self_attn.{name}_norm.weight") for name in "qk"]
        layer = super()._layer(weights, at)
        products, number = Products(layer[name] for name in PRODUCTS), next(_numbers)
        _layers[number] = products
        norms = [None if norm is None else self._plain(norm) for norm in norms]
        if norms[2] is not None:
            norms[2:] = [norm[paired(len(norm), self.head_dim)] for norm in norms[2:]]
        return layer | {"products": products, "number": torch.tensor(number), "norms": norms}

    @torch.inference_mode()
    def _warm(self) -> None:
        """Compiles now, and not in the middle of what somebody times; from then on no size is a new one."""
        try:
            for rows in (1, 2):
                self(torch.zeros(rows, dtype=torch.int64, device=self.device), 0, 1)
        except torch._inductor.exc.InductorError as error:
            raise ModelError(
                f"compile: torch cannot compile here ({str(error).strip().splitlines()[0]}); allowed is false, or "
                "true where a C++ compiler is installed"
            ) from None

    def reserve(self, length: int) -> None:
        """Always a block more than is asked for: where a pass sees the whole cache, strides coincide, and a program is
        made anew for that."""
        super().reserve(length + KEY_BLOCK)

    def __call__(self, ids: torch.Tensor, start: int, keep: int) -> torch.Tensor:
        split, _ = block(start)
        if len(ids) <= split:
            return super().__call__(ids, start, keep)
        # A query's keys are padded to the end of its own block, so a pass that goes on into the next one is two.
        after = len(ids) - split
        first = self(ids[:split], start, max(0, keep - after))
        second = self(ids[split:], start + split, min(keep, after))
        return torch.cat((first, second)) if keep > after else second

    def _through(self, x: torch.Tensor, start: int, n: int) -> torch.Tensor:
        """The layers; rows beyond the n tokens are copies of the last one, and stand where it stands."""
        places = torch.arange(start, start + len(x), device=self.device).clamp_(max=start + n - 1)
        mask = visible(places, block(start)[1], self.dtype)[:, None, None]
        turn = torch.view_as_real(self._turns[places])
        if self._warming:
            _leave_open([x, places, turn, mask], 0)
            _leave_open([mask], 3)
            _leave_open(self._cache, 1)
        sizes = self.heads, self.kv_heads, self.head_dim, self.config.intermediate_size, self.eps
        for layer, cache in zip(self.layers, self._cache, strict=True):
            x = self._compiled(x, cache, places, turn, mask, layer["norms"], layer["number"], sizes)
        return x


def _layer(x, cache, places, turn, mask, norms, number, sizes):
    """One layer: x (rows, hidden) at `places`, their `turn` (rows, 1, d / 2, 2), what they see (rows, 1, 1, keys)."""
    heads, kv_heads, dim, units, eps = sizes
    product, rows, hidden = torch.ops.tinydraft.product, x.shape[0], x.shape[1]
    qkv = product(_norm(x, norms[0], eps), number, 0, (heads + 2 * kv_heads) * dim).view(rows, -1, dim)
    q, k, v = qkv.split((heads, kv_heads, kv_heads), 1)
    if norms[2] is not None:
        q, k = _norm(q, norms[2], eps), _norm(k, norms[3], eps)
    q, k = _turn(q, turn), _turn(k, turn)
    cache.index_copy_(1, places, torch.cat((k, v), 1).transpose(0, 1))
    shared, end = heads // kv_heads, mask.shape[-1]
    q = F.pad(q.reshape(rows, kv_heads, shared, dim), (0, 0, 0, -shared % ROW_BLOCK))
    k, v = (part[:, :end].expand(rows, -1, -1, -1) for part in (cache[:kv_heads], cache[kv_heads:]))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, :, :shared].reshape(rows, -1)
    x = x + product(mixed, number, 1, hidden)
    gate, up = product(_norm(x, norms[1], eps), number, 2, 2 * units).chunk(2, -1)
    return x + product(F.silu(gate) * up, number, 3, hidden)


def _leave_open(tensors: list[torch.Tensor], dimension: int) -> None:
    """Has the program that is compiled for these tensors take any size of the dimension (1 is always its own)."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def _turn(heads: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """RoPE of heads (rows, n, d) in the order of `rotary.paired`, in float32; compilers do not know complex numbers."""
    real, imaginary = heads.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = turn.unbind(-1)
    turned = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), -1)
    return turned.flatten(-2).to(heads.dtype)
