"""Attention of a few queries over a long cache of keys and values, in three forms that round differently.

plain    one kernel call for all queries of a pass. It tiles queries and keys together, and so rounds according to
         the number of queries.
batched  each query is a batch entry of its own, over keys padded to a multiple of 64, hidden ones masked: every query
         goes through the same arithmetic in every pass. The heads that share a key head are its rows, padded to a
         multiple of 8, without which the kernel's scratch memory begins at another alignment in every thread, and
         sums differ by thread.
rowwise  one call a query, over exactly the keys that it sees.

Each form is a function of a pass's first position and number of queries; it returns the attention itself, a function
of queries (n, heads, d), keys and values (kv_heads, capacity, d) -> (n, heads * d). What depends on positions alone is
so made once a pass, not once a layer.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

KEY_BLOCK, ROW_BLOCK = 64, 8


def plain(start: int, n: int, device, dtype) -> Callable:
    end = start + n
    mask = _mask(start, n, end, device, dtype) if n > 1 and start > 0 else None
    causal = n > 1 and start == 0

    def attend(q, k, v):
        q, k, v = q.transpose(0, 1)[None], k[None, :, :end], v[None, :, :end]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
        return mixed[0].transpose(0, 1).reshape(n, -1)

    return attend


def batched(start: int, n: int, device, dtype) -> Callable:
    split = KEY_BLOCK - start % KEY_BLOCK
    if n > split:  # a query's keys are padded to the end of its own block, whoever else is in the pass
        before, after = batched(start, split, device, dtype), batched(start + split, n - split, device, dtype)
        return lambda q, k, v: torch.cat((before(q[:split], k, v), after(q[split:], k, v)))
    end = start - start % KEY_BLOCK + KEY_BLOCK
    mask = _mask(start, n, end, device, dtype)[:, None, None]

    def attend(q, k, v):
        shared = q.shape[1] // len(k)
        q = F.pad(q.reshape(n, len(k), shared, -1), (0, 0, 0, -shared % ROW_BLOCK))
        k, v = k[:, :end].expand(n, -1, -1, -1), v[:, :end].expand(n, -1, -1, -1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return mixed[:, :, :shared].reshape(n, -1)

    return attend


def rowwise(start: int, n: int, device, dtype) -> Callable:
    rows = [plain(start + i, 1, device, dtype) for i in range(n)]
    return lambda q, k, v: torch.cat([row(q[i : i + 1], k, v) for i, row in enumerate(rows)])


def _mask(start: int, n: int, end: int, device, dtype) -> torch.Tensor:
    """0 where a query sees a key and -inf where not, (n, end), for queries from position `start`."""
    places = torch.arange(end, device=device)
    hidden = places > places[start : start + n, None]
    return torch.zeros(n, end, dtype=dtype, device=device).masked_fill_(hidden, -math.inf)


FORMS = {"plain": plain, "batched": batched, "rowwise": rowwise}
