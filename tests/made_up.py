"""A repository's worth of made-up results: what the stages would store on a machine whose laws are known."""

import itertools
from pathlib import Path

import numpy as np
from ruamel.yaml import YAML

from src.pipeline import comparison, costmodel, traces
from src.pipeline.files import write_json
from src.pipeline.origins import ModelInfo
from src.pipeline.params import load_params
from src.pipeline.prompts import load_prompts
from src.pipeline.results import (
    MACHINE,
    BaselineTiming,
    BaselineTokens,
    CellTiming,
    CellTokens,
    CellVerdicts,
    Counts,
    Machine,
    Seconds,
    Settings,
    Timing,
    Tokens,
    Verdict,
    baseline_files,
    cell_files,
    model_file,
)

ROOT = Path(__file__).parent.parent
ONE_ROW, OTHER = 0.028, 0.0005  # seconds of a one-row pass, and of the rest of a step
DRAFTS = {"good": (0.8, 0.2), "costly": (0.85, 0.7)}  # α and c
FINGERPRINT = {
    "id": "0123abcd", "processor": "Made-up 3000", "accelerator": "none", "cores": 2, "memory_gib": 24,
    "system": "Linux x86_64", "python": "3.11.7", "torch": "2.13.0", "transformers": "5.24.0", "threads": 2,
}  # fmt: skip


def v(rows: int) -> float:
    """The cost of a pass over that many rows, in one-row passes."""
    return 1 + 0.06 * (rows - 1)


def write_results(folder: Path, *, drafts: dict = DRAFTS, ks=(1, 2, 4, 6), noise=0.01, seed=0) -> None:
    """params.yaml, prompts and all results of one target, in `folder`, which must be the working directory.

    drafts: name -> (α, c). noise: relative, of every time.
    """
    chance = np.random.default_rng(seed)
    _write_params(folder, list(drafts), list(ks))
    params = load_params()
    prompts = load_prompts(params.prompts)
    settings = Settings.of(params, prompts)
    write_json(MACHINE, Machine(fingerprint=FINGERPRINT))
    for slug, role, size in [
        ("target", "models", 1e9),
        *((slug, "drafts", 1e9 * c) for slug, (_, c) in drafts.items()),
    ]:
        info = ModelInfo(slug=slug, source={}, parameters=int(size), weight_bytes=int(2 * size), files={})
        write_json(model_file(slug, role), info)
    write_json(costmodel.costs_file("target"), made_up_costs(settings, drafts, chance, noise))
    _write_baseline(settings, prompts)
    write_json(comparison.peers_file("target"), made_up_peers(settings, prompts, list(drafts)))
    for (draft, (alpha, c)), k in itertools.product(drafts.items(), ks):
        _write_cell(settings, prompts, draft, k, alpha, c, chance, noise)


def _write_params(folder: Path, drafts: list, ks: list) -> None:
    yaml = YAML()
    data = yaml.load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    data |= {"targets": ["target"], "drafts": drafts, "ks": ks, "dtype": "bfloat16"}
    data["models"] = {slug: {"source": "path", "path": f"/made/up/{slug}"} for slug in ["target", *drafts]}
    data["distill"]["of"] = "target"
    (folder / "prompts").mkdir(exist_ok=True)
    (folder / data["prompts"]).write_bytes((ROOT / data["prompts"]).read_bytes())
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(data, file)


def made_up_costs(settings: Settings, drafts: dict, chance, noise: float, rounds=15) -> costmodel.Costs:
    """What the stage `costs` would store."""

    def around(seconds, size=rounds):
        return (seconds * (1 + noise * chance.standard_normal(size))).tolist()

    samples = costmodel.Samples(
        passes=[around(ONE_ROW * v(rows), rounds * len(drafts)) for rows in range(1, 10)],
        other=around(OTHER), prefill=around(0.2), prompt_tokens=60, positions=84, bandwidth=17e9, arithmetic=60e9,
        operations=0.27e9, weight_bytes=270_000_000, cache_bytes=2_000_000,
        drafts={
            slug: costmodel.DraftSamples(
                draft_pass=around(ONE_ROW * c), first_pass=around(ONE_ROW * c), two_rows=around(ONE_ROW * c),
                target_pass=around(ONE_ROW), other=around(OTHER), weight_bytes=int(270e6 * c), operations=0.27e9 * c,
            )
            for slug, (_, c) in drafts.items()
        },
    )  # fmt: skip
    return costmodel.Costs(
        target="target", settings=settings, machine=FINGERPRINT, samples=samples, figures=costmodel.figures(samples)
    )


def made_up_peers(settings: Settings, prompts: list, drafts: list) -> comparison.Peers:
    """What the stage `peers` would store: transformers takes half as long again, and assisted a quarter."""
    runs = [
        comparison.Run(
            id=prompt.id, plain=[1.0, 1.1], generate=[1.5, 1.65], speculative=[0.8, 0.8], assisted=[1.0, 1.0],
            same_plain=True, same_assisted=True,
        )
        for prompt in prompts[:3]
    ]  # fmt: skip
    return comparison.Peers(
        target="target", draft=drafts[0], settings=settings, machine=FINGERPRINT, tokens=32, repeats=2, k=4,
        assisted_k=2, trials={"speculative": {"4": 0.8}, "assisted": {"2": 1.0}}, runs=runs, memory=27_000_000,
        weight_bytes=270_000_000,
    )  # fmt: skip


