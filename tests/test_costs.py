"""Costs: figures that neither drift nor outliers move, bytes counted against loaded tensors, and a run of the stage."""

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

from src.pipeline import bandwidth, costmodel, passes
from src.pipeline.costs import WIDEST, measure
from src.pipeline.params import check_params
from src.pipeline.prompts import load_prompts
from src.pipeline.results import Passes
from src.speculative.decoding import generate
from src.speculative.linear import pack
from src.speculative.loading import load_model
from src.speculative.quantize import Groups, load_quantized, quantize_checkpoint, quantize_weights
from src.speculative.theory import speedup
from src.speculative.weights import read_weights
from tests.checkpoints import save_checkpoint
from tests.made_up import ROOT, v
from tests.toys import Toy


def samples(rounds=21, drift=0.0, outlier=0.0):
    """Costs v(m), c = 0.3, first = 0.02, catch_up = 0.04, o = 0.05, plain_o = 0.02; the machine grows slower, and at
    times stalls."""
    slow = (1 + drift * np.arange(rounds)) * (1 + outlier * (np.arange(rounds) % 7 == 3))
    return costmodel.Samples(
        passes=[(0.03 * v(rows) * slow).tolist() for rows in range(1, 10)], other=[0.0006] * 3, prefill=[0.1],
        prompt_tokens=9, positions=20, bandwidth=1e10, arithmetic=1e11, operations=2e8, weight_bytes=1e8,
        cache_bytes=0,
        drafts={
            "draft": costmodel.DraftSamples(
                draft_pass=(0.3 * 0.03 * slow).tolist(), first_pass=(0.32 * 0.03 * slow).tolist(),
                two_rows=(0.36 * 0.03 * slow).tolist(), target_pass=(0.03 * slow).tolist(), other=[0.0015],
                weight_bytes=int(2e7), operations=4e7,
            )
        },
    )  # fmt: skip


@pytest.mark.parametrize("disturbance", [{}, {"drift": 0.05}, {"outlier": 9.0}])
def test_figures_are_ratios_within_a_round(disturbance):
    found = costmodel.figures(samples(**disturbance))
    assert found.v == pytest.approx([v(rows) for rows in range(1, 10)])
    assert found.drafts["draft"].c == pytest.approx(0.3)
    assert found.drafts["draft"].first == pytest.approx(0.02)
    assert found.drafts["draft"].catch_up == pytest.approx(0.04)


def test_the_bound_is_what_reading_takes():
    found = costmodel.figures(samples())
    assert found.bound_seconds == pytest.approx(0.01)
    assert found.over_bound == pytest.approx(3)
    assert found.drafts["draft"].over_bound == pytest.approx(0.3 * 0.03 / 0.002)


def test_the_prediction_is_the_closed_form_of_what_was_measured():
    found, rates = costmodel.figures(samples()), [0.8, 0.5, 0.3, 0.2]
    expected = speedup(rates, 4, 0.3, [v(rows) for rows in range(1, 10)], 0.07, 0.02, 0.04)
    assert costmodel.predicted(found, "draft", 4, rates) == pytest.approx(expected)


@pytest.mark.parametrize(("draft", "k", "rates"), [("other", 1, [0.5]), ("draft", 2, [0.5]), ("draft", 9, [0.5] * 9)])
def test_nothing_is_predicted_from_what_was_not_measured(draft, k, rates):
    assert costmodel.predicted(costmodel.figures(samples()), draft, k, rates) is None
    assert costmodel.predicted(None, "draft", 1, [0.5]) is None


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head_rows", [None, 100])
def test_bytes_of_weights_are_those_of_the_tensors_that_a_pass_reads(tmp_path, tied, head_rows):
    folder = save_checkpoint(tmp_path, tie_word_embeddings=tied)
    weights = read_weights(folder)
    embedding = weights.pop("model.embed_tokens.weight")
    head = weights.pop("lm_head.weight", embedding)
    numbers = sum(tensor.numel() for tensor in weights.values()) + head[:head_rows].numel()
    assert bandwidth.weights_read(folder, "bfloat16", head_rows) == (2 * numbers, numbers)
    assert bandwidth.weights_read(folder, "float32", head_rows) == (4 * numbers, numbers)


