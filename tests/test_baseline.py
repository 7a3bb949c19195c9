"""Stage `baseline`: the tokens that everything is compared with are transformers' own greedy ones."""

from pathlib import Path

import pytest
import torch
from tiny import decode_greedily
from workshop import PROMPTS, after, build, files, refused, run, weights

from src.pipeline.files import read_json
from src.pipeline.results import BaselineTiming, BaselineTokens


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(after(tmp_path, "machine", "fetch target"))


def stored() -> BaselineTokens:
    return read_json("results/baseline/target.json", BaselineTokens)


def alone(count: int) -> list[list[int]]:
    """The same tokens by transformers, without a cache."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(weights("target"), dtype=torch.float32).eval()
    tok = AutoTokenizer.from_pretrained(weights("target"))
    found = []
    for row in PROMPTS:
        turn = [{"role": "user", "content": row["prompt"]}]
        text = tok.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        found.append(decode_greedily(model, torch.tensor(tok.encode(text, add_special_tokens=False)), count))
    return found


def test_tokens_are_those_of_transformers_and_each_file_says_how_it_was_made():
    said = run("baseline", "target")
    found = stored()
    assert [row.id for row in found.prompts] == ["a", "b", "c"]
    assert [row.tokens for row in found.prompts] == alone(9)
    assert [row.tokens for row in found.check] == alone(6)[:2]
    assert (found.settings.dtype, found.settings.max_new_tokens, found.settings.chat) == ("float32", 9, True)
    assert [len(row.logits) for row in found.prompts] == ([9, 9, 9] if found.exact else [0, 0, 0])
    timing = read_json("results/baseline/target-timing.json", BaselineTiming)
    assert timing.settings == found.settings
    assert [(row.generated, len(row.plain)) for row in timing.prompts] == [(9, 1)] * 3
    seconds = sum(sample.decode for row in timing.prompts for sample in row.plain)
    assert f"{27 / seconds:.1f} tok/s plain" in said


def test_tokens_come_out_the_same_again_and_alone_in_their_file():
    run("baseline", "target")
    first = Path("results/baseline/target.json").read_bytes()
    run("baseline", "target")
    assert Path("results/baseline/target.json").read_bytes() == first


def test_a_prompt_that_does_not_fit_the_context_is_named_before_anything_is_written():
    build(Path(), max_new_tokens=250)
    before = files()
    sentence = refused("baseline", "target")
    assert sentence.startswith("prompts/set.jsonl: prompt 'a' has ")
    assert "allowed: 256 together" in sentence
    assert files() == before


def test_logits_that_are_no_numbers_end_in_one_sentence():
    from safetensors.torch import load_file, save_file

    file = Path("models/target/model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    tensors["model.norm.weight"][0] = torch.nan
    file.unlink()
    save_file(tensors, file)
    before = files()
    sentence = refused("baseline", "target")
    assert "logits" in sentence
    assert files() == before


def test_a_model_that_was_not_fetched_says_what_to_run():
    sentence = refused("baseline", "draft")
    assert "models/draft: there is no such directory; run `python -m src.pipeline.fetch draft`" in sentence
