"""One draft's way from a target to a file: where its working files lie, and the steps that fill them."""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import torch

from src.speculative.errors import ModelError
from src.speculative.llama import unsupported
from src.speculative.loading import load_tokenizer, read_weights

from .checkpoint import export
from .data import LENGTH, Script, write_shards
from .layout import depths, starts
from .lessons import frequent
from .measure import FIELDS, held_out
from .settings import DistillParams
from .shards import HELD_OUT, read, shards
from .streams import fit
from .student import Student
from .teacher import Teacher
from .train import Plan, train

FAMILIES = ("llama", "qwen2")
BATCH = 192  # conversations that the target writes side by side; more rows make better use of a product


class Course:
    """The steps for one block of settings and the target in a directory; each goes on where it was interrupted.

    Working files lie in `work`, apart for each seed and number of layers. Raises ModelError for a target that cannot
    be taught from, and for more layers than it has.
    """

    def __init__(self, settings: DistillParams, target: Path, work: Path):
        from transformers import AutoConfig

        self.settings, self.config = settings, AutoConfig.from_pretrained(target)
        why = unsupported(self.config)
        if why or self.config.model_type not in FAMILIES:
            raise ModelError(
                f"{target}: {why or 'architecture ' + repr(self.config.model_type)} cannot be taught from; "
                f"allowed: {' and '.join(FAMILIES)}"
            )
        self.depths = depths(self.config.num_hidden_layers, settings.layers)
        self.kept = starts(self.config.num_hidden_layers, settings.layers)
        self.folder = work / f"{settings.layers}-layers-seed-{settings.seed}"
        self.script, self.weights = Script(load_tokenizer(target)), read_weights(target)

    def write(self, tokens: int) -> Iterator[int]:
        """Has the target write conversations until `tokens` tokens are there to learn from; yields their number."""

        def teacher():
            return Teacher(self.config, self.weights, BATCH, LENGTH, tuple(self.depths))

        return write_shards(teacher, self.script, self.folder, tokens, self.settings.seed)

    @cached_property
    def vocabulary(self) -> torch.Tensor:
        """The ids that the draft's trimmed head keeps, int64, from all that was written to learn from."""
        size = len(self.weights["model.embed_tokens.weight"])
        return frequent(shards(self.folder)[HELD_OUT + 1 :], size, self.settings.draft_vocab)

    @cached_property
    def student(self) -> Student:
        """The draft: the target's layers at first, then what `train` made of them, then what `export` stored."""
        return Student(self.config, self.weights, self.kept)

    def train(self, minutes: float, report: Callable[[dict], None]) -> dict:
        """Trains for so many minutes, all runs together; returns what `train.train` does."""
        plan = Plan(minutes=minutes, seed=self.settings.seed)

        def begin(ids, states):
            return fit(self.student, self.weights, self.depths, ids, states)

        return train(self.student, self.folder, self.vocabulary, plan, begin, report)

    def export(self, out: Path) -> dict:
        """Stores the draft in `out`; returns the figures of what is stored on all held-out conversations."""
        export(self.student, self.vocabulary, out)
        held = read(shards(self.folder)[HELD_OUT], *FIELDS)
        return held_out(self.student, held, len(held["ids"]), self.vocabulary)

    def conversations(self) -> list[int]:
        """How many conversations each shard holds, the held-out one first."""
        return [len(read(path, "part")["part"]) for path in shards(self.folder)]
