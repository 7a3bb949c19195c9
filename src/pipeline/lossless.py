"""Stage `lossless`: does speculative decoding give the target's own output? One verdict per prompt of one cell."""

from typing import Annotated

import typer

from src.pipeline.console import progress, say, stage
from src.pipeline.files import ResultError, read_json, write_json
from src.pipeline.pair import decode, encode_all, open_pair
from src.pipeline.params import Params, load_params
from src.pipeline.prompts import Prompt, load_prompts
from src.pipeline.results import BaselineTokens, CellTokens, CellVerdicts, Settings, Verdict, baseline_files, cell_files
from src.pipeline.widths import margin


def compare(id: str, plain: list[int], speculative: list[int]) -> Verdict:
    """Identical, or the first position where two outputs differ, as *different* until a margin says otherwise."""
    if plain == speculative:
        return Verdict(id=id, verdict="identical")
    at = next(
        (i for i, (a, b) in enumerate(zip(plain, speculative, strict=False)) if a != b),
        min(len(plain), len(speculative)),
    )
    return Verdict(
        id=id,
        verdict="different",
        position=at,
        plain=plain[at] if at < len(plain) else None,
        speculative=speculative[at] if at < len(speculative) else None,
    )


def weigh(verdict: Verdict, gap: float, near_tie: float) -> Verdict:
    """The same verdict with its margin, as a near tie when plain decoding found the two tokens about equally likely."""
    return verdict.model_copy(update={"margin": gap, "verdict": "near tie" if abs(gap) <= near_tie else "different"})


def judge_sweep(params: Params, prompts: list[Prompt], base: BaselineTokens, cell: CellTokens) -> list[Verdict]:
    """The sweep's own tokens against plain decoding's in the same dtype; only a difference needs the target."""
    rows = list(zip(base.prompts, cell.prompts, strict=True))
    if params.temperature > 0:
        return [Verdict(id=row.id, verdict="sampled") for _, row in rows]
    verdicts = [compare(row.id, plain.tokens, row.tokens) for plain, row in rows]
    if all(verdict.verdict == "identical" for verdict in verdicts):
        return verdicts
    target, _, tok = open_pair(params, cell.target)
    encoded = encode_all(params, prompts, target, tok)
    for at, verdict in enumerate(verdicts):
        if verdict.plain is not None and verdict.speculative is not None:
            before = base.prompts[at].tokens[: verdict.position + 1]
            gap = margin(target, encoded[at], before, verdict.speculative)
            verdicts[at] = weigh(verdict, gap, params.check.near_tie)
    return verdicts


def judge_float32(params: Params, base: BaselineTokens, prompts: list[Prompt], cell: CellTokens) -> list[Verdict]:
    """The check's prompts decoded anew in float32 on the CPU; there nothing but the same tokens will do."""
    pair = open_pair(params, cell.target, cell.draft, float32=True)
    encoded = encode_all(params, prompts[: len(base.check)], pair[0], pair[2])
    verdicts = []
    for plain, ids in progress(list(zip(base.check, encoded, strict=True)), "float32 on the CPU"):
        new, _ = decode(params, pair, ids, cell.k, greedy_tokens=params.check.max_new_tokens)
        verdicts.append(compare(plain.id, plain.tokens, new.tolist()))
    return verdicts


def judge_logits(base: BaselineTokens, cell: CellTokens) -> tuple[bool | None, int]:
    """Whether passes over k+1 rows gave the logits of plain decoding to the bit, and at how many positions."""
    compared = sum(len(row.logits) for row in base.prompts)
    if not base.exact or not compared:
        return None, 0
    rows = zip(base.prompts, cell.prompts, strict=True)
    return all(plain.logits == row.logits for plain, row in rows), compared


def lossless(
    target: Annotated[str, typer.Argument(help="the target, a name of the catalogue in params.yaml")],
    draft: Annotated[str, typer.Argument(help="the draft, a name of the catalogue")],
    k: Annotated[int, typer.Argument(min=1, help="the number of proposed tokens")],
) -> None:
    """Compare the output of TARGET with DRAFT at K with plain decoding's, prompt by prompt.

    Three checks: the sweep's own tokens, in its dtype; the first `check.prompts` prompts decoded anew in float32 on
    the CPU; and, where the target's passes are width-invariant, the logits themselves, to the bit. The verdicts go to
    results/lossless/TARGET/DRAFT/kK.json; a *different* does not end this stage, but the stage `gate` at the end.
    """
    params = load_params()
    prompts = load_prompts(params.prompts)
    tokens_file, _, verdict_file = cell_files(target, draft, k)
    base, cell = read_json(baseline_files(target)[0], BaselineTokens), read_json(tokens_file, CellTokens)
    if not base.settings == cell.settings == Settings.of(params, prompts):
        raise ResultError(f"{tokens_file}: was decoded with other settings than now; make it anew with `dvc repro`")
    say(f"lossless {target} with {draft}, k={k}: {len(prompts)} outputs, {len(base.check)} more in float32")
    sweep = judge_sweep(params, prompts, base, cell)
    same_bits, compared = judge_logits(base, cell)
    float32 = judge_float32(params, base, prompts, cell)
    record = CellVerdicts(
        target=target, draft=draft, k=k, dtype=params.dtype, near_tie=params.check.near_tie,
        sweep=sweep, float32=float32, bit_identical=same_bits, compared_logits=compared,
    )  # fmt: skip
    write_json(verdict_file, record)
    identical = sum(verdict.verdict == "identical" for verdict in sweep)
    exact = sum(verdict.verdict == "identical" for verdict in float32)
    say(f"{target} with {draft}, k={k}: {identical} of {len(sweep)} identical in {params.dtype}, "
        f"{exact} of {len(float32)} in float32")  # fmt: skip


app = stage(lossless)

if __name__ == "__main__":
    app()
