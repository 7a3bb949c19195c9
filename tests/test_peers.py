"""Peers: ratios out of known samples, and a run of the stage on tiny models, where transformers must say the same."""

import contextlib
import json

import numpy as np
import pytest
import torch
from workshop import after, build, refused, run

from src.pipeline import peers
from src.pipeline.comparison import Peers, Run, best, figures, in_words, ratio
from src.pipeline.files import read_json
from src.pipeline.memory import peak_growth


@pytest.fixture
def few(monkeypatch):
    """A comparison small enough for a test."""
    for name, value in {"PROMPTS": 2, "TOKENS": 5, "REPEATS": 2, "KS": (1, 2), "TRIAL": 1}.items():
        monkeypatch.setattr(peers, name, value)


def test_a_ratio_is_of_sums_of_medians():
    slow, fast = [[3.0, 9.0, 4.0], [2.0, 2.0, 2.0]], [[1.0, 1.0, 50.0], [2.0, 2.0, 1.0]]
    assert ratio(slow, fast) == (4 + 2) / (1 + 2)


def test_the_best_k_takes_the_least_seconds():
    assert best({"1": 2.0, "2": 1.5, "12": 1.6}) == 2


def test_the_stage_decodes_four_ways_and_transformers_agrees(tmp_path, monkeypatch, few):
    with contextlib.chdir(after(tmp_path, "machine", "fetch target", "fetch draft")):
        printed = run("peers", "target")
        record = read_json("results/peers/target.json", Peers)
    assert [run_.id for run_ in record.runs] == ["a", "b"]
    for one in record.runs:
        assert {len(one.plain), len(one.generate), len(one.speculative), len(one.assisted)} == {2}
        # float32 on tiny models: transformers' own greedy output, plain and assisted, is ours.
        assert one.same_plain
        assert one.same_assisted
    assert set(record.trials) == {"tinydraft", "transformers"}
    assert record.k in (1, 2)
    found = figures(record)
    plain = [np.median(run_.generate) for run_ in record.runs], [np.median(run_.plain) for run_ in record.runs]
    assert found.plain_ratio == pytest.approx(sum(plain[0]) / sum(plain[1]))
    assert f"{found.plain_ratio:.2f}x its `generate`" in printed


def test_assisted_generation_proposes_k_tokens_a_step(tmp_path):
    """The draft is the target, so all is accepted: its passes are k a step, and one to a step for the target."""
    from src.pipeline.params import load_params
    from src.pipeline.rivals import generate, open_rivals

    with contextlib.chdir(after(tmp_path, "machine", "fetch target", "fetch draft")):
        rivals = open_rivals(load_params(), "target", "target")
    calls = {"target": 0, "draft": 0}
    for name, model in zip(calls, rivals, strict=True):
        model.register_forward_hook(lambda *_, name=name: calls.__setitem__(name, calls[name] + 1))
    tokens, seconds = generate(rivals, torch.tensor([5, 6, 7]), 3, 8)
    assert len(tokens) == 8
    assert seconds > 0
    assert calls["target"] == 2
    assert calls["draft"] == 6


def test_without_a_draft_that_transformers_loads_only_plain_decoding_is_compared(tmp_path, few):
    models = json.loads(json.dumps({"small": {"source": "quantize", "of": "target", "bits": 8}}))
    with contextlib.chdir(after(tmp_path, "machine", "fetch target", "fetch draft")):
        from src.pipeline.params import load_params

        catalogue = {slug: entry.model_dump(exclude_none=True) for slug, entry in load_params().models.items()}
        build(tmp_path, drafts=["small"], models=catalogue | models)
        run("fetch", "small")
        run("peers", "target")
        record = read_json("results/peers/target.json", Peers)
    assert record.draft is None
    found = figures(record)
    assert found.speculative_ratio is None
    assert "assisted" not in in_words("target", found, "5")


def test_an_unknown_target_is_refused(tmp_path):
    with contextlib.chdir(build(tmp_path)):
        assert "holds no 'other'; allowed: target" in refused("peers", "other")


def blocks() -> list[np.ndarray]:
    """30 MB in pieces that are taken from what the process has kept of freed memory, if it has kept some."""
    return [np.ones(100_000, dtype=np.uint8) for _ in range(300)]


def test_memory_at_peak_is_that_of_what_was_allocated():
    kept = blocks()
    del kept[:-1]  # the last one keeps the others from going back to the system at once
    for work in (lambda: np.ones(30_000_000, dtype=np.uint8).sum(), blocks):
        grown = peak_growth(work)
        assert grown is None or 25_000_000 < grown < 60_000_000


def test_figures_count_the_prompts_that_came_out_otherwise():
    runs = [
        Run(
            id=str(i),
            plain=[1.0],
            generate=[2.0],
            speculative=[0.5],
            assisted=[2.0],
            same_plain=True,
            same_assisted=i > 0,
        )
        for i in range(3)
    ]
    settings = dict.fromkeys(
        ("device", "dtype", "prompts", "prompts_sha256", "verification", "drafter", "schedule"), "x"
    ) | dict.fromkeys(("threads", "seed", "max_new_tokens", "top_k"), 1)
    settings |= dict.fromkeys(("exact", "compile", "chat", "ignore_eos"), True) | dict.fromkeys(
        ("temperature", "top_p", "min_p"), 0.5
    )
    record = Peers(
        target="t", draft="d", settings=settings, machine={}, tokens=5, repeats=1, k=2, assisted_k=1, trials={},
        runs=runs, memory=10, weight_bytes=100,
    )  # fmt: skip
    found = figures(record)
    assert (found.plain_ratio, found.speculative_ratio, found.differing, found.memory_share) == (2.0, 4.0, 1, 0.1)
    words = in_words("t", found, "5.24.0")
    assert "2.00x its `generate`" in words
    assert "on 1 of 3 prompts" in words
    assert "10 % of the weights" in words
