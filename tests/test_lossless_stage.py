"""Stage `lossless`: it finds what was altered, weighs it by plain decoding's own logits, and writes before it fails."""

from pathlib import Path

import pytest
import torch
from tiny import all_logits
from workshop import PROMPTS, after, build, files, refused, run, weights

from src.pipeline.files import read_json, write_json
from src.pipeline.lossless import compare
from src.pipeline.params import load_params
from src.pipeline.results import BaselineTokens, CellTokens, CellVerdicts, cell_files

TOKENS, _, VERDICTS = cell_files("target", "draft", 3)


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch):
    stages = "machine", "fetch target", "fetch draft", "baseline target", "sweep target draft 3"
    monkeypatch.chdir(after(tmp_path, *stages))


def judge() -> CellVerdicts:
    run("lossless", "target", "draft", 3)
    return read_json(VERDICTS, CellVerdicts)


def alter(prompt: int, position: int, token: int) -> CellTokens:
    """As if speculative decoding had said another token there."""
    cell = read_json(TOKENS, CellTokens)
    cell.prompts[prompt].tokens[position] = token
    write_json(TOKENS, cell)
    return cell


def gap(prompt: int, position: int, other: int) -> float:
    """How far apart plain decoding's two logits lie there, by transformers without a cache."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = read_json("results/baseline/target.json", BaselineTokens).prompts[prompt].tokens
    model = AutoModelForCausalLM.from_pretrained(weights("target"), dtype=torch.float32).eval()
    tok = AutoTokenizer.from_pretrained(weights("target"))
    turn = [{"role": "user", "content": PROMPTS[prompt]["prompt"]}]
    ids = tok.encode(
        tok.apply_chat_template(turn, tokenize=False, add_generation_prompt=True), add_special_tokens=False
    )
    logits = all_logits(model, torch.tensor(ids + base[:position]))[-1]
    return float(logits[base[position]] - logits[other])


def test_untouched_outputs_are_identical_in_both_dtypes():
    found = judge()
    assert [verdict.verdict for verdict in found.sweep] == ["identical"] * 3
    assert [verdict.verdict for verdict in found.float32] == ["identical"] * 2
    exact = read_json("results/baseline/target.json", BaselineTokens).exact
    assert (found.bit_identical, found.compared_logits) == ((True, 27) if exact else (None, 0))


@pytest.mark.parametrize("position", [0, 4, 8])
def test_an_altered_token_is_found_and_weighed_by_its_own_margin(position):
    token = (read_json(TOKENS, CellTokens).prompts[1].tokens[position] + 1) % 258
    margin = gap(1, position, token)
    assert margin > 0
    alter(1, position, token)
    for tolerance, verdict in ((margin * 1.01, "near tie"), (margin * 0.99, "different")):
        build(Path(), check={"prompts": 2, "max_new_tokens": 6, "near_tie": tolerance})
        found = judge()
        row = found.sweep[1]
        assert (row.verdict, row.position, row.speculative) == (verdict, position, token)
        assert row.margin == pytest.approx(margin, rel=1e-3)
        assert [other.verdict for other in found.sweep[::2]] == ["identical"] * 2
        assert found.near_tie == tolerance


@pytest.mark.parametrize("length", [0, 5, 12])
def test_an_output_of_another_length_is_different_where_it_ends(length):
    cell = read_json(TOKENS, CellTokens)
    cell.prompts[0].tokens = [*cell.prompts[0].tokens, 1, 2, 3][:length]
    write_json(TOKENS, cell)
    row = judge().sweep[0]
    assert (row.verdict, row.position, row.margin) == ("different", min(length, 9), None)


def test_float32_is_decoded_anew_and_there_nothing_else_will_do():
    base = read_json("results/baseline/target.json", BaselineTokens)
    base.check[1].tokens[2] = (base.check[1].tokens[2] + 1) % 258
    write_json("results/baseline/target.json", base)
    found = judge()
    assert [verdict.verdict for verdict in found.float32] == ["identical", "different"]
    assert found.float32[1].position == 2


def test_logits_that_differ_by_a_bit_are_not_called_bit_identical():
    base = read_json("results/baseline/target.json", BaselineTokens)
    base.prompts[0].logits = ["0" * 16]
    write_json("results/baseline/target.json", base.model_copy(update={"exact": True}))
    assert judge().bit_identical is False


def test_sampled_outputs_are_not_compared_but_float32_still_is():
    build(Path(), temperature=1.0)
    run("baseline", "target")
    run("sweep", "target", "draft", 3)
    found = judge()
    assert [verdict.verdict for verdict in found.sweep] == ["sampled"] * 3
    assert [verdict.verdict for verdict in found.float32] == ["identical"] * 2


def test_outputs_of_other_settings_are_refused():
    build(Path(), max_new_tokens=10)
    before = files()
    assert "was decoded with other settings than now" in refused("lossless", "target", "draft", 3)
    assert files() == before


def test_a_missing_cell_is_named():
    assert "results/sweep/target/draft/k2.json: there is no such result" in refused("lossless", "target", "draft", 2)
    assert load_params().ks == [1, 3]


def test_the_first_difference_is_found_wherever_it_is():
    plain = [5, 6, 7]
    assert compare("x", plain, [5, 6, 7]).verdict == "identical"
    for at in range(3):
        other = [*plain[:at], 9, *plain[at + 1 :]]
        found = compare("x", plain, other)
        assert (found.verdict, found.position, found.plain, found.speculative) == ("different", at, plain[at], 9)
    assert (compare("x", plain, [5]).position, compare("x", plain, [5]).speculative) == (1, None)
    assert (compare("x", [], [5]).position, compare("x", [], [5]).plain) == (0, None)
