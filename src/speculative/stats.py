"""What one generation measured."""

import time
from dataclasses import asdict, dataclass, field

import torch


@dataclass
class Stats:
    """Counts and seconds of one call of `generate`.

    A *window* is what one step proposed and verified. A window that was cut, by the token budget, by the end of the
    context or by a stop inside it, offered fewer than k chances, so counting it would make a perfect draft look
    imperfect: it goes into `target_passes`, `draft_passes` and `generated`, but not into the acceptance counts.

    prompt_tokens, generated: tokens. target_passes, draft_passes: forward passes while decoding, prefill apart.
    proposed, accepted: draft tokens in whole windows. histogram[i]: whole windows with i accepted tokens.
    proposed_by_position[i], accepted_by_position[i]: of whole windows, how many had a proposal at position i, and
    accepted it. draft_failures: steps in which the draft's logits were not numbers, so that it proposed nothing.
    *_seconds: wall time; other_seconds is what a decode step spends outside the passes. stop: why it ended, one of
    "eos", "stop" (a stop string), "length" (max_new_tokens) or "context".
    """

    k: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated: int = 0
    target_passes: int = 0
    draft_passes: int = 0
    draft_failures: int = 0
    proposed: int = 0
    accepted: int = 0
    histogram: list[int] = field(default_factory=list)
    proposed_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    other_seconds: float = 0.0
    stop: str = ""

    def record(self, proposed: int, accepted: int) -> None:
        """Counts one whole window."""
        self.proposed += proposed
        self.accepted += accepted
        _grow(self.histogram, max(proposed, self.k) + 1)
        _grow(self.proposed_by_position, max(proposed, self.k))
        _grow(self.accepted_by_position, max(proposed, self.k))
        self.histogram[accepted] += 1
        for i in range(proposed):
            self.proposed_by_position[i] += 1
            self.accepted_by_position[i] += i < accepted

    @property
    def decode_seconds(self) -> float:
        return self.draft_seconds + self.target_seconds + self.other_seconds

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of decoding, prefill apart; 0 if nothing was decoded."""
        return self.generated / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def acceptance_rate(self) -> float | None:
        """α: accepted over proposed in whole windows; None if no window was whole."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def mean_accepted_length(self) -> float:
        """τ: tokens per target pass, the bonus token included; 1 for plain decoding, 0 if nothing was decoded."""
        return self.generated / self.target_passes if self.target_passes else 0.0

    def to_dict(self) -> dict:
        """Every field and the three derived figures, ready for JSON."""
        return asdict(self) | {
            "decode_seconds": self.decode_seconds,
            "tokens_per_second": self.tokens_per_second,
            "acceptance_rate": self.acceptance_rate,
            "mean_accepted_length": self.mean_accepted_length,
        }

    def summary(self) -> str:
        """One readable line."""
        line = f"{self.generated} tokens in {self.decode_seconds:.2f} s ({self.tokens_per_second:.1f} tok/s)"
        line += f" after {1000 * self.prefill_seconds:.0f} ms of prefill, {self.target_passes} target passes"
        if self.k:
            alpha = "-" if self.acceptance_rate is None else f"{100 * self.acceptance_rate:.1f} %"
            line += f", {self.draft_passes} draft passes, k={self.k}, α={alpha}, τ={self.mean_accepted_length:.2f}"
            line += f", time in draft/target/other {self._shares()}"
        if self.draft_failures:
            line += f", the draft gave no numbers in {self.draft_failures} steps"
        return f"{line}, stopped at {self.stop}"

    def _shares(self) -> str:
        total = self.decode_seconds or 1.0
        parts = (self.draft_seconds, self.target_seconds, self.other_seconds)
        return "/".join(f"{100 * part / total:.0f}" for part in parts) + " %"


def _grow(counts: list[int], size: int) -> None:
    counts.extend([0] * (size - len(counts)))


def now(device: torch.device) -> float:
    """Seconds of a monotonic clock, read after the device has finished what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()
