"""How far the draft is from the target, on the target's likeliest tokens, in pieces that fit into the cache.

A position's loss needs logits over the draft's vocabulary. All at once they would be hundreds of megabytes, whose
page faults cost as much as the arithmetic; so rows go through the head in chunks, and each chunk's gradient is taken
down to the hidden states before the next begins.
"""

from dataclasses import dataclass

import torch

from .product import product

CHUNK = 256


@dataclass
class Lesson:
    """What is to be learned at n positions: ids (n, TOP) as columns of the head in use, or -1 where the head lacks the
    token; p (n, TOP) float32, the target's probabilities of them; weight (n,)."""

    columns: torch.Tensor
    p: torch.Tensor
    weight: torch.Tensor


def forward_kl(logq: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """KL(target || draft) on the known tokens, up to a constant: the mean-seeking divergence; (n,) nats."""
    return -(p * logq).sum(-1)


def reverse_kl(logq: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """KL(draft || target) with all unknown tokens as one: the mode-seeking divergence; (n,) nats."""
    q = logq.exp()
    rest_p, rest_q = (1 - p.sum(-1)).clamp(min=1e-4), (1 - q.sum(-1)).clamp(min=1e-6)
    return (q * (logq - p.clamp(min=1e-8).log())).sum(-1) + rest_q * (rest_q.log() - rest_p.log())


def total_variation(logq: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """1 - sum min(p, q), the chance that a sampled draft token is refused (Leviathan et al. 2023, section 3); (n,)."""
    return 1 - torch.minimum(logq.exp(), p).sum(-1)


LOSSES = {"forward_kl": forward_kl, "reverse_kl": reverse_kl, "total_variation": total_variation}


def log_probabilities(logits: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """log q of `columns` (n, TOP) under logits (n, V); tokens that the head lacks get -30, about 1e-13."""
    logits = logits.float()
    found = logits.gather(1, columns.clamp(min=0)) - logits.logsumexp(-1, keepdim=True)
    return found.masked_fill(columns < 0, -30.0)


def head_gradient(hidden: torch.Tensor, head: torch.Tensor, lesson: Lesson, divergence) -> tuple[torch.Tensor, float]:
    """The weighted mean loss of hidden (n, hidden) behind `head` (V, hidden), and its gradient, shaped as hidden."""
    scale, total = 1 / lesson.weight.sum().clamp(min=1e-6), 0.0
    gradient = torch.empty_like(hidden)
    for i in range(0, len(hidden), CHUNK):
        piece = hidden[i : i + CHUNK].detach().requires_grad_()
        columns, weight = lesson.columns[i : i + CHUNK], lesson.weight[i : i + CHUNK]
        logq = log_probabilities(product(piece, head), columns)
        # What the head cannot say has no gradient, and must not blow up the sum.
        p = lesson.p[i : i + CHUNK].masked_fill(columns < 0, 0.0)
        loss = (divergence(logq, p) * weight).sum() * scale
        loss.backward()
        gradient[i : i + CHUNK] = piece.grad
        total += loss.item()
    return gradient, total
