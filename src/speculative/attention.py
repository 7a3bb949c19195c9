"""Attention of a few queries over a long cache of keys and values, in five forms that round differently.

plain    one kernel call for all queries of a pass. It tiles queries and keys together, and so rounds according to
         the number of queries.
batched  each query is a batch entry of its own, over keys padded to a multiple of 64, hidden ones masked: every query
         goes through the same arithmetic in every pass. The heads that share a key head are its rows, padded to a
         multiple of 8, without which the kernel's scratch memory begins at another alignment in every thread, and
         sums differ by thread.
products two matrix products for each key head, whose rows are all queries of all heads that share it, and a softmax
         between; keys are padded and hidden as in "batched". Which sums are taken in which order does not depend on
         the number of rows from a few on, so they are padded to that many. It rounds the scores to the dtype of the
         queries, and so is for float32.
rowwise  one call a query, over exactly the keys that it sees.
fused    our own compiled code (`fused.py`), a query of a head at a time, for float32 on the CPU.

Each form is a function of a pass's first position and number of queries; it returns the attention itself, a function
of queries (n or more, heads, d), keys and values (kv_heads, capacity, d) -> (n or more, heads * d); the first n rows
count. What depends on positions alone is so made once a pass, not once a layer.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from .fused import fits, fused

KEY_BLOCK, ROW_BLOCK = 64, 8
LEAST_ROWS = 8  # of a matrix product; with fewer, other kernels sum in another order


def plain(start: int, n: int, device, dtype) -> Callable:
    end = start + n
    mask = visible(_places(start, n, device), end, dtype) if n > 1 and start > 0 else None
    causal = n > 1 and start == 0

    def attend(q, k, v):
        q, k, v = q[:n].transpose(0, 1)[None], k[None, :, :end], v[None, :, :end]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
        return mixed[0].transpose(0, 1).reshape(n, -1)

    return attend


def batched(start: int, n: int, device, dtype) -> Callable:
    split, end = block(start)
    if n > split:
        return _in_two(batched, start, n, split, device, dtype)
    mask = visible(_places(start, n, device), end, dtype)[:, None, None]

    def attend(q, k, v):
        shared = q.shape[1] // len(k)
        q = F.pad(q[:n].reshape(n, len(k), shared, -1), (0, 0, 0, -shared % ROW_BLOCK))
        k, v = k[:, :end].expand(n, -1, -1, -1), v[:, :end].expand(n, -1, -1, -1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return mixed[:, :, :shared].reshape(n, -1)

    return attend


def products(start: int, n: int, device, dtype) -> Callable:
    split, end = block(start)
    if n > split:
        return _in_two(products, start, n, split, device, dtype)
    seen, masks = visible(_places(start, n, device), end, dtype), []

    def attend(q, k, v):
        heads, shared, dim = len(k), q.shape[1] // len(k), q.shape[2]
        rows = len(q) * shared
        short = max(0, LEAST_ROWS - rows)
        q = q.view(-1, heads, shared, dim).transpose(0, 1).reshape(heads, rows, dim)
        q = F.pad(q, (0, 0, 0, short)) if short else q
        if not masks:  # the same in all layers
            masks.append(F.pad(seen.repeat_interleave(shared, 0), (0, 0, 0, rows + short - n * shared))[None])
        scores = torch.baddbmm(masks[0], q, k[:, :end].transpose(1, 2), alpha=dim**-0.5)
        mixed = torch.bmm(scores.softmax(-1), v[:, :end])
        return mixed[:, :rows].view(heads, -1, shared, dim).transpose(0, 1).flatten(1)

    return attend


def rowwise(start: int, n: int, device, dtype) -> Callable:
    rows = [plain(start + i, 1, device, dtype) for i in range(n)]
    return lambda q, k, v: torch.cat([row(q[i : i + 1], k, v) for i, row in enumerate(rows)])


def block(start: int) -> tuple[int, int]:
    """How many positions there are from `start` to the end of its block of keys, and where that is."""
    left = KEY_BLOCK - start % KEY_BLOCK
    return left, start + left


def _in_two(form: Callable, start: int, n: int, split: int, device, dtype) -> Callable:
    """A pass that goes on into the next block: a query's keys are padded to the end of its own, whoever is with it."""
    before, after = form(start, split, device, dtype), form(start + split, n - split, device, dtype)
    return lambda q, k, v: torch.cat((before(q[:split], k, v), after(q[split:], k, v)))


def _places(start: int, n: int, device) -> torch.Tensor:
    return torch.arange(start, start + n, device=device)


def visible(places: torch.Tensor, end: int, dtype: torch.dtype) -> torch.Tensor:
    """0 where a query sees a key and -inf where not, (n, end), for queries at `places` (n,) int64."""
    hidden = torch.arange(end, device=places.device) > places[:, None]
    return torch.zeros(len(places), end, dtype=dtype, device=places.device).masked_fill_(hidden, -math.inf)


FORMS = {"plain": plain, "fused": fused, "products": products, "batched": batched, "rowwise": rowwise}


def candidates(dim: int, device, dtype: torch.dtype) -> tuple[str, ...]:
    """The forms that may be width invariant for heads of `dim` numbers, the cheapest first."""
    if dtype != torch.float32:
        return "batched", "rowwise"
    return (*(("fused",) if fits(dim, device, dtype) else ()), "products", "batched", "rowwise")
