"""What the stage `peers` writes, and the figures that the table shows of it; no torch."""

from pathlib import Path
from statistics import median

from src.pipeline.files import Record
from src.pipeline.results import Part, Settings


class Run(Part):
    """Seconds of one prompt, prefill included, an entry a repeat, by who decoded; empty without a draft to compare.

    same_plain: whether transformers' plain output is ours; same_assisted: whether its assisted output is its own plain
    one, None without a draft.
    """

    id: str
    plain: list[float]
    generate: list[float]
    speculative: list[float]
    assisted: list[float]
    same_plain: bool
    same_assisted: bool | None


class Peers(Record):
    """What the stage writes for one target.

    k, assisted_k: the best of each side, of those in trials (seconds by k). memory: bytes at peak above weights and
    cache, None where the system does not tell.
    """

    target: str
    draft: str | None
    settings: Settings
    machine: dict[str, str | int]
    tokens: int
    repeats: int
    k: int | None
    assisted_k: int | None
    trials: dict[str, dict[str, float]]
    runs: list[Run]
    memory: int | None
    weight_bytes: int


class PeerFigures(Part):
    """plain_ratio: transformers' seconds over ours, plain; speculative_ratio: its assisted ones over ours.

    differing: prompts on which its assisted output was not its own plain one. memory_share: of the weights' bytes.
    """

    draft: str | None
    prompts: int
    tokens: int
    repeats: int
    k: int | None
    assisted_k: int | None
    plain_ratio: float
    speculative_ratio: float | None
    differing: int | None
    memory_share: float | None


def peers_file(target: str) -> Path:
    """Where a target's comparison lies."""
    return Path("results/peers") / f"{target}.json"


def ratio(slow: list[list[float]], fast: list[list[float]]) -> float:
    """Sum over prompts of the median seconds of one side, over that of the other."""
    return sum(map(median, slow)) / sum(map(median, fast))


def best(trials: dict[str, float]) -> int:
    """The k of the least seconds."""
    return int(min(trials, key=trials.get))


def figures(record: Peers) -> PeerFigures:
    """The figures of a record's raw samples."""
    runs, drafted = record.runs, record.draft is not None
    return PeerFigures(
        draft=record.draft,
        prompts=len(runs),
        tokens=record.tokens,
        repeats=record.repeats,
        k=record.k,
        assisted_k=record.assisted_k,
        plain_ratio=ratio([run.generate for run in runs], [run.plain for run in runs]),
        speculative_ratio=ratio([r.assisted for r in runs], [r.speculative for r in runs]) if drafted else None,
        differing=sum(not run.same_assisted for run in runs) if drafted else None,
        memory_share=None if record.memory is None else record.memory / record.weight_bytes,
    )


def in_words(target: str, found: PeerFigures, version: str) -> str:
    """One sentence for the table."""
    text = (
        f"{target} beside transformers {version}, same weights, dtype and threads, {found.prompts} prompts x "
        f"{found.tokens} tokens, medians of {found.repeats}: plain decoding runs at {found.plain_ratio:.2f}x its "
        "`generate`"
    )
    if found.draft is not None:
        text += (
            f", speculative decoding with {found.draft} (k={found.k}) at {found.speculative_ratio:.2f}x its assisted "
            f"generation (k={found.assisted_k}), whose output differed from its own plain output on "
            f"{found.differing} of {found.prompts} prompts"
        )
    if found.memory_share is not None:
        text += f"; memory at peak above weights and cache is {100 * found.memory_share:.0f} % of the weights"
    return text + "."
