"""Published speedups beside what two models of costs predict for them: where the models hold, and where they fail.

By bytes, a pass costs what reading its weights costs. By layers, it costs what launching its layers costs, which is
what is left of a pass when its weights are small for the device. A real pass costs about the sum of both, so truth
lies between; what both leave out, such as the host's work in every step, puts it below.
"""

from typing import NamedTuple

from src.pipeline.table import markdown
from src.speculative.theory import constant_rate, step_cost


class Point(NamedTuple):
    """One published figure. Sizes in parameters, layers as (draft, target); tokens: tokens per target pass, None
    where the source does not say."""

    name: str
    device: str
    k: int
    target: float
    draft: float
    layers: tuple[int, int]
    tokens: float | None
    published: float
    source: str


POINTS = [
    Point("Qwen2.5-1.5B with 0.5B", "Apple M5", 2, 1.54e9, 0.494e9, (24, 28), 1 + 2 * 0.694, 1.13,
          "this project's reference: α = 69.4 % at k = 2"),
    Point("Qwen2.5-3B with 0.5B", "Apple M5", 3, 3.09e9, 0.494e9, (24, 36), 1 + 3 * 0.613, 1.50,
          "this project's reference: α = 61.3 % at k = 3"),
    Point("Qwen2.5-Coder-7B with 0.5B", "RTX 4090", 4, 7.62e9, 0.494e9, (24, 28), None, 1.72,
          "vllm-project/vllm#13849: 15.73 ms a token without, 9.15 ms with"),
    Point("Llama-2-70B with 7B, int4", "A100", 5, 69e9, 6.74e9, (32, 80), None, 1.92,
          "pytorch-labs/gpt-fast README: 25.25 and 48.4 tokens a second; k assumed"),
    Point("Vicuna-7B with 68M", "RTX 3090", 5, 6.74e9, 68e6, (2, 32), 2.28, 1.79,
          "Spec-Bench, SpS, k assumed; its leaderboard now says 1.83x at 2.29"),
    Point("Vicuna-7B with 68M", "A100", 5, 6.74e9, 68e6, (2, 32), 2.28, 1.52,
          "Spec-Bench, SpS, k assumed; its leaderboard now says 1.49x at 2.28"),
]  # fmt: skip


def by_bytes(point: Point) -> float | None:
    """The factor where a pass costs what reading its weights costs; None without tokens per pass."""
    return None if point.tokens is None else point.tokens / step_cost(point.k, point.draft / point.target)


def by_layers(point: Point) -> float | None:
    """The factor where a pass costs what launching its layers costs; None without tokens per pass."""
    return None if point.tokens is None else point.tokens / step_cost(point.k, point.layers[0] / point.layers[1])


def needed_alpha(point: Point) -> tuple[float, float]:
    """The constant α that the published factor needs, by bytes and by layers; at most 1."""
    found = []
    for c in (point.draft / point.target, point.layers[0] / point.layers[1]):
        rate = (point.published * step_cost(point.k, c) - 1) / point.k
        found.append(constant_rate(min(max(rate, 0.0), 1.0), point.k))
    return found[0], found[1]


def verdict(point: Point) -> str:
    """Where the published figure lies: between the two models, or below both."""
    low, high = by_layers(point), by_bytes(point)
    if low is None or high is None:
        of_bytes, of_layers = needed_alpha(point)
        return f"α is not published; it needs {of_bytes:.2f} by bytes, {of_layers:.2f} by layers"
    if low <= point.published <= high:
        return "between the two"
    return "below both: the host's work in every step" if point.published < low else "above both"


def table() -> str:
    """The README's table: what both models predict, what was published, and where that lies."""

    def shown(factor: float | None) -> str:
        return "-" if factor is None else f"{factor:.2f}x"

    rows = [
        [
            p.name,
            p.device,
            str(p.k),
            shown(by_bytes(p)),
            shown(by_layers(p)),
            f"{p.published:.2f}x",
            verdict(p),
            p.source,
        ]
        for p in POINTS
    ]
    head = ["pair", "device", "k", "by bytes", "by layers", "published", "the published figure is", "source"]
    return markdown(head, rows, right=range(2, 6))
