"""The schemas and places of what the measuring stages write.

What is deterministic (tokens, counts) and what is measured (seconds) lie in different files, so that a new timing
never reruns a check. Each file holds the settings that were really used, read once when its stage began.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from src.pipeline.files import Record
from src.pipeline.params import Params
from src.pipeline.prompts import Prompt, digest

MACHINE = Path("results/machine.json")
TABLE = Path("results/table.md")
SUMMARY = Path("results/summary.json")
LOSSLESS = Path("results/lossless.json")
METRICS = Path("results/metrics")


class Part(BaseModel):
    """Base of what lies inside a record."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Machine(Record):
    """Which machine measured; `fingerprint` is what timings depend on, as a mapping that `dvc params diff` shows."""

    fingerprint: dict[str, str | int]


class Settings(Part):
    """How tokens were decoded: the part of params.yaml that decides which tokens come out."""

    device: str
    dtype: str
    threads: int
    exact: bool
    compile: bool
    seed: int
    prompts: str
    prompts_sha256: str
    chat: bool
    max_new_tokens: int
    ignore_eos: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    verification: str
    drafter: str
    schedule: str

    @classmethod
    def of(cls, params: Params, prompts: list[Prompt]) -> "Settings":
        """Those of `params`, with the digest of the prompts that were read."""
        same = {name: getattr(params, name) for name in cls.model_fields if name != "prompts_sha256"}
        return cls(prompts_sha256=digest(prompts), **same)


class Tokens(Part):
    """What was decoded after one prompt."""

    id: str
    category: str
    tokens: list[int]
    logits: list[str] = []  # a digest of the target's logits at each position, if its passes are width-invariant


class BaselineTokens(Record):
    """Plain decoding of a target: in the sweep's dtype, and in float32 on the CPU for the check."""

    target: str
    settings: Settings
    exact: bool  # whether a width-invariant pass was found and used
    prompts: list[Tokens]
    check: list[Tokens]


class Seconds(Part):
    """Seconds of one decoding; `decode` is draft + target + other."""

    prefill: float
    draft: float
    target: float
    other: float

    @property
    def decode(self) -> float:
        """Seconds of all that follows the prefill."""
        return self.draft + self.target + self.other


class Timing(Part):
    """The raw samples of one prompt, one entry a repeat; plain and speculative of a repeat ran back to back.

    The first entries started from empty caches; later ones may have found the prompt's prefill done.
    """

    id: str
    category: str
    generated: int
    plain: list[Seconds]
    speculative: list[Seconds] = []


class BaselineTiming(Record):
    """Seconds of plain decoding alone."""

    target: str
    settings: Settings
    machine: dict[str, str | int]
    prompts: list[Timing]


class Counts(Tokens):
    """What was decoded speculatively after one prompt, and how."""

    target_passes: int
    draft_passes: int
    proposed: int
    accepted: int
    histogram: list[int]
    proposed_by_position: list[int]
    accepted_by_position: list[int]


class CellTokens(Record):
    """Tokens and counts of one target, draft and k."""

    target: str
    draft: str
    k: int
    settings: Settings
    prompts: list[Counts]


class Passes(Part):
    """Raw seconds of single passes, timed between a cell's prompts, an entry for each: of the target's over one row and
    over k + 1; of the draft's following another, and the first of a window over one row and over two."""

    one_row: list[float]
    verifying: list[float]
    draft_pass: list[float]
    first_pass: list[float]
    two_rows: list[float]


class CellTiming(Record):
    """Seconds of one target, draft and k. passes: None where windows are not of k tokens of a draft model."""

    target: str
    draft: str
    k: int
    repeats: int
    warmup: int
    settings: Settings
    machine: dict[str, str | int]
    prompts: list[Timing]
    passes: Passes | None = None


class Verdict(Part):
    """Whether speculative decoding gave plain decoding's tokens after one prompt, and where not, what happened."""

    id: str
    verdict: Literal["identical", "near tie", "different", "sampled"]
    position: int | None = None  # of the first differing token, from 0
    plain: int | None = None  # the two tokens there
    speculative: int | None = None
    margin: float | None = None  # plain decoding's logit of the first minus that of the second


class CellVerdicts(Record):
    """The losslessness verdict of one target, draft and k."""

    target: str
    draft: str
    k: int
    dtype: str
    near_tie: float
    sweep: list[Verdict]
    float32: list[Verdict]
    # Whether logits of passes over k+1 rows equal those over one row to the bit; None where none was asked for.
    bit_identical: bool | None
    compared_logits: int = Field(ge=0)  # positions behind that statement


class Lossless(Record):
    """The verdicts of all cells."""

    cells: list[CellVerdicts]


def model_file(slug: str, role: Literal["models", "drafts"]) -> Path:
    """Where the fetch stage says what it fetched."""
    return Path("results") / role / f"{slug}.json"


def baseline_files(target: str) -> tuple[Path, Path]:
    """Where a target's plain tokens and their timing lie."""
    return Path(f"results/baseline/{target}.json"), Path(f"results/baseline/{target}-timing.json")


def cell_files(target: str, draft: str, k: int) -> tuple[Path, Path, Path]:
    """Where a cell's tokens, timing and verdicts lie."""
    place = f"{target}/{draft}/k{k}"
    return (
        Path(f"results/sweep/{place}.json"),
        Path(f"results/sweep/{place}-timing.json"),
        Path(f"results/lossless/{place}.json"),
    )
