"""From raw samples to the figures of the table: paired speedups with intervals, acceptance, verdicts."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np

from src.pipeline.comparison import PeerFigures
from src.pipeline.costmodel import Figures, of_cell, predicted
from src.pipeline.files import Record
from src.pipeline.results import CellTiming, CellTokens, CellVerdicts, Part, Settings, Timing

FEWEST_PROMPTS = 8  # below it, resampling prompts says nothing
RESAMPLES = 10_000


class Speed(Part):
    """Plain and speculative decoding of the same prompts; tokens a second, decode only.

    speedup: total plain seconds over total speculative seconds. ci_low, ci_high: an approximate 95 % interval,
    from resampling the prompts; None below 8 of them. excludes_one: whether 1 lies outside of it. acceptance_rate:
    accepted over proposed. predicted: the speedup that acceptance by position and measured costs say, None without
    costs; residual: measured over predicted, minus 1.
    """

    plain_tokens_per_second: float
    tokens_per_second: float
    speedup: float
    ci_low: float | None
    ci_high: float | None
    excludes_one: bool | None
    acceptance_rate: float | None
    predicted: float | None
    residual: float | None


class Cell(Speed):
    """The figures of one target, draft and k.

    mean_accepted_length: generated tokens per target pass. *_share: of decode seconds. lossless: the verdict in
    words; verdict: the worst of its prompts.
    """

    target: str
    draft: str
    k: int
    mean_accepted_length: float
    draft_share: float
    target_share: float
    other_share: float
    plain_prefill_seconds: float
    prefill_seconds: float
    acceptance_by_position: list[float]
    verdict: Literal["identical", "near tie", "different", "sampled"]
    bit_identical: bool | None
    lossless: str
    categories: dict[str, Speed]


class Model(Part):
    """What the table says of a model; parameters are counted in its weights."""

    parameters: int
    weight_bytes: int


class Summary(Record):
    """Everything behind results/table.md."""

    settings: Settings
    machine: dict[str, str | int]
    prompts: int
    repeats: int
    models: dict[str, Model]
    costs: dict[str, Figures]
    peers: dict[str, PeerFigures]
    cells: list[Cell]


def speed(timing: list[Timing], counts: list, seed: int, predict: Callable[[list[float]], float | None]) -> Speed:
    """The figures of some prompts: `timing` and `counts` of the same ones, in the same order.

    predict: from cumulative acceptance rates by position to a speedup, or None.
    """
    plain = np.array([sum(sample.decode for sample in row.plain) for row in timing])
    fast = np.array([sum(sample.decode for sample in row.speculative) for row in timing])
    generated = sum(row.generated * len(row.speculative) for row in timing)
    low, high = interval(plain, fast, seed)
    proposed = sum(row.proposed for row in counts)
    measured, expected = plain.sum() / fast.sum(), predict(by_position(counts)) if proposed else None
    return Speed(
        plain_tokens_per_second=generated / plain.sum(),
        tokens_per_second=generated / fast.sum(),
        speedup=measured,
        ci_low=low,
        ci_high=high,
        excludes_one=None if low is None else not low <= 1 <= high,
        acceptance_rate=sum(row.accepted for row in counts) / proposed if proposed else None,
        predicted=expected,
        residual=None if expected is None else measured / expected - 1,
    )


def interval(plain: np.ndarray, fast: np.ndarray, seed: int) -> tuple[float | None, float | None]:
    """Percentile bootstrap of sum(plain) / sum(fast) over prompts, seconds (n,) each; (None, None) below 8.

    Approximate: with 16 prompts an interval called 95 % covers the truth in about 91 % of cases.
    """
    if len(plain) < FEWEST_PROMPTS:
        return None, None
    chosen = np.random.default_rng(seed).integers(0, len(plain), size=(RESAMPLES, len(plain)))
    ratios = plain[chosen].sum(axis=1) / fast[chosen].sum(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def summarize(tokens: CellTokens, timing: CellTiming, verdicts: CellVerdicts, costs: Figures | None = None) -> Cell:
    """All figures of one cell from its three files, and what its own passes and its target's costs predict."""
    counts, seed = tokens.prompts, tokens.settings.seed
    # Costs are those of a draft model and of windows of k tokens.
    alike = tokens.settings.drafter == "model" and tokens.settings.schedule == "fixed"
    if costs and timing.passes and tokens.draft in costs.drafts:
        costs = of_cell(costs, timing.passes, tokens.draft, tokens.k)
    predict = partial(predicted, costs if alike else None, tokens.draft, tokens.k)
    fast = [sample for row in timing.prompts for sample in row.speculative]
    total = sum(sample.decode for sample in fast)
    return Cell(
        target=tokens.target,
        draft=tokens.draft,
        k=tokens.k,
        **speed(timing.prompts, counts, seed, predict).model_dump(),
        mean_accepted_length=sum(len(row.tokens) for row in counts) / sum(row.target_passes for row in counts),
        draft_share=sum(sample.draft for sample in fast) / total,
        target_share=sum(sample.target for sample in fast) / total,
        other_share=sum(sample.other for sample in fast) / total,
        plain_prefill_seconds=sum(row.plain[0].prefill for row in timing.prompts) / len(timing.prompts),
        prefill_seconds=sum(row.speculative[0].prefill for row in timing.prompts) / len(timing.prompts),
        acceptance_by_position=by_position(counts),
        verdict=worst(verdicts),
        bit_identical=verdicts.bit_identical,
        lossless=in_words(verdicts),
        categories=_by_category(timing, counts, seed, predict),
    )


def worst(verdicts: CellVerdicts) -> Literal["identical", "near tie", "different", "sampled"]:
    """The worst verdict of a cell's prompts, the float32 check included."""
    found = {verdict.verdict for verdict in verdicts.sweep + verdicts.float32}
    return next(v for v in ("different", "near tie", "sampled", "identical") if v in found)


def in_words(verdicts: CellVerdicts) -> str:
    """The verdict as it stands in the table."""
    found = [verdict.verdict for verdict in verdicts.sweep + verdicts.float32]
    if wrong := found.count("different"):
        return f"{wrong} DIFFERENT"
    if ties := found.count("near tie"):
        return f"identical but for {ties} near tie{'s' * (ties > 1)}"
    if "sampled" in found:
        return "identical in float32, greedy"
    return "bit-identical" if verdicts.bit_identical else "identical"


def by_position(counts: list) -> list[float]:
    """Cumulative acceptance rates: entry i is how many of the windows' tokens 0..i were all accepted."""
    length = max((len(row.proposed_by_position) for row in counts), default=0)
    rates = []
    for at in range(length):
        rows = [row for row in counts if at < len(row.proposed_by_position)]
        proposed = sum(row.proposed_by_position[at] for row in rows)
        rates.append(sum(row.accepted_by_position[at] for row in rows) / proposed if proposed else 0.0)
    return rates


def _by_category(timing: CellTiming, counts: list, seed: int, predict: Callable) -> dict[str, Speed]:
    groups = defaultdict(list)
    for row, count in zip(timing.prompts, counts, strict=True):
        groups[row.category].append((row, count))
    return {
        name: speed([row for row, _ in pairs], [count for _, count in pairs], seed, predict)
        for name, pairs in groups.items()
    }
