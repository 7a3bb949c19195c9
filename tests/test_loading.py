"""load_models from a directory and from the hub, and one sentence for whatever cannot be loaded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import WORDS, save_checkpoint
from tiny import all_logits, decode_greedily
from workshop import ROOT, weights

from src.speculative import generate, load_models
from src.speculative.errors import DownloadError, ModelError
from src.speculative.loading import as_dtype, check_device, load_model

DTYPES = (None, "float32", "bfloat16", torch.float16)
COMMIT = "0123456789abcdef0123456789abcdef01234567"

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def stranger(tmp_path) -> Path:
    """A Qwen2 checkpoint of its own: biases on q, k and v, tied embeddings, a padded vocabulary."""
    return save_checkpoint(tmp_path / "qwen", "qwen2", seed=5, vocabulary=WORDS + 6)


def test_a_qwen2_directory_decodes_as_transformers_does(stranger):
    from transformers import AutoModelForCausalLM

    target, draft, tok = load_models(stranger, weights("draft"), dtype="float32")
    reference = AutoModelForCausalLM.from_pretrained(stranger).eval()
    assert any(name.endswith("q_proj.bias") and t.abs().min() > 0 for name, t in reference.named_parameters())
    assert reference.config.tie_word_embeddings
    ids = torch.tensor(tok.encode("Hello"))
    torch.testing.assert_close(target.forward(ids), all_logits(reference, ids), atol=1e-4, rtol=1e-4)
    tokens, stats = generate(target, draft, tok, "Hello", k=3, max_new_tokens=16, ignore_eos=True)
    assert tokens.tolist() == decode_greedily(reference, ids, 16, vocabulary=WORDS)
    assert stats.draft_passes > 0


def test_dtype_is_that_of_the_weights_unless_another_is_asked_for():
    ids = torch.arange(20)
    logits = {dtype: load_models(weights("target"), None, dtype=dtype)[0].forward(ids).float() for dtype in DTYPES}
    assert torch.equal(logits[None], logits["float32"])
    for dtype, bits in (("bfloat16", 8), (torch.float16, 11)):
        error = (logits[dtype] - logits[None]).abs().mean() / logits[None].abs().mean()
        assert 2.0 ** -(bits + 4) < error < 2.0 ** -(bits - 4), "about as coarse as the type's digits"


def refused(kind, *arguments, **options) -> str:
    with pytest.raises(kind) as raised:
        load_models(*arguments, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_missing_default_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        "models/smollm2-135m: there is no such directory; run `python -m src.pipeline.fetch smollm2-135m`"
        in refused(ModelError)
    )
    assert 'give a directory or "repo@revision"' in refused(ModelError, "nowhere")


@pytest.mark.parametrize("name", [None, 5, ""])
def test_what_names_no_model_is_said(name):
    assert "is no model; allowed: a directory" in refused(ModelError, name)


@pytest.mark.parametrize("device", ["cuda", "mps", "cuda:7"])
def test_a_device_that_is_not_here_is_named_with_those_that_are(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert f"{device} is not on this machine; here are cpu" in refused(ModelError, weights("target"), device=device)


@pytest.mark.parametrize("device", ["tpu please", "meta", "", None])
def test_what_is_no_device_is_named(device):
    with pytest.raises(ModelError, match="device"):
        check_device(device)


@pytest.mark.parametrize("dtype", ["int8", torch.int32, "float64", []])
def test_a_dtype_that_weights_cannot_have_is_named_with_those_they_can(dtype):
    with pytest.raises(ModelError, match="is not one of float32, bfloat16, float16"):
        as_dtype(dtype)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "weights.PKL"])
def test_a_pickle_is_refused(name, tmp_path):
    place = Path(shutil.copytree(weights("target"), tmp_path / "model"))
    (place / name).write_bytes(b"")
    assert name in refused(ModelError, place, None)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", None, "config.json"),
        ("config.json", b"{", "the config.json cannot be read"),
        ("config.json", b'{"model_type": "unheard-of"}', "cannot be read"),
        ("model.safetensors", None, "holds no .safetensors file"),
        ("model.safetensors", b"\x10", "not a readable safetensors file"),
        ("tokenizer.json", b"{", "tokenizer cannot be read"),
        ("generation_config.json", b"{", "generation_config.json"),
    ],
)
def test_a_broken_directory_is_named_with_the_file(name, content, said, tmp_path):
    place = Path(shutil.copytree(weights("target"), tmp_path / "model"))
    (place / name).unlink()
    if content is not None:
        (place / name).write_bytes(content)
    sentence = refused(ModelError, place, None)
    assert str(place) in sentence
    assert said in sentence


def test_a_weight_that_is_missing_is_named(tmp_path):
    from safetensors.torch import load_file, save_file

    place = Path(shutil.copytree(weights("target"), tmp_path / "model"))
    tensors = load_file(place / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    save_file({n: t for n, t in tensors.items() if n != name}, place / "model.safetensors")
    assert name.removesuffix(".weight") in refused(ModelError, place, None)


def test_another_tokenizer_is_refused_with_the_first_difference(tmp_path):
    other = save_checkpoint(tmp_path / "other", swapped=True)
    assert "40" in refused(ModelError, weights("target"), other)


def test_weights_that_memory_cannot_hold_are_an_error_of_ours(monkeypatch):
    """The allocator's own refusal, in place of reading the file."""
    monkeypatch.setattr("src.speculative.loading.read_weights", lambda _: torch.empty(2**60, dtype=torch.int8))
    assert "not enough memory on cpu" in refused(ModelError, weights("target"), None)


@pytest.mark.parametrize("revision", ["main", "", "0123456", COMMIT.upper(), COMMIT + "0", "v1.0"])
def test_a_revision_that_is_no_commit_is_refused_before_anything_is_asked(revision):
    sentence = refused(DownloadError, f"some/model@{revision}")
    assert f"some/model@{revision}: a revision is the 40 hex digits of a commit" in sentence


PROGRAM = """
import sys, time
time.sleep = lambda seconds: None  # between the hub's client's tries
from src.speculative import TinydraftError, load_models
for name in sys.argv[1:]:
    try:
        print(type(load_models(name, None)[0].network).__name__)
    except TinydraftError as error:
        print(type(error).__name__, error)
"""


def test_a_hub_that_refuses_the_connection_is_one_sentence_unless_its_cache_holds_the_commit(tmp_path, stranger):
    """In a process of its own, for the hub's client reads its settings when it is imported."""
    place = tmp_path / "hub/models--some--model"
    shutil.copytree(stranger, place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    environment = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, f"some/model@{COMMIT}", f"other/model@{COMMIT}"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    cached, refused = done.stdout.splitlines()
    assert cached == "Llama"
    assert refused.startswith(f"DownloadError other/model@{COMMIT}: could not be fetched from the hub (")
    assert done.stderr == ""


def test_a_device_of_kernels_is_not_asked_for_bits_it_lacks():
    with pytest.raises(ModelError, match="4 or 8"):
        load_model(weights("target"), bits=5)
