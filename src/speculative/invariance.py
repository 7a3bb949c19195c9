"""Width invariance: do a position's bits depend on how many tokens its pass had?

Speculative decoding scores k+1 tokens in one pass where plain decoding scores one. In half precision the two round
differently on most kernels, and where two logits nearly tie, another token comes out. A pass is width invariant if
logits and cache entries of a position are bitwise the same for every width. Where one is found, greedy speculative
decoding is not only lossless in theory but equal to plain decoding bit by bit.

What has to be found are the widths for which matrix products sum in one order, and a form of the attention in which a
query does not feel its neighbours (`llama.py` has both as settings; one form is all layers at once, `program.py`).
Kernels work through rows in blocks, and sum in another order where one or two rows are left over: so such widths are
not all that are large enough. The probe looks on the loaded weights' own shapes, device and dtype: it runs two layers
and the head of the network itself.
"""

import copy

import torch

from .attention import KEY_BLOCK
from .models import CausalLM, FastModel

CHUNK = 17  # k = 16 and the token before it; prefill goes in pieces of this many tokens
WIDEST = 18  # rows of a pass with its padding
LARGEST = 8  # rows that a pass over one token may be padded to
WIDTHS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14)  # and 1 and the widest
CONTEXTS = {0: 3, KEY_BLOCK - 5: 1, 501: 3}  # and after which of the tokens there a pass over one is tried


def make_exact(model: CausalLM) -> bool:
    """Sets the model's pass to the cheapest width-invariant form, if the probe finds one; says whether it did."""
    if not isinstance(model, FastModel):
        return False
    found = probe(model.network)
    if found is None:
        model.exact = False
        return False
    model.network.attention, model.network.widths = found
    model.exact, model.chunk = True, CHUNK
    return True


@torch.inference_mode()
def probe(network) -> tuple[str, tuple[int, ...]] | None:
    """(attention, widths) of the first form that holds, the cheapest first, or None. Leaves the network as it was.

    widths: as `Llama` has them, empty if passes need no padding.
    """
    trial, ids = _trial(network)
    for attention in network.forms:
        trial.attention, trial.widths = attention, ()
        trial.widths = _alike(trial, ids)
        if trial.widths[0] <= LARGEST and all(_holds(trial, ids, start) for start in CONTEXTS):
            return attention, trial.widths if len(trial.widths) < WIDEST else ()  # all are alike: nothing to pad
    return None


@torch.inference_mode()
def invariant(network, attention: str, widths: tuple[int, ...]) -> bool:
    """Whether one form holds."""
    trial, ids = _trial(network)
    trial.attention, trial.widths = attention, widths
    return all(_holds(trial, ids, start) for start in CONTEXTS)


def _trial(network):
    """Two layers and the head of the network, with a cache of noise, and tokens to feed it."""
    trial = copy.copy(network)
    trial.layers, trial._cache, trial.capacity = network.layers[:2], [], 0
    trial.reserve(max(CONTEXTS) + 2 * WIDEST)
    generator = torch.Generator().manual_seed(0)
    for cache in trial._cache:
        cache.copy_(torch.randn(cache.shape, generator=generator))
    ids = torch.randint(network.config.vocab_size, (WIDEST,), generator=generator)
    return trial, ids.to(network.device)


def _alike(trial, ids: torch.Tensor) -> tuple[int, ...]:
    """The widths whose passes, unpadded, give the bits of the widest."""
    widest = trial(ids, 0, WIDEST)
    return (*(w for w in range(1, WIDEST) if torch.equal(trial(ids[:w], 0, w), widest[:w])), WIDEST)


def _holds(trial, ids: torch.Tensor, start: int) -> bool:
    """Whether the widest pass, those of one token and all between give the same bits, logits and cache entries.

    A pass of one token runs over the entries that the widest pass left before it; they are what the passes of one token
    before it would have left, if all of those held. So a form that does not hold is refused after two passes."""
    widest = trial(ids, start, WIDEST)
    entries = _entries(trial, start, WIDEST)
    passes = [(i, 1) for i in range(0, WIDEST, CONTEXTS[start])] + [(0, width) for width in reversed(WIDTHS)]
    for first, width in passes:
        logits = trial(ids[first : first + width], start + first, width)
        if not torch.equal(logits, widest[first : first + width]):
            return False
        wrote = _entries(trial, start + first, width)
        if not torch.equal(wrote, entries[:, :, first : first + width]):
            return False
    return True


def _entries(trial, start: int, n: int) -> torch.Tensor:
    """A copy of the keys and values of n positions, (layers, heads, n, dim)."""
    return torch.stack([cache[:, start : start + n] for cache in trial._cache])
