"""What a trace predicts of one rule and k, with intervals, and how a measured cell compares with it. No torch."""

import numpy as np

from src.pipeline.along import expect, figures
from src.pipeline.costmodel import Figures, predicted
from src.pipeline.summary import FEWEST_PROMPTS
from src.pipeline.traces import Agreement, Prediction, Traced

RESAMPLES = 2000


def predict(outputs: list[Traced], rule: str, k: int, costs: Figures | None, draft: str, seed: int) -> Prediction:
    """What one rule and k would do along the outputs of a trace."""
    rows = np.array([expect(rule, k, output.p, output.q).row() for output in outputs])
    alpha, length, rates = figures(rows.sum(0), k)
    chosen = np.random.default_rng(seed).integers(0, len(rows), size=(RESAMPLES, len(rows)))
    alphas, lengths, _ = figures(rows[chosen].sum(1), k)
    low = [_interval(values, len(rows)) for values in (alphas, lengths)]
    by_position = [] if np.isnan(alpha) else np.clip(rates, 0.0, 1.0).tolist()
    wide, extrapolated = _widened(costs, k)
    return Prediction(
        rule=rule, k=k, acceptance_rate=None if np.isnan(alpha) else float(alpha),
        acceptance_low=low[0][0], acceptance_high=low[0][1],
        mean_accepted_length=float(length), length_low=low[1][0], length_high=low[1][1],
        by_position=by_position, speedup=predicted(wide, draft, k, by_position), extrapolated=extrapolated,
    )  # fmt: skip


def _interval(values: np.ndarray, prompts: int) -> tuple[float | None, float | None]:
    if prompts < FEWEST_PROMPTS or np.isnan(values).all():
        return None, None
    low, high = np.nanquantile(values, [0.025, 0.975])
    return float(low), float(high)


def _widened(costs: Figures | None, k: int) -> tuple[Figures | None, bool]:
    """Costs that reach to a pass over k + 1 rows: beyond the widest timed one, along the line of its upper half."""
    if costs is None or len(costs.v) > k:
        return costs, False
    known = len(costs.v)
    half = np.arange(known // 2, known)
    slope, start = np.polyfit(half, np.array(costs.v)[half], 1)
    beyond = [float(start + slope * rows) for rows in range(known, k + 1)]
    return costs.model_copy(update={"v": [*costs.v, *beyond]}), True


def agree(cell: str, counts: list, prediction: Prediction, seed: int) -> Agreement | None:
    """τ of a measured cell beside the trace's: they agree if they differ by no more than both intervals together.

    None below 8 prompts, for which there are no intervals.
    """
    tokens, passes = (
        np.array([len(row.tokens) for row in counts]), np.array([row.target_passes for row in counts])
    )  # fmt: skip
    chosen = np.random.default_rng(seed).integers(0, len(counts), size=(RESAMPLES, len(counts)))
    low, high = _interval(tokens[chosen].sum(1) / passes[chosen].sum(1), len(counts))
    if low is None or prediction.length_low is None:
        return None
    measured = float(tokens.sum() / passes.sum())
    apart = abs(measured - prediction.mean_accepted_length)
    room = np.hypot(high - low, prediction.length_high - prediction.length_low) / 2
    return Agreement(cell=cell, measured=measured, predicted=prediction.mean_accepted_length,
                     low=low, high=high, agrees=bool(apart <= room))  # fmt: skip
