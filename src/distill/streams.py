"""Lessons for each layer: where the target's residual stream stood after as many of its layers as one of ours replaces.

The distribution of the next token says little about what a layer in the middle should have done; the stream there says
it for every position and channel, so a little data teaches much more (TinyBERT, Jiao et al. 2020, arXiv 1909.10351,
section 3). What a layer adds is also linear in its two output products, so these can be fitted in closed form before
any gradient step: least squares, held near the target's own weights.
"""

import torch
import torch.nn.functional as F

from .student import Student

HALVES = {"attention": "self_attn.o_proj", "units": "mlp.down_proj"}  # of a layer, and what each adds through
TRIALS = 32  # conversations on which the target's layers are compared
RIDGE = 3e-3  # pull towards the target's own weights, as a share of the features' mean square


def stream_loss(streams: list[torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of every layer's output from the target's stream at its depth, in each channel's standard
    deviations, averaged over channels and layers; a scalar with a gradient.

    streams: of each layer (rows, length, hidden). states: (rows, length, layers, hidden), zeros where nothing is known.
    Both count relative to the length of the target's stream, which is a hundred times as long at a few tokens.
    """
    known, total = states[:, :, -1].any(-1), 0.0
    for ours, aim in zip(streams, states.unbind(2), strict=True):
        aim = aim[known].to(ours.dtype)
        length = aim.square().mean(-1, keepdim=True).sqrt()
        spread = (aim / length).var(0).clamp(min=1e-6)
        total = total + (((ours[known] - aim) / length).square().mean(0) / spread).mean()
    return total / len(streams)


@torch.no_grad()
def fit(student: Student, weights: dict, depths: list[int], ids: torch.Tensor, states: torch.Tensor) -> list[list[int]]:
    """Starts each layer from the attention and the gated units of the target's that serve its share of depth best, and
    fits their output products, so that its stream comes as near to `states` as it can; returns the layers it took.

    weights: the target's. depths: where each share ends. ids: (rows, length) int64; states: (rows, length, layers,
    hidden) as in `stream_loss`. What serves best is judged on the first TRIALS rows, layer by layer.
    """
    place, x = student.places(ids.shape[1]), F.embedding(ids, student.embedding)
    taken = []
    for layer, (first, end, aim) in enumerate(zip([0, *depths], depths, states.unbind(2), strict=False)):
        for half, name in HALVES.items():

            def offer(old: int, rows: slice, layer=layer, half=half, name=name, x=x, aim=aim) -> tuple:
                student.take(layer, old, half, weights)
                ours, known = x[rows], aim[rows].any(-1)
                features = student.mix(layer, ours, place) if half == "attention" else student.activate(layer, ours)
                missing = aim[rows].to(x.dtype) - ours - student.product(features, layer, name)
                share = 1 / aim[rows][known].float().square().mean(-1, keepdim=True).sqrt()
                return features, features[known].float() * share, missing[known].float() * share

            best = min(range(first, end), key=lambda old: _left(*offer(old, slice(TRIALS))[1:]))
            features, scaled, missing = offer(best, slice(None))
            student.weights[f"model.layers.{layer}.{name}.weight"] += _least_squares(scaled, missing)
            x = x + student.product(features, layer, name)
            taken.append(best)
    return [taken[0::2], taken[1::2]]


def _left(features: torch.Tensor, missing: torch.Tensor) -> float:
    """What is left of `missing` on the last quarter of the rows by a fit on those before."""
    cut = len(features) * 3 // 4
    left = missing[cut:] - features[cut:] @ _least_squares(features[:cut], missing[:cut]).t()
    return float(left.square().mean())


def _least_squares(features: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:
    """The change of a weight (outputs, features) that best explains `missing` (n, outputs), kept small by RIDGE."""
    gram = features.t() @ features
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    return torch.linalg.solve(gram, features.t() @ missing).t()
