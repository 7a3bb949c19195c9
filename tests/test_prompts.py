"""Prompt sets: the committed ones are what they are said to be, and a faulty line is named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from src.pipeline.params import ParamsError
from src.pipeline.prompts import Prompt, digest, load_prompts

ROOT = Path(__file__).parent.parent
FINE = '{"id": "a", "category": "chat", "prompt": "Hello?"}'


@pytest.mark.parametrize("name", ["default", "ci"])
def test_committed_sets_load_and_repeat_no_prompt(name):
    prompts = load_prompts(ROOT / f"prompts/{name}.jsonl")
    assert len({prompt.prompt for prompt in prompts}) == len(prompts)


def test_the_default_set_begins_with_one_prompt_of_each_category_in_turn():
    """The float32 check takes the first prompts, and an interval needs eight."""
    categories = [prompt.category for prompt in load_prompts(ROOT / "prompts/default.jsonl")]
    kinds = len(set(categories))
    assert len(categories) >= 8
    assert all(set(categories[i : i + kinds]) == set(categories) for i in range(0, len(categories), kinds))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no prompt"),
        ("\n  \n", "holds no prompt"),
        (f"{FINE}\nHello?\n", "line 2: not JSON"),
        ('{"id": "a"\n', "line 1: not JSON"),
        ('["a", "chat", "Hello?"]', "line 1: not a JSON object"),
        (f"{FINE}\n{FINE}", "line 2: key 'id': 'a' stands there twice"),
        ('{"category": "chat", "prompt": "Hello?"}', "line 1: key 'id' is missing"),
        ('{"id": "", "category": "chat", "prompt": "Hello?"}', "line 1: key 'id': '' cannot be used"),
        ('{"id": 7, "category": "chat", "prompt": "Hello?"}', "line 1: key 'id': 7 cannot be used"),
        ('{"id": "a", "category": "chat", "prompt": " \\n"}', r"line 1: key 'prompt': ' \\n' cannot be used"),
        ('{"id": "a", "category": "chat"}', "line 1: key 'prompt' is missing"),
        ('{"id": "a", "category": "chat", "prompt": "b", "text": "c"}', "line 1: key 'text' is unknown"),
        (
            '{"id": "a", "category": "chat", "prompt": "x\\ud800"}',
            "line 1: key 'prompt': holds half of a surrogate pair",
        ),
        (b"\xff\xfe\x00", "cannot be read as UTF-8"),
    ],
)
def test_a_fault_is_named_with_its_line_and_what_is_allowed(tmp_path, text, said):
    file = tmp_path / "set.jsonl"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ParamsError, match=said) as raised:
        load_prompts(file)
    sentence = str(raised.value)
    assert sentence.startswith(f"{file}: ")
    assert "; allowed: " in sentence
    assert "\n" not in sentence


def test_the_mark_that_some_editors_begin_a_file_with_is_no_fault(tmp_path):
    (tmp_path / "set.jsonl").write_bytes(b"\xef\xbb\xbf" + FINE.encode())
    assert load_prompts(tmp_path / "set.jsonl") == [Prompt("a", "chat", "Hello?")]


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_a_set_that_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(ParamsError, match=r"does not exist|cannot be read"):
        load_prompts(tmp_path / name)


def test_the_digest_tells_sets_apart_and_nothing_else(tmp_path):
    prompts = [Prompt("a", "chat", "Hé?"), Prompt("b", "code", "x")]
    file = tmp_path / "set.jsonl"
    rows = [{"prompt": p.prompt, "id": p.id, "category": p.category} for p in prompts]
    file.write_text("\n\n".join(json.dumps(row) for row in rows))
    assert digest(load_prompts(file)) == digest(prompts)
    others = [prompts[::-1], prompts[:1], [replace(prompts[0], id="c"), prompts[1]]]
    others += [[replace(prompts[0], prompt="He?"), prompts[1]], [replace(prompts[0], category="math"), prompts[1]]]
    assert len({digest(other) for other in [prompts, *others]}) == len(others) + 1
