"""The files that the target's conversations lie in: safetensors, numbered, the first of them held out."""

from pathlib import Path

import torch
from safetensors import safe_open

HELD_OUT = 0  # the number of the shard that is never trained on
GIVEN, QUESTION, ANSWER = 0, 1, 2  # who wrote a token: this program, or the target in a user's or its own turn


def shards(folder: Path) -> list[Path]:
    """All whole shards in order of their numbers; the first is the held-out one."""
    return sorted(folder.glob("[0-9]*.safetensors"))


def read(path: Path, *names: str) -> dict[str, torch.Tensor]:
    """The tensors of those names in a shard (all if none is named); `states` alone is most of a shard."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in names or file.keys()}
