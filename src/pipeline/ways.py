"""The second sweep's figures, and their table: by how much the rules and drafters differ above temperature 0."""

import numpy as np

from src.pipeline.explain import percent, span
from src.pipeline.summary import interval
from src.pipeline.table import markdown
from src.pipeline.traces import Prediction, Replay, Sampled, Way, WayFigures

NAMES = {
    "token": "token rejection",
    "block": "block verification",
    "match": "sample and match",
    "adaptive": "token rejection, adaptive k",
    "prompt-lookup": "prompt lookup, no model",
}


def measure_way(name: str, way: Way, prediction: Prediction | None, seed: int) -> WayFigures:
    """The figures of one way from its raw samples."""
    plain, fast = (np.array([sample.decode for sample in samples]) for samples in (way.plain, way.seconds))
    low, high = interval(plain, fast, seed)
    proposed = sum(row.proposed for row in way.prompts)
    passes = sum(row.target_passes for row in way.prompts)
    return WayFigures(
        way=name,
        speedup=float(plain.sum() / fast.sum()),
        ci_low=low,
        ci_high=high,
        acceptance_rate=sum(row.accepted for row in way.prompts) / proposed if proposed else None,
        mean_accepted_length=sum(len(row.tokens) for row in way.prompts) / passes,
        predicted_length=prediction and prediction.mean_accepted_length,
        step_seconds=float(fast.sum() / passes),
    )


def measure_ways(record: Sampled | None, predictions: list[Prediction], seed: int) -> list[WayFigures]:
    """All ways of a stored second sweep; none if there is none. predictions: those at its k."""
    found = {one.rule: one for one in predictions if record and one.k == record.k}
    return [measure_way(name, way, found.get(name), seed) for name, way in record.ways.items()] if record else []


def render(replays: list[Replay]) -> str:
    """A heading line, a table of every target, draft and way, and what drawing costs; empty if nothing was sampled."""
    rows, measured, steps = [], [], []
    for replay in replays:
        for draft, found in replay.drafts.items():
            ways = {one.way: one for one in found.ways}
            measured += found.measured
            rows += [[replay.target, draft, *_row(ways[name])] for name in NAMES if name in ways]
            if "greedy" in ways:
                ratio = ways["token"].step_seconds / ways["greedy"].step_seconds
                steps.append(f"{ratio:.2f} times as long with {draft}")
    if not rows:
        return ""
    first = replays[0]
    k = next(iter(first.drafts.values())).k
    agree = sum(one.agrees for one in measured)
    head = ["target", "draft", "way", "speedup", "95 % interval", "α", "τ", "τ replayed"]
    return (
        f"At temperature {first.temperature:g} with k={k}; the last column is computed from one trace of the target's "
        f"output, without decoding ({agree} of {len(measured)} measured cells agree with it):\n\n"
        + markdown(head, rows, right=range(3, 8))
        + f"\n\nA step that samples takes, compared with a greedy one, {', '.join(steps)}.\n"
    )


def _row(one: WayFigures) -> list[str]:
    replayed = "-" if one.predicted_length is None else f"{one.predicted_length:.2f}"
    rate, length = percent(one.acceptance_rate), f"{one.mean_accepted_length:.2f}"
    return [NAMES[one.way], f"{one.speedup:.2f}x", span(one), rate, length, replayed]