def bytes_of(weights: dict) -> int:
    """What the kernels read of them; other tensors in float32."""
    total = 0
    for weight in weights.values():
        if isinstance(weight, Groups):
            pack(weight)  # a shape that is really multiplied in this format
            total += weight.values.numel() * weight.bits // 8 + 2 * weight.scale.numel()
            total += 2 * weight.zero.numel() if weight.zero is not None else 0
        else:
            total += 4 * weight.numel()
    return total


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_that_are_quantized_when_loaded_count_in_their_bits(tmp_path, bits, tied):
    folder = save_checkpoint(tmp_path, tie_word_embeddings=tied, vocabulary=256 + 16)
    weights = quantize_weights(read_weights(folder), bits, 32)
    if not tied:
        del weights["model.embed_tokens.weight"]
    assert bandwidth.weights_read(folder, "float32", None, bits)[0] == bytes_of(weights)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_a_loaded_model_counts_the_bytes_in_the_formats_that_it_is_held_in(tmp_path, bits, tied):
    folder = save_checkpoint(tmp_path, tie_word_embeddings=tied, vocabulary=256 + 16)
    weights = read_weights(folder)
    if not tied:
        del weights["model.embed_tokens.weight"]
    numbers = sum(weight.numel() for weight in weights.values() if weight.dim() == 2)
    rows = sum(len(weight) for weight in weights.values() if weight.dim() == 2)
    reads = load_model(folder, dtype="float32", bits=bits).weight_bytes
    if bits is None:
        assert reads == 4 * numbers
    else:  # of what the bits take to the two bytes that some processors widen them to, scales besides
        assert numbers * bits / 8 < reads <= 2 * numbers + 4 * rows


def test_quantized_weights_count_as_stored(tmp_path):
    source = save_checkpoint(tmp_path / "source", tie_word_embeddings=True, vocabulary=256 + 16)
    quantize_checkpoint(source, tmp_path / "four", 4, 32)
    size, numbers = bandwidth.weights_read(tmp_path / "four", "float32")
    assert numbers == bandwidth.weights_read(source, "float32")[1]
    assert size == bytes_of(load_quantized(tmp_path / "four"))


def test_bytes_of_the_cache_are_those_of_its_keys_and_values(tmp_path):
    folder = save_checkpoint(tmp_path)
    layers, heads, width, positions = 2, 2, 8, 30
    assert bandwidth.cache_bytes(folder, positions, "float16") == 2 * layers * heads * width * positions * 2


@pytest.fixture
def clock(monkeypatch):
    """Time that passes of toys alone move: a target's takes 10 and 1 a row, a draft's 2 and 1 a row."""
    passed = [0.0]
    monkeypatch.setattr("src.speculative.stats.now", lambda device: passed[0])
    monkeypatch.setattr("src.speculative.loop.now", lambda device: passed[0])

    class Clocked(Toy):
        def _run(self, ids, start, keep):
            passed[0] += (10 if self.like is None else 2) + len(ids)
            return super()._run(ids, start, keep)

    target = Clocked(5, 1, order=2, context=4000)
    return target, Clocked(5, 2, like=target, noise=0.3, order=2, context=4000)


def test_passes_are_timed_over_the_rows_that_they_are_said_to_have(clock):
    params = check_params(YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text(encoding="utf-8")))
    seconds, (draft_pass, first_pass, two_rows) = passes.rounds_of(params, (*clock, None), torch.arange(30) % 5, 20, 3)
    assert {rows: set(found) for rows, found in enumerate(seconds, 1)} == {1: {11.0}, 2: {12.0}, 3: {13.0}}
    assert set(draft_pass) == set(first_pass) == {3.0} and set(two_rows) == {4.0}


def test_a_first_pass_is_timed_after_one_of_the_target_and_a_later_one_after_one_of_the_draft(clock, monkeypatch):
    """A draft whose passes take twice as long after any other model's, as if its weights had left the caches."""
    target, draft = clock
    ran = []
    for model in (target, draft):

        def run(ids, start, keep, model=model, plain=model._run):
            logits = plain(ids, start, keep)
            if model is draft and ran[-1:] == [target]:
                plain(ids, start, keep)
            ran.append(model)
            return logits

        monkeypatch.setattr(model, "_run", run)
    params = check_params(YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text(encoding="utf-8")))
    _, (draft_pass, first_pass, two_rows) = passes.rounds_of(params, (*clock, None), torch.arange(30) % 5, 20, 3)
    assert (set(draft_pass), set(first_pass), set(two_rows)) == ({3.0}, {6.0}, {8.0})