def _answer(prompt, tokens: int) -> list[int]:
    return np.random.default_rng(list(prompt.id.encode())).integers(0, 1000, tokens).tolist()


def _write_baseline(settings: Settings, prompts: list) -> None:
    rows = [{"id": prompt.id, "category": prompt.category} for prompt in prompts]
    tokens = [
        Tokens(**row, tokens=_answer(prompt, settings.max_new_tokens))
        for row, prompt in zip(rows, prompts, strict=True)
    ]
    second = Seconds(prefill=0.2, draft=0.0, target=ONE_ROW * settings.max_new_tokens, other=OTHER)
    timing = [Timing(**row, generated=settings.max_new_tokens, plain=[second]) for row in rows]
    tokens_file, timing_file = baseline_files("target")
    same = {"target": "target", "settings": settings}
    write_json(tokens_file, BaselineTokens(**same, exact=True, prompts=tokens, check=tokens[:2]))
    write_json(timing_file, BaselineTiming(**same, machine=FINGERPRINT, prompts=timing))


def _write_cell(settings: Settings, prompts: list, draft: str, k: int, alpha: float, c: float, chance, noise) -> None:
    cell = {"target": "target", "draft": draft, "k": k, "settings": settings}
    counts, timing = [], []
    for prompt in prompts:
        row = {"id": prompt.id, "category": prompt.category}
        counts.append(_counts(row, _answer(prompt, settings.max_new_tokens), k, alpha, chance))
        passes = counts[-1].target_passes

        def seconds(steps, drafted, rows):
            noisy = 1 + noise * chance.standard_normal(4)
            exact = np.array([0.2, steps * drafted * c * ONE_ROW, steps * v(rows) * ONE_ROW, steps * OTHER])
            return Seconds(**dict(zip(Seconds.model_fields, (exact * noisy).tolist(), strict=True)))

        generated = len(counts[-1].tokens)
        plain = [seconds(generated, 0, 1) for _ in range(2)]
        speculative = [seconds(passes, k, k + 1) for _ in range(2)]
        timing.append(Timing(**row, generated=generated, plain=plain, speculative=speculative))
    tokens_file, timing_file, verdict_file = cell_files("target", draft, k)
    write_json(tokens_file, CellTokens(**cell, prompts=counts))
    write_json(timing_file, CellTiming(**cell, repeats=2, warmup=1, machine=FINGERPRINT, prompts=timing))
    same = [Verdict(id=prompt.id, verdict="identical") for prompt in prompts]
    verdicts = CellVerdicts(
        target="target", draft=draft, k=k, dtype="bfloat16", near_tie=0.5, sweep=same, float32=same[:2],
        bit_identical=True, compared_logits=288,
    )  # fmt: skip
    write_json(verdict_file, verdicts)


def _counts(row: dict, tokens: list[int], k: int, alpha: float, chance) -> Counts:
    """Steps with acceptance drawn by a constant α until all tokens are there."""
    histogram, made, passes = [0] * (k + 1), 0, 0
    while made < len(tokens):
        accepted = int(np.cumprod(chance.random(k) < alpha).sum())
        room, passes = len(tokens) - made, passes + 1
        if room > k:
            histogram[accepted] += 1
        made += min(accepted + 1, room)
    windows = sum(histogram)
    return Counts(
        **row, tokens=tokens, target_passes=passes, draft_passes=passes * k,
        proposed=windows * k, accepted=sum(i * n for i, n in enumerate(histogram)), histogram=histogram,
        proposed_by_position=[windows] * k, accepted_by_position=[sum(histogram[i + 1 :]) for i in range(k)],
    )  # fmt: skip


def write_trace(params, draft: str, seed=0) -> None:
    """What the stage `trace` would store of a draft that mostly agrees with its target."""
    chance, prompts = np.random.default_rng(seed), load_prompts(params.prompts)

    def traced(prompt, sure: bool) -> traces.Traced:
        p, q = chance.uniform(0.2, 1, (2, params.max_new_tokens))
        if sure:
            p, q = np.ones(params.max_new_tokens), (q > 0.4).astype(float)
        return traces.Traced(
            id=prompt.id, category=prompt.category, tokens=_answer(prompt, params.max_new_tokens), p=p.tolist(),
            q=q.tolist(), overlap=np.minimum(p, q).tolist(), tops=[],
        )  # fmt: skip

    vocabulary = traces.Vocabularies(
        size=1000, draft_size=1000, target_padding=0, draft_padding=0, only_target=[], only_draft=[]
    )
    outputs = {kind: [traced(prompt, kind == "greedy") for prompt in prompts] for kind in ("sampled", "greedy")}
    hot = params.sampling.heat(params)
    record = traces.Trace(
        target="target", settings=Settings.of(hot, prompts), temperature=hot.temperature,
        drafts={draft: traces.DraftTrace(vocabulary=vocabulary, **outputs)},
    )  # fmt: skip
    write_json(traces.trace_file("target"), record)
