"""Training the draft: resumable, and measured on held-out conversations as it goes."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from .lessons import batches, lesson
from .loss import LOSSES, head_gradient
from .measure import FIELDS, held_out
from .shards import HELD_OUT, read, shards
from .streams import stream_loss
from .student import Student

WARM_UP, DECAY = 0.03, 0.5  # shares of the time in which the learning rate rises and, at the end, falls to nothing
FIT_SHARDS = 1  # how many of the first shards the closed-form fit sees: a dozen tokens for each number it chooses
LAST = 0.15  # of the time, for `last_loss`: no loss agrees more often, but total variation is refused less in sampling
NEGATIVES = 2048  # tokens outside the draft's vocabulary that a step's head has besides it, drawn anew each step


@dataclass(frozen=True)
class Plan:
    """How one training goes. minutes: of training alone, over all resumed runs together; rows: conversations a step;
    stream_weight: of the loss on the layers' outputs beside the divergence of the distributions, at the beginning; it
    falls to nothing, for in the end only what is said counts. loss, last_loss: names of `loss.LOSSES`, the latter for
    the share LAST of the time."""

    minutes: float
    seed: int = 0
    rate: float = 8e-4
    loss: str = "forward_kl"
    last_loss: str = "total_variation"
    stream_weight: float = 1.0
    rows: int = 2
    measure_every: float = 300.0  # seconds of training
    measure_rows: int = 32
    save_every: float = 150.0


def train(
    student: Student,
    folder: Path,
    vocabulary: torch.Tensor,
    plan: Plan,
    begin: Callable,
    report: Callable[[dict], None],
) -> dict:
    """Trains `student` in place on the shards of `folder` until the plan's time is over.

    vocabulary: (n,) int64, the ids that the draft's trimmed head will have. begin: called with ids and states of the
    first shards before the first step; it fits the student to them, and what it returns is "taken". report: called
    with each line of the curve ("minutes", "tokens", "train_loss" and the figures of `measure.held_out`).
    `folder/state.pt` is where an interrupted training goes on; Ctrl-C keeps all but the step under way.
    Returns "seconds", "tokens", "taken" and the whole "curve".
    """
    trained = [value for value in student.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    state = {"seconds": 0.0, "tokens": 0, "steps": 0, "passes": {}, "shard": None, "row": 0, "curve": []}
    path = folder / "state.pt"
    if path.exists():
        saved = torch.load(path, weights_only=True)
        student.load_state_dict(saved["student"])
        optimizer.load_state_dict(saved["optimizer"])
        state = saved["state"]
    held = read(shards(folder)[HELD_OUT], *FIELDS)
    saver = _Saver(path, student, optimizer, state)
    total, losses = plan.minutes * 60, []
    if not state["curve"]:
        _measure(student, held, vocabulary, plan, state, losses, report)
        began = time.perf_counter()
        state["taken"] = begin(*_first(folder))
        state["seconds"] += time.perf_counter() - began
        _measure(student, held, vocabulary, plan, state, losses, report)
    try:
        for batch in _until(total, state, batches(folder, plan.rows, plan.seed, state)):
            began = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = plan.rate * schedule(state["seconds"] / total)
            losses.append(_step(student, optimizer, trained, batch, vocabulary, plan, state))
            state["seconds"] += time.perf_counter() - began
            if state["seconds"] >= state["curve"][-1]["minutes"] * 60 + plan.measure_every:
                _measure(student, held, vocabulary, plan, state, losses, report)
            saver.maybe(plan.save_every)
    finally:
        saver.save()
    if losses:
        _measure(student, held, vocabulary, plan, state, losses, report)
        saver.save()
    return state


def _until(total: float, state: dict, batches: Iterator[dict]) -> Iterator[dict]:
    """The batches until the training has taken `total` seconds, with a bar on a terminal."""
    form = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f} of {total:.0f} s"
    with tqdm(desc="training", total=total, bar_format=form, disable=None, leave=False) as bar:
        for batch in batches:
            bar.update(min(state["seconds"], total) - bar.n)
            if state["seconds"] >= total:
                return
            yield batch


def _first(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and states of the first shards to be trained on, enough for the fit."""
    parts = [read(path, "ids", "states") for path in shards(folder)[HELD_OUT + 1 :][:FIT_SHARDS]]
    return torch.cat([part["ids"] for part in parts]).long(), torch.cat([part["states"] for part in parts])


def schedule(done: float) -> float:
    """The factor on the learning rate when the share `done` of the time is over: up, level, and down to nothing."""
    return max(0.0, min(1.0, done / WARM_UP + 0.02, (1 - done) / DECAY))


def _step(student, optimizer, trained, batch, vocabulary, plan: Plan, state: dict) -> float:
    generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + state["steps"])
    head_ids = _with_negatives(vocabulary, len(student.head), generator)
    columns = torch.full((len(student.head),), -1)
    columns[head_ids] = torch.arange(len(head_ids))
    ids, counts, task = lesson(batch, columns)
    streams: list[torch.Tensor] = []
    hidden = student(ids, streams)
    left = 1 - state["seconds"] / (plan.minutes * 60)
    asked = hidden[counts]
    divergence = LOSSES[plan.loss if left > LAST else plan.last_loss]
    gradient, loss = head_gradient(asked, student.head[head_ids], task, divergence)
    weight = plan.stream_weight * left
    apart = weight * stream_loss(streams, batch["states"][:, :-1])
    torch.autograd.backward([asked, apart], [gradient, None])
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    state["steps"] += 1
    state["tokens"] += ids.numel()
    return loss


def _with_negatives(vocabulary: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
    """The draft's ids and some of the others, so that the full head stays usable without being paid for."""
    others = torch.ones(size, dtype=torch.bool)
    others[vocabulary] = False
    others = others.nonzero()[:, 0]
    return torch.cat((vocabulary, others[torch.randperm(len(others), generator=generator)[:NEGATIVES]]))


def _measure(student, held, vocabulary, plan: Plan, state: dict, losses: list, report: Callable) -> None:
    figures = held_out(student, held, min(plan.measure_rows, len(held["ids"])), vocabulary)
    mean = round(sum(losses) / len(losses), 4) if losses else None
    line = {"minutes": round(state["seconds"] / 60, 2), "tokens": state["tokens"], "train_loss": mean}
    state["curve"].append(line | figures)
    losses.clear()
    report(state["curve"][-1])


class _Saver:
    """Keeps what a resumed training needs, whole or not at all."""

    def __init__(self, path: Path, student: Student, optimizer, state: dict):
        self.path, self.student, self.optimizer, self.state, self.last = path, student, optimizer, state, time.time()

    def maybe(self, seconds: float) -> None:
        if time.time() - self.last >= seconds:
            self.save()

    def save(self) -> None:
        part = self.path.with_suffix(".part")
        torch.save(
            {"student": self.student.state_dict(), "optimizer": self.optimizer.state_dict(), "state": self.state}, part
        )
        os.replace(part, self.path)
        self.last = time.time()
