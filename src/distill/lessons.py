"""From shards to what a training step and a held-out measurement need."""

from collections.abc import Iterator
from pathlib import Path

import torch

from .loss import Lesson
from .shards import ANSWER, GIVEN, HELD_OUT, read, shards

QUESTION_WEIGHT = 0.3  # a draft is asked for answers; questions teach too, but less


def frequent(paths: list[Path], vocabulary: int, size: int) -> torch.Tensor:
    """The `size` ids that the target most expects to say, int64, ascending; all if there are no more.

    Its probabilities are summed rather than its tokens counted: that is the same in the limit and far less noisy.
    """
    expected = torch.zeros(vocabulary, dtype=torch.float64)
    for path in paths:
        shard = read(path, "part", "top_ids", "top_logprobs")
        said = _weights(shard["part"]) > 0
        chances = shard["top_logprobs"][:, :-1][said].double().exp()
        expected.index_add_(0, shard["top_ids"][:, :-1][said].flatten().long(), chances.flatten())
    return expected.topk(min(size, vocabulary)).indices.sort().values


def _weights(part: torch.Tensor) -> torch.Tensor:
    """(rows, length - 1): how much the prediction at each position counts, by who wrote the token after it."""
    following = part[:, 1:]
    return torch.where(following == ANSWER, 1.0, QUESTION_WEIGHT) * (following != GIVEN)


def lesson(shard: dict, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Lesson]:
    """ids (rows, length - 1), a mask of the positions that count, and what is to be learned at those.

    columns: (vocabulary,) int64, the head's column of each id, or -1."""
    weight = _weights(shard["part"])
    counts = weight > 0
    known = columns[shard["top_ids"][:, :-1][counts].long()]
    p = shard["top_logprobs"][:, :-1][counts].float().exp()
    return shard["ids"][:, :-1].long(), counts, Lesson(known, p, weight[counts])


def batches(folder: Path, rows: int, seed: int, state: dict) -> Iterator[dict]:
    """Endless batches of `rows` conversations, of the shards that were used the least; new shards join at once.

    state: where to begin, and it is kept up to date: "passes" (by shard), "shard", "row". Resuming with a saved state
    gives the batches that an uninterrupted run would have had, if no shard was added meanwhile.
    """
    while True:
        if state["shard"] is None:
            paths = shards(folder)[HELD_OUT + 1 :]
            path = min(paths, key=lambda p: (state["passes"].get(p.stem, 0), p.stem))
            state["shard"], state["row"] = path.stem, 0
        name = state["shard"]
        shard = read(folder / f"{name}.safetensors")
        turn = state["passes"].get(name, 0)
        order = torch.Generator().manual_seed(seed * 1_000_003 + int(name) * 1_009 + turn)
        order = torch.randperm(len(shard["ids"]), generator=order)
        while state["row"] < len(order):
            chosen = order[state["row"] : state["row"] + rows]
            state["row"] += rows
            yield {key: tensor[chosen] for key, tensor in shard.items()}
        state["passes"][name], state["shard"] = turn + 1, None
