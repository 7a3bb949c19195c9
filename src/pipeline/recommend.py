"""Advice in lines of text: from a target's measured costs, or from sizes and a device's roofline."""

from pathlib import Path

from src.pipeline.costmodel import Costs
from src.pipeline.devices import Advice, Device, Pair, advise
from src.pipeline.files import read_json
from src.pipeline.table import markdown
from src.speculative.errors import SettingsError
from src.speculative.theory import best_k, break_even_alpha, expected_tokens, largest_c, speedup

MOST = 12  # the largest k that is tried where acceptance is a constant


def by_measured(costs: Path, draft: str | None, acceptance) -> tuple[list[str], int]:
    """Lines of advice from a target's measured costs, and the best k; raises SettingsError."""
    record = read_json(costs, Costs)
    of = record.figures
    if draft not in of.drafts:
        raise SettingsError(f"--draft: {draft!r} is not in {costs}; allowed: {', '.join(of.drafts)}")
    with_draft = of.drafts[draft]
    c, o = with_draft.c, with_draft.first + with_draft.o
    known = {"v": of.v, "o": o, "plain_o": of.plain_o, "catch_up": with_draft.catch_up}
    ks = _ks(acceptance, len(of.v) - 1)
    plain = 1 / (of.one_row_seconds * (1 + of.plain_o))
    rows = []
    for k in ks:
        factor = speedup(acceptance, k, c, **known)
        tokens = expected_tokens(acceptance, k)
        rows.append([str(k), f"{tokens:.2f}", f"{tokens / factor:.2f}", f"{factor:.2f}x", f"{factor * plain:.1f}"])
    k, factor = best_k(acceptance, [0, *ks], c, **known)
    alpha, most = break_even_alpha(k or ks[0], c, **known), largest_c(acceptance, k or ks[0], **known)
    return [
        f"costs: measured, {costs}: c = {c:.2f}, {1000 * of.one_row_seconds:.1f} ms a one-row pass",
        "",
        markdown(["k", "tokens per pass", "cost of a step", "speedup", "tok/s"], rows, right=range(5)),
        "",
        _recommendation(k, factor, plain),
        f"at k={k or ks[0]} a draft pays above α = {_shown(alpha)}, or, with this acceptance, below c = {most:.2f}",
    ], k  # fmt: skip


def by_roofline(device: Device, pair: Pair, acceptance, batches: list[int]) -> tuple[list[str], int]:
    """Lines of advice from sizes and a device, and the best k for the first batch size."""
    told = [batch for batch in batches if device.arithmetic or batch == 1]
    if not told:
        raise SettingsError("--batch: nobody says what this device computes; allowed: 1, or any with --arithmetic")
    left_out, batches = len(told) < len(batches), told
    found = [advise(device, pair, acceptance, _ks(acceptance, MOST), batch) for batch in batches]
    arithmetic = "unknown" if device.arithmetic is None else f"{device.arithmetic / 1e12:.0f} TFLOP/s"
    first, c = found[0], pair.draft * pair.draft_bytes / (pair.target * pair.target_bytes)
    return [
        f"costs: roofline of {device.bandwidth / 1e9:.0f} GB/s and {arithmetic} ({device.source}); the least possible, "
        f"for a pass also launches kernels. c = {c:.2f}",
        "",
        markdown(
            ["batch", "plain tok/s", "with draft tok/s", "speedup", "best k", "pays above α", "limited by"],
            [_row(advice) for advice in found],
            right=range(6),
        ),
        *["larger batches are left out: their passes are limited by arithmetic; --arithmetic tells it"] * left_out,
        "",
        _recommendation(first.k, first.factor, first.plain),
    ], first.k  # fmt: skip


def _row(advice: Advice) -> list[str]:
    return [
        str(advice.batch), f"{advice.plain:.0f}", f"{advice.speculative:.0f}", f"{advice.factor:.2f}x",
        str(advice.k) if advice.k else "no draft", _shown(advice.break_even), advice.bound,
    ]  # fmt: skip


def _shown(alpha: float | None) -> str:
    return "never" if alpha is None else f"{alpha:.2f}"


def _recommendation(k: int, factor: float, plain: float) -> str:
    if k == 0:
        return f"recommended: no draft; every k is slower than {plain:.1f} tok/s"
    return f"recommended: k={k}, {factor:.2f}x: {factor * plain:.1f} tok/s instead of {plain:.1f}"


def _ks(acceptance, most: int) -> list[int]:
    return list(range(1, 1 + (min(most, len(acceptance)) if isinstance(acceptance, list) else most)))
