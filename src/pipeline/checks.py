"""Checks of single result files: that each agrees with itself, with the tokens, and with params.yaml and the prompts.

Every check yields sentences, one for each thing that does not hold, with the file first.
"""

from collections.abc import Iterator
from math import isclose
from pathlib import Path
from typing import Any

from src.pipeline.comparison import Peers, peers_file
from src.pipeline.costmodel import Costs, costs_file, figures
from src.pipeline.files import ResultError, read_json
from src.pipeline.lossless import compare
from src.pipeline.params import Params
from src.pipeline.replay import replay_draft
from src.pipeline.results import (
    SUMMARY,
    BaselineTiming,
    BaselineTokens,
    CellTiming,
    CellTokens,
    CellVerdicts,
    Settings,
    baseline_files,
    cell_files,
)
from src.pipeline.summary import Summary
from src.pipeline.traces import Replay, Sampled, Trace, replay_file, sampled_file, trace_file


def differences(stored: Any, expected: Any, where: str = "") -> Iterator[str]:
    """A phrase for each leaf of two JSON-like values that differs; numbers may differ in the last digits of a float."""
    if isinstance(stored, dict) and isinstance(expected, dict):
        for key in sorted(stored.keys() | expected.keys()):
            yield from differences(stored.get(key), expected.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(stored, list) and isinstance(expected, list) and len(stored) == len(expected):
        for at, (one, other) in enumerate(zip(stored, expected, strict=True)):
            yield from differences(one, other, f"{where}[{at}]")
    elif isinstance(stored, float) and isinstance(expected, float):
        if not isclose(stored, expected, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{where} is {stored:.6g}, and the samples give {expected:.6g}"
    elif stored != expected:
        yield f"{where} is {short(stored)}, and the samples give {short(expected)}"


def baseline(target: str, settings: Settings, ids: list[str]) -> Iterator[str]:
    """Of a target's plain decoding. ids: those of the prompts, in their order."""
    for file, kind in zip(baseline_files(target), (BaselineTokens, BaselineTiming), strict=True):
        record = yield from read(file, kind)
        if record:
            yield from _recorded(file, record, settings, ids)


def costs(target: str, settings: Settings) -> Iterator[str]:
    """Of a target's costs: the figures follow from the samples."""
    file = costs_file(target)
    record = yield from read(file, Costs)
    if record:
        yield from _recorded(file, record, settings)
        for phrase in differences(record.figures.model_dump(), figures(record.samples).model_dump(), "figures"):
            yield f"{file}: {phrase}"


def peers(target: str, settings: Settings) -> Iterator[str]:
    """Of a target beside transformers; its figures are made when the report is."""
    file = peers_file(target)
    record = yield from read(file, Peers)
    if record:
        yield from _recorded(file, record, settings)


def replayed(params: Params, target: str, settings: Settings) -> Iterator[str]:
    """Of the second sweep, where there is one: what `replay` says follows from the trace and the samples."""
    file = replay_file(target)
    if not file.exists():
        return
    stored, trace = (yield from read(file, Replay)), (yield from read(trace_file(target), Trace))
    costed = yield from read(costs_file(target), Costs)
    if not (stored and trace and costed):
        return
    hot = params.sampling.heat(settings)
    yield from _recorded(trace_file(target), trace, hot)
    for draft, traced in trace.drafts.items():
        if sampled_file(target, draft).exists() and (
            sampled := (yield from read(sampled_file(target, draft), Sampled))
        ):
            yield from _recorded(sampled_file(target, draft), sampled, hot)
        found, known = replay_draft(params, target, draft, traced, costed.figures), stored.drafts.get(draft)
        for phrase in differences(known and known.model_dump(), found.model_dump(), f"drafts.{draft}"):
            yield f"{file}: {phrase}"


def cell(params: Params, target: str, draft: str, k: int, settings: Settings, ids: list[str]) -> Iterator[str]:
    """Of one cell: counts and verdicts follow from the tokens, and each has as many samples as params.yaml asks for."""
    tokens_file, timing_file, verdict_file = cell_files(target, draft, k)
    tokens = yield from read(tokens_file, CellTokens)
    timing = yield from read(timing_file, CellTiming)
    verdicts = yield from read(verdict_file, CellVerdicts)
    base = yield from read(baseline_files(target)[0], BaselineTokens)
    if not (tokens and timing and verdicts and base):
        return
    for file, record in ((tokens_file, tokens), (timing_file, timing)):
        yield from _recorded(file, record, settings, ids)
    for row in tokens.prompts:
        yield from (f"{tokens_file}: prompt {row.id!r}: {phrase}" for phrase in _counts(row, k))
    for row, counted in zip(timing.prompts, tokens.prompts, strict=False):
        if row.generated != len(counted.tokens):
            yield f"{timing_file}: prompt {row.id!r}: {row.generated} tokens, not the {len(counted.tokens)} of the cell"
        if not len(row.plain) == len(row.speculative) == params.repeats:
            yield f"{timing_file}: prompt {row.id!r}: not {params.repeats} samples of each kind"
    if params.temperature == 0:
        yield from (f"{verdict_file}: {phrase}" for phrase in _verdicts(base, tokens, verdicts, params.check.near_tie))


def _counts(row, k: int) -> Iterator[str]:
    """Whether the counts of one prompt agree with each other: every one of them follows from the histogram."""
    windows = sum(row.histogram)
    accepted = [sum(row.histogram[at + 1 :]) for at in range(k)] if row.histogram else []
    expected = {
        "accepted": sum(at * count for at, count in enumerate(row.histogram)),
        "accepted_by_position": accepted,
        "proposed": sum(row.proposed_by_position),
    }
    yield from differences({name: getattr(row, name) for name in expected}, expected)
    if row.target_passes < windows or len(row.tokens) > row.target_passes * (k + 1):
        yield f"{row.target_passes} target passes do not fit {windows} windows and {len(row.tokens)} tokens"


def _verdicts(base, tokens, verdicts, near_tie: float) -> Iterator[str]:
    """Whether the stored verdicts follow from the stored tokens; margins need the model and stay as they are."""
    if verdicts.near_tie != near_tie:
        yield f"near_tie is {verdicts.near_tie}, and params.yaml has {near_tie}"
    for plain, row, stored in zip(base.prompts, tokens.prompts, verdicts.sweep, strict=False):
        found = compare(row.id, plain.tokens, row.tokens)
        tie = stored.margin is not None and abs(stored.margin) <= near_tie
        expected = "near tie" if found.verdict == "different" and tie else found.verdict
        if (stored.id, stored.verdict, stored.position) != (row.id, expected, found.position):
            yield f"prompt {stored.id!r} is {stored.verdict}, and the tokens say {expected}"
    if len(verdicts.sweep) != len(tokens.prompts):
        yield f"{len(verdicts.sweep)} verdicts for {len(tokens.prompts)} prompts"


def read(file: Path, kind: type) -> Iterator[str]:
    """Yields why a record cannot be read; returns it otherwise."""
    try:
        return read_json(file, kind)
    except ResultError as error:
        yield str(error)
        return None


def _recorded(file: Path, record, settings: Settings, ids: list[str] | None = None) -> Iterator[str]:
    """Whether a record was made with the params and prompts that lie there now, and on the summary's machine."""
    stored, now = record.settings.model_dump(), settings.model_dump()
    for key in sorted(key for key in now if stored[key] != now[key]):
        yield f"{file}: was made with {key} = {stored[key]!r}, and now it is {now[key]!r}"
    if ids is not None and [row.id for row in record.prompts] != ids:
        yield f"{file}: does not hold the prompts of {settings.prompts} in their order"
    if hasattr(record, "machine") and SUMMARY.exists():
        machine = read_json(SUMMARY, Summary).machine
        if record.machine != machine:
            yield f"{file}: was measured on another machine than {SUMMARY} says"


def short(value: Any) -> str:
    """A value as a sentence can hold it."""
    text = repr(value)
    return text if len(text) < 160 else f"{text[:157]}..."
