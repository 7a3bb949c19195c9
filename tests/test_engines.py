"""What is emitted for engines: read back as the engine would, and for transformers run as it stands."""

import json
import shlex

import pytest

from src.pipeline.engines import ENGINES, Order, emit
from tests.checkpoints import save_checkpoint

SAME = Order("org/big", "org/small", 3, "bfloat16", (1000, 1000))
OTHER = SAME._replace(vocabularies=(152064, 151936))


def words(engine: str, order: Order) -> list[str]:
    return shlex.split(ENGINES[engine][1](order)[0].replace("\\\n", " "))


def option(found: list[str], name: str) -> str:
    return found[found.index(name) + 1]


def test_vllm_gets_its_settings_as_json():
    config = json.loads(option(words("vllm", SAME), "--speculative-config"))
    assert config == {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 3}
    assert json.loads(option(words("vllm", OTHER), "--speculative-config"))["use_heterogeneous_vocab"] is True


def test_sglang_verifies_one_row_more_than_it_drafts():
    found = words("sglang", SAME)
    assert option(found, "--speculative-num-steps") == "3"
    assert option(found, "--speculative-num-draft-tokens") == "4"
    assert option(found, "--speculative-eagle-topk") == "1"


def test_llama_cpp_drafts_exactly_k():
    found = words("llama.cpp", SAME)
    assert (option(found, "-m"), option(found, "-md")) == ("big.gguf", "small.gguf")
    assert option(found, "--spec-draft-n-max") == "3" and option(found, "--spec-draft-p-min") == "0.0"


@pytest.mark.parametrize("engine", ENGINES)
def test_other_vocabularies_are_warned_of(engine):
    order = OTHER._replace(vocabularies=(152064, 32000))
    more = set(ENGINES[engine][1](order)[1]) - set(ENGINES[engine][1](SAME)[1])
    assert len(more) == 1 and "152064 and 32000" in more.pop()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_version_and_all_warnings_stand_above_the_text(engine):
    text, warnings = ENGINES[engine][1](SAME)
    lines = emit(engine, SAME).splitlines()
    assert ENGINES[engine][0] in lines[0]
    assert lines[1 : 1 + len(warnings)] == [f"# warning: {warning}" for warning in warnings]
    assert "\n".join(lines[1 + len(warnings) :]) == text


@pytest.mark.parametrize("k", [1, 3])
def test_names_with_spaces_and_quotes_survive_the_shell(k):
    order = Order("my models/big one", "it's small", k, "float16")
    assert "my models/big one" in words("vllm", order) and "my models/big one" in words("sglang", order)
    assert json.loads(option(words("vllm", order), "--speculative-config"))["model"] == "it's small"


@pytest.mark.parametrize("k", [2, 5])
def test_the_program_for_transformers_verifies_k_tokens_a_pass_and_keeps_the_output(tmp_path, monkeypatch, capsys, k):
    """With the target as its own draft everything is accepted, so each of its passes but the last has k + 1 rows."""
    from transformers import LlamaForCausalLM

    target, draft = (str(save_checkpoint(tmp_path / name)) for name in ("target", "draft"))
    widths: dict[int, list[int]] = {}
    forward = LlamaForCausalLM.forward

    def watched(self, input_ids=None, **more):
        widths.setdefault(id(self), []).append(input_ids.shape[1])
        return forward(self, input_ids=input_ids, **more)

    monkeypatch.setattr(LlamaForCausalLM, "forward", watched)
    names: dict = {}
    exec(emit("transformers", Order(target, draft, k, "float32")), names)
    made = len(names["output"][0]) - names["inputs"]["input_ids"].shape[1]
    assert made > k + 1
    verifying = widths[id(names["target"])][1:-1]
    assert verifying and set(verifying) == {k + 1}
    plain = names["target"].generate(**names["inputs"], do_sample=False, max_new_tokens=64)
    assert plain.tolist() == names["output"].tolist()
