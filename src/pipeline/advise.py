"""`advise`: does a draft pay, which k, and how to serve the pair; for models and machines that one cannot run here."""

from pathlib import Path
from typing import Annotated

import typer

from src.pipeline import published
from src.pipeline.asked import batches, device_of, heads, rates, size
from src.pipeline.console import say, stage
from src.pipeline.devices import DEVICES, WEIGHT_BYTES, Pair
from src.pipeline.engines import ENGINES, Order, emit
from src.pipeline.recommend import by_measured, by_roofline
from src.speculative.errors import SettingsError


def _among(option: str, value: str, allowed) -> None:
    if value not in allowed:
        raise SettingsError(f"--{option}: {value!r} cannot be used; allowed: {', '.join(allowed)}")


def advice(
    alpha: Annotated[
        str | None,
        typer.Option(help="0.8: each draft token is accepted with it; 0.61@3: accepted over proposed at k=3"),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="acceptance from results/sweep/TARGET/DRAFT/kK.json, or from results/trace/TARGET.json"),
    ] = None,
    costs: Annotated[Path | None, typer.Option(help="measured costs, results/costs/TARGET.json, with --draft")] = None,
    target_params: Annotated[str | None, typer.Option(help="parameters of the target, such as 7.6B")] = None,
    draft_params: Annotated[str | None, typer.Option(help="parameters of the draft, such as 494M")] = None,
    dtype: Annotated[str, typer.Option(help=f"of the weights: {', '.join(WEIGHT_BYTES)}")] = "bfloat16",
    draft_dtype: Annotated[str | None, typer.Option(help="of the draft's weights, if another")] = None,
    device: Annotated[str | None, typer.Option(help=f"one of {', '.join(DEVICES)}")] = None,
    bandwidth: Annotated[float | None, typer.Option(min=0, help="GB/s that its memory reads")] = None,
    arithmetic: Annotated[float | None, typer.Option(min=0, help="TFLOP/s of dense products")] = None,
    batch: Annotated[str, typer.Option(help="sequences decoded together")] = "1,4,16,64,256",
    engine: Annotated[str | None, typer.Option("--emit", help=f"a configuration for {', '.join(ENGINES)}")] = None,
    target: Annotated[
        str, typer.Option(help="the target's name for --emit: a directory or a hub repository")
    ] = "TARGET",
    draft: Annotated[str, typer.Option(help="the draft's name for --emit and in --costs")] = "DRAFT",
    vocabularies: Annotated[str | None, typer.Option(help="rows of both heads, as in 152064,151936")] = None,
    k: Annotated[int | None, typer.Option(min=1, help="emit this k instead of the best one")] = None,
    show_published: Annotated[bool, typer.Option("--published", help="predicted beside published, and stop")] = False,
) -> None:
    """Say whether a draft pays for a target, with how many tokens, and how to serve the pair.

    A step of speculative decoding costs k draft passes and one target pass over k+1 rows, and gives 1 to k+1 tokens;
    it pays if it gives more tokens than it costs one-row target passes. How many it gives follows from acceptance
    (--alpha or --trace); what it costs is measured (--costs), or follows from sizes and a device: while the batch is
    small a pass costs what reading its weights costs, so drafting costs the ratio of sizes and verifying is free;
    with large batches arithmetic limits, verifying costs k+1 times as much, and no draft pays.

    Measured here: python -m src.pipeline.advise --costs results/costs/smollm2-135m.json --draft smollm2-draft
    --trace results/sweep/smollm2-135m/smollm2-draft/k4.json

    For another machine: python -m src.pipeline.advise --alpha 0.7 --target-params 7.6B --draft-params 494M
    --device rtx-4090 --emit vllm --target Qwen/Qwen2.5-7B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct
    """
    if show_published:
        say(published.table())
        return
    for option, value in (("dtype", dtype), ("draft-dtype", draft_dtype or dtype)):
        _among(option, value, WEIGHT_BYTES)
    if engine is not None:
        _among("emit", engine, ENGINES)
    acceptance, words = rates(alpha, trace, draft)
    if costs is not None:
        lines, best = by_measured(costs, draft, acceptance)
    else:
        pair = Pair(
            size(target_params, "target-params"), size(draft_params, "draft-params"),
            WEIGHT_BYTES[dtype], WEIGHT_BYTES[draft_dtype or dtype],
        )  # fmt: skip
        lines, best = by_roofline(device_of(device, bandwidth, arithmetic), pair, acceptance, batches(batch))
    say("\n".join([f"acceptance: {words}", *lines]))
    if engine is not None and (k or best):
        say("\n" + emit(engine, Order(target, draft, k or best, dtype, heads(vocabularies))))
    elif engine is not None:
        say(f"nothing to emit for {engine}: serve {target} without a draft")


app = stage(advice)

if __name__ == "__main__":
    app()