@pytest.mark.parametrize("k", [1, 2, 12])
def test_a_cell_is_predicted_from_its_own_passes(clock, k):
    """The costs were measured when everything was as dear as a one-row pass."""
    dear = costmodel.figures(samples())
    dear = dear.model_copy(update={"v": [1.0] * 9, "plain_o": 0.0})
    dear.drafts["draft"] = costmodel.DraftFigures(c=1.0, first=0.0, catch_up=0.0, o=0.0, over_bound=1.0)
    params = check_params(YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text(encoding="utf-8")))
    rounds = [passes.one_round(params, (*clock, None), torch.arange(n) % 5, [1] * 20, k) for n in (9, 30)]
    own = Passes(**dict(zip(Passes.model_fields, map(list, zip(*rounds, strict=True)), strict=True)))
    found, rates = costmodel.of_cell(dear, own, "draft", k), [0.9 - 0.05 * i for i in range(k)]
    expected = speedup(rates, k, 3 / 11, [*[1.0] * k, (11 + k) / 11], catch_up=1 / 11)
    assert costmodel.predicted(found, "draft", k, rates) == pytest.approx(expected)
    assert dear.drafts["draft"].c == 1.0


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_prediction_is_what_a_clock_shows_that_only_passes_move(clock, k):
    target, draft = clock
    prompt, settings = torch.tensor([1, 2, 3]), {"max_new_tokens": 3000, "temperature": 1.0, "seed": 4}
    _, stats = generate(target, draft, None, prompt, k=k, **settings)
    _, once = generate(target, None, None, prompt, **settings)
    rates = [hit / of for hit, of in zip(stats.accepted_by_position, stats.proposed_by_position, strict=True)]
    assert 0.2 < rates[-1] < 0.9, "whole windows, and others"
    measured = once.decode_seconds / stats.decode_seconds
    known = {"c": 3 / 11, "v": [(10 + rows) / 11 for rows in range(1, k + 2)], "catch_up": 1 / 11}
    assert speedup(rates, k, **known) == pytest.approx(measured, rel=2e-3)
    assert speedup(rates, k, known["c"], known["v"]) > 1.01 * measured, "what is not known of catching up is missing"


def test_the_stage_measures_every_width_and_every_draft(tmp_path, monkeypatch):
    for seed, slug in enumerate(("target", "one", "two")):
        save_checkpoint(tmp_path / "models" / slug, seed=seed)
    data = YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    data |= {"targets": ["target"], "drafts": ["one", "two"], "ks": [2, 10], "dtype": "float32", "threads": 1}
    data |= {"prompts": "prompts/ci.jsonl", "max_new_tokens": 8}
    data["models"] = {slug: {"source": "path", "path": "-"} for slug in ("target", "one", "two")}
    data["distill"]["of"] = "target"
    params, prompts = check_params(data), load_prompts(ROOT / "prompts/ci.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bandwidth, "READ_BYTES", 2**22)
    monkeypatch.setattr(passes, "BUDGET", 0.0)
    threads = torch.get_num_threads()
    try:
        found = measure(params, prompts, "target")
    finally:
        torch.set_num_threads(threads)
    assert len(found.passes) == WIDEST, "the ks of params.yaml do not matter, so adding one measures no costs anew"
    assert {len(rows) for rows in found.passes} == {2 * passes.FEWEST_ROUNDS}
    assert set(found.drafts) == {"one", "two"}
    assert 0 < found.positions <= 256 - WIDEST
    seconds = [*found.passes, found.other, found.prefill, *(d.draft_pass for d in found.drafts.values())]
    seconds += [rows for draft in found.drafts.values() for rows in (draft.first_pass, draft.two_rows)]
    assert all(second > 0 for rows in seconds for second in rows)
    assert all(value > 0 for value in costmodel.figures(found).v)
