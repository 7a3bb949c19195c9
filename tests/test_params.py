"""params.yaml: the committed one is right, and whatever is wrong with another is said in one sentence."""

import copy
import io
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from workshop import after, refused

from src.pipeline.params import Params, ParamsError, check_params, load_params

ROOT = Path(__file__).parent.parent
GOOD = YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text(encoding="utf-8"))
NAMES = ", ".join(GOOD["models"])

WRONG = [
    # what is changed (keys, then the new value), the key that must be named, and a word of what is allowed
    (["ks"], [], "'ks'", "different whole numbers from 1"),
    (["ks"], [2, 2], "'ks'", "once"),
    (["ks"], [1, 0], "'ks.1'", "whole numbers from 1"),
    (["ks"], [-3], "'ks.0'", "whole numbers from 1"),
    (["ks"], 4, "'ks'", "a list"),
    (["ks"], ["4"], "'ks.0'", "whole numbers"),
    (["ks"], [2.0], "'ks.0'", "whole numbers"),
    (["ks"], [True], "'ks.0'", "whole numbers"),
    (["targets"], [], "'targets'", "a list of different names"),
    (["targets"], ["nobody"], "'nobody'", NAMES),
    (["targets"], "smollm2-135m", "'targets'", "a list of different names"),
    (["drafts"], ["nobody"], "'drafts'", NAMES),
    (["drafts"], ["smollm2-draft", "smollm2-draft"], "'drafts'", "once"),
    (["drafts"], ["smollm2-135m"], "'drafts'", "names that `targets` does not hold"),
    (["device"], "gpu", "'device'", "cpu, mps, cuda or cuda:N"),
    (["dtype"], "int8", "'dtype'", "float32, bfloat16 or float16"),
    (["threads"], 0, "'threads'", "from 1"),
    (["exact"], "yes", "'exact'", "true or false"),
    (["compile"], 1, "'compile'", "true or false"),
    (["seed"], -1, "'seed'", "from 0"),
    (["prompts"], "prompts.txt", "'prompts'", "*.jsonl"),
    (["max_new_tokens"], 0, "'max_new_tokens'", "from 1"),
    (["temperature"], -0.5, "'temperature'", "from 0"),
    (["temperature"], float("nan"), "'temperature'", "from 0"),
    (["temperature"], 1e-9, "'temperature'", "0 (greedy), or from 1e-5"),
    (["top_p"], 0.0, "'top_p'", "above 0 and up to 1"),
    (["top_p"], None, "'top_p'", "above 0 and up to 1"),
    (["min_p"], 1.0, "'min_p'", "below 1"),
    (["verification"], "tokens", "'verification'", "token, block or match"),
    (["drafter"], "none", "'drafter'", "model or prompt-lookup"),
    (["schedule"], 4, "'schedule'", "fixed or adaptive"),
    (["sampling", "temperature"], 0.0, "'sampling.temperature'", "from 1e-5"),
    (["sampling", "prompts"], 0, "'sampling.prompts'", "from 1"),
    (["sampling", "ks"], [1], "'sampling.ks'", "temperature, k, prompts, max_new_tokens"),
    (["verification"], "beam", "'verification'", "token, block or match"),
    (["drafter"], "oracle", "'drafter'", "model or prompt-lookup"),
    (["schedule"], 4, "'schedule'", "fixed or adaptive"),
    (["sampling", "temperature"], 0.0, "'sampling.temperature'", "from 1e-5"),
    (["sampling", "k"], 17, "'sampling.k'", "1 to 16"),
    (["check", "near_tie"], -1.0, "'check.near_tie'", "0 or more"),
    (["check", "near_tie"], "wide", "'check.near_tie'", "0 or more"),
    (["check"], 3, "'check'", "a mapping"),
    (["models"], [], "'models'", "a mapping"),
    (["models", "a.b"], {"source": "path", "path": "x"}, "'a.b'", "without dots or slashes"),
    (["models", "a/b"], {"source": "path", "path": "x"}, "'a/b'", "without dots or slashes"),
    (["models", "Big"], {"source": "path", "path": "x"}, "'Big'", "lower-case"),
    (["models", "x"], {"source": "torrent"}, "'models.x'", "pypi, hub, path, distill, quantize"),
    (["models", "x"], {"path": "y"}, "'models.x'", "pypi, hub, path, distill, quantize"),
    (["models", "x"], {"source": "path"}, "'models.x.path'", "a directory"),
    (["models", "x"], {"source": "path", "path": "y", "revision": "z"}, "'models.x.revision'", "path"),
    (["models", "qwen25-3b", "revision"], "main", "'models.qwen25-3b.revision'", "40 lower-case hex digits"),
    (["models", "qwen25-3b", "revision"], "A" * 40, "'models.qwen25-3b.revision'", "40 lower-case hex digits"),
    (["models", "qwen25-3b", "repo"], "Qwen", "'models.qwen25-3b.repo'", "owner/name"),
    (["models", "smollm2-135m", "sha256"], "b179", "'models.smollm2-135m.sha256'", "64 lower-case hex digits"),
    (["models", "smollm2-135m", "file"], "model.bin", "'models.smollm2-135m.file'", ".gguf"),
    (["models", "smollm2-int4", "bits"], 3, "'models.smollm2-int4.bits'", "4 or 8"),
    (["models", "smollm2-int4", "group_size"], 7, "'models.smollm2-int4.group_size'", "32, 64, 128 or 256"),
    (["models", "smollm2-int4", "of"], "nobody", "'models.smollm2-int4.of'", "qwen25-3b"),
    (["models", "smollm2-int4", "of"], "smollm2-int4", "comes back to itself", "qwen25-3b"),
    (["distill", "layers"], 0, "'distill.layers'", "from 1"),
]


