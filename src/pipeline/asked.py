"""What `advise` is asked, from texts on the command line to numbers; raises SettingsError in one sentence."""

import re
from pathlib import Path

from src.pipeline.devices import DEVICES, Device
from src.pipeline.files import read_json
from src.pipeline.predictions import predict
from src.pipeline.recommend import MOST
from src.pipeline.results import CellTokens
from src.pipeline.summary import by_position
from src.pipeline.traces import Trace
from src.speculative.errors import SettingsError
from src.speculative.theory import constant_rate

FACTORS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "": 1.0}


def size(text: str | None, key: str) -> float:
    """A number of parameters such as 494M or 7.6B; raises SettingsError."""
    if text is None:
        raise SettingsError(f"--{key} is missing; allowed: a size such as 494M or 7.6B, or --costs, measured ones")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?)", text.strip(), re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise SettingsError(f"--{key}: {text!r} cannot be used; allowed: a size such as 494M or 7.6B")
    return float(match[1]) * FACTORS[match[2].upper()]


def rates(alpha: str | None, trace: Path | None, draft: str) -> tuple[float | list[float], str]:
    """Acceptance as `theory` takes it, and in words; raises SettingsError.

    trace: what a cell of the sweep counted, or, in a folder of that name, what the stage `trace` recorded for a draft.
    """
    if (alpha is None) == (trace is None):
        raise SettingsError("acceptance: allowed is one of --alpha and --trace")
    if trace is not None:
        found = (
            _traced(trace, draft) if trace.parent.name == "trace" else by_position(read_json(trace, CellTokens).prompts)
        )
        shown = ", ".join(f"{100 * rate:.0f}%" for rate in found)
        return found, f"of tokens up to each position of {trace}: {shown}"
    match = re.fullmatch(r"(0|1|0?\.\d+|1\.0+)(?:@([1-9]\d?))?", alpha.strip())
    if not match:
        raise SettingsError(
            f"--alpha: {alpha!r} cannot be used; allowed: 0 to 1, or a rate with its k, up to 99, as in 0.61@3"
        )
    each = "for each draft token, if the one before it was accepted"
    if not match[2]:
        return float(match[1]), f"{float(match[1]):.2f} {each}"
    constant = constant_rate(float(match[1]), int(match[2]))
    return constant, f"{100 * float(match[1]):.1f}% of proposed at k={match[2]}, which is {constant:.2f} {each}"


def _traced(file: Path, draft: str) -> list[float]:
    record = read_json(file, Trace)
    if draft not in record.drafts:
        raise SettingsError(f"--draft: {draft!r} is not in {file}; allowed: {', '.join(record.drafts)}")
    outputs = record.drafts[draft].greedy or record.drafts[draft].sampled
    return predict(outputs, "token", MOST, None, draft, record.settings.seed).by_position


def device_of(name: str | None, bandwidth: float | None, arithmetic: float | None) -> Device:
    """A named device, or one of GB/s and TFLOP/s; raises SettingsError."""
    if name is not None and name.lower() not in DEVICES:
        raise SettingsError(f"--device: {name!r} is not known; allowed: {', '.join(DEVICES)}, or give --bandwidth")
    if name is None and not bandwidth:
        raise SettingsError("costs: allowed is one of --costs, --device and --bandwidth")
    known = DEVICES[name.lower()] if name else Device(0.0, None, "given")
    changed = bandwidth * 1e9 if bandwidth else known.bandwidth
    return Device(changed, arithmetic * 1e12 if arithmetic else known.arithmetic, known.source)


def batches(text: str) -> list[int]:
    """Batch sizes; raises SettingsError."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise SettingsError(f"--batch: {text!r} cannot be used; allowed: whole numbers from 1, as in 1,8,64")
    return found


def heads(text: str | None) -> tuple[int, int] | None:
    """Rows of the heads of target and draft."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d*),([1-9]\d*)", text.replace(" ", ""))
    if not match:
        raise SettingsError(f"--vocabularies: {text!r} cannot be used; allowed: two numbers, as in 152064,151936")
    return int(match[1]), int(match[2])
