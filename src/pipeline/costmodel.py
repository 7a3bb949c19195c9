"""What passes cost, as measured, and what that predicts: the record of the stage `costs`, and no torch."""

from pathlib import Path
from statistics import median

from src.pipeline.files import Record
from src.pipeline.results import Part, Passes, Settings
from src.speculative.theory import speedup


class DraftSamples(Part):
    """Raw seconds of one draft, an entry a round: of a draft pass that follows another, choosing its token included, of
    the first of a window over one row and over two, and of what is left of a speculative step. target_pass: of the
    target's over one row in the same round.

    weight_bytes: what its pass reads. operations: floating-point operations of a pass over one row.
    """

    draft_pass: list[float]
    first_pass: list[float]
    two_rows: list[float]
    target_pass: list[float]
    other: list[float]
    weight_bytes: int
    operations: float


class Samples(Part):
    """Raw measurements of one target, seconds unless said otherwise.

    passes[m - 1]: of a pass over m rows, an entry a round. other: of what is left of a step of plain decoding.
    prefill: of all of a prompt of prompt_tokens but its last token. positions: tokens in the cache before each pass.
    bandwidth: bytes a second; arithmetic: floating-point operations a second; operations: those of a one-row pass.
    """

    passes: list[list[float]]
    other: list[float]
    prefill: list[float]
    prompt_tokens: int
    positions: int
    bandwidth: float
    arithmetic: float
    operations: float
    weight_bytes: int
    cache_bytes: int
    drafts: dict[str, DraftSamples]


class DraftFigures(Part):
    """c: a draft pass; first: how much more the first one of a window takes, after a pass of the target; catch_up: how
    much more than that one over two rows, after a window that was accepted whole; o: what is left of a speculative
    step. All in one-row target passes, medians of ratios.

    over_bound: how many times as long as reading its weights a draft pass takes.
    """

    c: float
    first: float
    catch_up: float
    o: float
    over_bound: float


class Figures(Part):
    """v[m - 1]: a pass over m rows, and plain_o: what is left of a plain step, in one-row target passes.

    one_row_seconds, prefill_seconds: medians. bound_seconds: reading weights and cache once. over_bound: how many
    times as long as that a one-row pass takes.
    """

    one_row_seconds: float
    v: list[float]
    plain_o: float
    prefill_seconds: float
    bound_seconds: float
    over_bound: float
    drafts: dict[str, DraftFigures]


class Costs(Record):
    """What the stage `costs` writes for one target."""

    target: str
    settings: Settings
    machine: dict[str, str | int]
    samples: Samples
    figures: Figures


def costs_file(target: str) -> Path:
    """Where a target's costs lie."""
    return Path(f"results/costs/{target}.json")


def figures(samples: Samples) -> Figures:
    """The figures of raw samples.

    v and c are medians of ratios within a round, whose passes ran one after the other, so that a machine that grows
    slower over the rounds does not bias them.
    """
    one_row = samples.passes[0]
    typical = median(one_row)
    bound = (samples.weight_bytes + samples.cache_bytes) / samples.bandwidth
    return Figures(
        one_row_seconds=typical,
        v=[_ratio(rows, one_row) for rows in samples.passes],
        plain_o=median(samples.other) / typical,
        prefill_seconds=median(samples.prefill),
        bound_seconds=bound,
        over_bound=typical / bound,
        drafts={
            slug: DraftFigures(
                **_draft_costs(draft, draft.target_pass),
                o=median(draft.other) / median(draft.target_pass),
                over_bound=median(draft.draft_pass) / (draft.weight_bytes / samples.bandwidth),
            )
            for slug, draft in samples.drafts.items()
        },
    )


def _draft_costs(of: DraftSamples | Passes, one_row: list[float]) -> dict[str, float]:
    """c, first and catch_up of a draft's passes, in the one-row target passes of the same rounds."""
    c, first, two = (_ratio(seconds, one_row) for seconds in (of.draft_pass, of.first_pass, of.two_rows))
    return {"c": c, "first": first - c, "catch_up": two - first}


def _ratio(these: list[float], those: list[float]) -> float:
    return median(a / b for a, b in zip(these, those, strict=True))


def of_cell(costs: Figures, passes: Passes, draft: str, k: int) -> Figures:
    """The figures with c, first, catch_up and v(k + 1) as they were between the prompts of a cell.

    A machine's memory and its arithmetic may slow down apart from each other within minutes, and with them what passes
    cost in units of a one-row pass.
    """
    own = costs.drafts[draft].model_copy(update=_draft_costs(passes, passes.one_row))
    v = [*costs.v, *[0.0] * (k + 1 - len(costs.v))]
    v[k] = _ratio(passes.verifying, passes.one_row)
    return costs.model_copy(update={"v": v, "drafts": costs.drafts | {draft: own}})


def predicted(costs: Figures | None, draft: str, k: int, acceptance: list[float]) -> float | None:
    """The walltime speedup that costs and cumulative acceptance rates by position say; None where one is unknown."""
    if costs is None or draft not in costs.drafts or len(acceptance) < k or len(costs.v) <= k:
        return None
    of = costs.drafts[draft]
    return speedup(acceptance, k, of.c, costs.v, of.first + of.o, costs.plain_o, of.catch_up)
