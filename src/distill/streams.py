"""Lessons for each layer: where the target's residual stream stood after as many of its layers as one of ours replaces.

The distribution of the next token says little about what a layer in the middle should have done; the stream there says
it for every position and channel, so a little data teaches much more (TinyBERT, Jiao et al. 2020, arXiv 1909.10351,
section 3). What a layer adds is also linear in its two output products, so these can be fitted in closed form before
any gradient step: least squares, held near the target's own weights.
"""

import torch
import torch.nn.functional as F

from .student import Student

RIDGE = 3e-3  # pull towards the target's own weights, as a share of the features' mean square


def stream_loss(streams: list[torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of every layer's output from the target's stream at its depth, in each channel's standard
    deviations, averaged over channels and layers; a scalar with a gradient.

    streams: of each layer (rows, length, hidden). states: (rows, length, layers, hidden), zeros where nothing is known.
    Both count relative to the length of the target's stream, which is a hundred times as long at a few tokens.
    """
    known, total = _known(states), 0.0
    for ours, aim in zip(streams, states.unbind(2), strict=True):
        aim = aim[known].to(ours.dtype)
        length = aim.square().mean(-1, keepdim=True).sqrt()
        spread = (aim / length).var(0).clamp(min=1e-6)
        total = total + (((ours[known] - aim) / length).square().mean(0) / spread).mean()
    return total / len(streams)


@torch.no_grad()
def fit(student: Student, ids: torch.Tensor, states: torch.Tensor) -> None:
    """Fits each layer's two output products in turn, so that its stream comes as near to `states` as they can bring it.

    ids: (rows, length) int64; states: (rows, length, layers, hidden) as in `stream_loss`.
    """
    place, x = student.places(ids.shape[1]), F.embedding(ids, student.embedding)
    known = _known(states)
    for layer, aim in enumerate(states.unbind(2)):
        aim = aim.to(x.dtype)
        share = 1 / aim[known].float().square().mean(-1, keepdim=True).sqrt()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            features = student.mix(layer, x, place) if name == "self_attn.o_proj" else student.activate(layer, x)
            missing = aim - x - student.product(features, layer, name)
            change = _least_squares(features[known].float() * share, missing[known].float() * share)
            student.weights[f"model.layers.{layer}.{name}.weight"] += change
            x = x + student.product(features, layer, name)


def _known(states: torch.Tensor) -> torch.Tensor:
    return states[:, :, -1].any(-1)


def _least_squares(features: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:
    """The change of a weight (outputs, features) that best explains `missing` (n, outputs), kept small by RIDGE."""
    gram = features.t() @ features
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    return torch.linalg.solve(gram, features.t() @ missing).t()
