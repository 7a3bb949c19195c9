"""What the stages `trace`, `sampling` and `replay` store, and where.

One trace of a target's own output is enough to know how any draft, k and rule would have done on it: acceptance
depends on p and q at the positions of that output alone.
"""

from pathlib import Path

from src.pipeline.files import Record
from src.pipeline.results import Counts, Part, Seconds, Settings

TOP = 64


class Row(Part):
    """The likeliest tokens of a distribution: ids, and their log-probabilities to four decimals, in falling order."""

    ids: list[int]
    logs: list[float]


class Traced(Part):
    """A target's output after one prompt, and what a draft thinks of it.

    p[i], q[i]: the probability that target and draft give to tokens[i] after all before it; overlap[i]: the sum over
    the vocabulary of min(p, q) there, the chance of a draft token to be accepted. tops: both distributions' rows
    (target, draft); none where decoding was greedy, for there p and q are 0 or 1.
    """

    id: str
    category: str
    tokens: list[int]
    p: list[float]
    q: list[float]
    overlap: list[float]
    tops: list[tuple[Row, Row]]


class Vocabularies(Part):
    """What `reconcile` found of a target's and a draft's vocabulary; ids as their number and the first few."""

    size: int
    draft_size: int
    target_padding: int
    draft_padding: int
    only_target: list[int]
    only_draft: list[int]


class DraftTrace(Part):
    """One draft's view: of output sampled at the trace's temperature, and of greedy output."""

    vocabulary: Vocabularies
    sampled: list[Traced]
    greedy: list[Traced]


class Trace(Record):
    """What the stage `trace` writes for one target."""

    target: str
    settings: Settings
    temperature: float
    drafts: dict[str, DraftTrace]


class Way(Part):
    """One way of decoding in the stage `sampling`: counts and seconds by prompt, plain decoding's seconds beside."""

    prompts: list[Counts]
    plain: list[Seconds]
    seconds: list[Seconds]


class Sampled(Record):
    """What the stage `sampling` writes for one target and draft: each rule, the adaptive schedule, prompt lookup."""

    target: str
    draft: str
    k: int
    temperature: float
    settings: Settings
    machine: dict[str, str | int]
    ways: dict[str, Way]


class Prediction(Part):
    """What a trace says of one rule and k.

    acceptance_rate: α; mean_accepted_length: τ; *_low, *_high: approximate 95 % intervals from resampling prompts,
    None below 8 of them. by_position[i]: the chance that proposals 0..i of a whole window are all accepted. speedup: by
    what the stage `costs` measured, None where that is unknown; extrapolated: for a pass wider than any that was timed.
    """

    rule: str
    k: int
    acceptance_rate: float | None
    acceptance_low: float | None
    acceptance_high: float | None
    mean_accepted_length: float
    length_low: float | None
    length_high: float | None
    by_position: list[float]
    speedup: float | None
    extrapolated: bool


class Agreement(Part):
    """A measured figure beside the trace's: τ of one cell, and whether they agree within both intervals."""

    cell: str
    measured: float
    predicted: float
    low: float
    high: float
    agrees: bool


class WayFigures(Part):
    """One way of decoding in the second sweep: paired speedup with its interval, α, and τ beside the trace's.

    predicted_length: None where the way is none that a trace can tell (adaptive windows, prompt lookup).
    step_seconds: of a step, drafting included.
    """

    way: str
    speedup: float
    ci_low: float | None
    ci_high: float | None
    acceptance_rate: float | None
    mean_accepted_length: float
    predicted_length: float | None
    step_seconds: float


class DraftReplay(Part):
    """What the trace of one draft predicts, how the measured cells compare, and the second sweep at its k."""

    vocabulary: str
    k: int
    ways: list[WayFigures]
    sampled: list[Prediction]
    greedy: list[Prediction]
    measured: list[Agreement]


class Replay(Record):
    """What the stage `replay` writes for one target."""

    target: str
    temperature: float
    drafts: dict[str, DraftReplay]


def trace_file(target: str) -> Path:
    """Where a target's trace lies."""
    return Path(f"results/trace/{target}.json")


def sampled_file(target: str, draft: str) -> Path:
    """Where the second sweep of a target and draft lies."""
    return Path(f"results/sampling/{target}/{draft}.json")


def replay_file(target: str) -> Path:
    """Where a target's replay lies."""
    return Path(f"results/replay/{target}.json")