def changed(keys: list, value) -> dict:
    data = copy.deepcopy(GOOD)
    place = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return data


def test_the_committed_file_is_right_and_sets_every_key_once():
    params = load_params(ROOT / "params.yaml")
    assert set(GOOD) == set(Params.model_fields)
    assert (ROOT / params.prompts).is_file()


@pytest.mark.parametrize(("keys", "value", "named", "allowed"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_value_is_named_with_file_key_and_what_is_allowed(keys, value, named, allowed):
    with pytest.raises(ParamsError) as raised:
        check_params(changed(keys, value))
    sentence = str(raised.value)
    assert sentence.startswith("params.yaml: ")
    assert named in sentence
    assert allowed in sentence.partition("allowed: ")[2]
    assert "\n" not in sentence


@pytest.mark.parametrize("key", [*GOOD, *(f"{block}.{key}" for block in ("check", "sampling") for key in GOOD[block])])
def test_every_key_is_needed(key):
    data = copy.deepcopy(GOOD)
    *above, last = key.split(".")
    del (data[above[0]] if above else data)[last]
    with pytest.raises(ParamsError, match=rf"key '{key}' is missing; allowed: "):
        check_params(data)


@pytest.mark.parametrize("above", [[], ["check"], ["sampling"], ["distill"], ["models", "smollm2-135m"]], ids=".".join)
def test_an_unknown_key_is_refused_wherever_it_stands(above):
    key = ".".join([*above, "colour"])
    with pytest.raises(ParamsError, match=rf"key '{key}' is unknown; allowed: "):
        check_params(changed([*above, "colour"], "red"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such file"),
        ("ks: [1, 2\nseed: 0\n", "not valid YAML 1.2 at line 2"),
        ("ks: [1]\nks: [2]\n", "key 'ks' stands there twice"),
        ("- ks\n", "holds no mapping"),
        ("", "holds no mapping"),
        (b"ks: \xff\xfe", "not valid YAML 1.2"),
    ],
    ids=["missing", "no YAML", "a key twice", "a list", "empty", "no UTF-8"],
)
def test_a_file_that_is_no_mapping_is_named(tmp_path, text, said):
    file = tmp_path / "params.yaml"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ParamsError, match=said) as raised:
        load_params(file)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_numbers_are_read_as_yaml_1_2_like_dvc_does(tmp_path):
    """YAML 1.1 takes `no` for false and 010 for eight; DVC would then track another value than we use."""
    stream = io.StringIO()
    YAML().dump(changed(["seed"], 10), stream)
    file = tmp_path / "params.yaml"
    file.write_text(stream.getvalue().replace("seed: 10", "seed: 010").replace("exact: true", "exact: no"))
    with pytest.raises(ParamsError, match="'exact': 'no' cannot be used; allowed: true or false"):
        load_params(file)
    file.write_text(file.read_text().replace("exact: no", "exact: true"))
    assert load_params(file).seed == 10


@pytest.mark.parametrize(("stage", "names"), [
    ("sampling", ("target", "nobody")), ("sweep", ("target", "nobody", 2)), ("sweep", ("nobody", "draft", 2)),
    ("baseline", ("nobody",)),
])  # fmt: skip
def test_a_name_that_the_catalogue_lacks_is_refused(tmp_path, monkeypatch, stage, names):
    monkeypatch.chdir(after(tmp_path, "machine", "fetch target", "fetch draft"))
    assert "key 'models': holds no 'nobody'; allowed: target, draft" in refused(stage, *names)
