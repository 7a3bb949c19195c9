"""Weights come into models/ whole and verified, from every source, or not at all."""

import os
import shutil
from pathlib import Path

import pytest
from checkpoints import save_checkpoint
from workshop import attempt, build, files, refused, run, weights

from src.pipeline import fetch as stage
from src.pipeline.files import read_json
from src.pipeline.origins import ModelInfo, Origin, sha256
from src.speculative.errors import DownloadError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(build(tmp_path / "repository"))


def stored(slug: str, role="models") -> ModelInfo:
    return read_json(f"results/{role}/{slug}.json", ModelInfo)


def state() -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(Path("models").rglob("*"))}


def test_a_directory_is_brought_and_counted_in_its_weights():
    from safetensors.torch import load_file

    run("fetch", "target")
    info = stored("target")
    assert info.parameters == sum(
        tensor.numel() for tensor in load_file(weights("target") / "model.safetensors").values()
    )
    assert info.files == {file.name: sha256(file) for file in weights("target").iterdir()}
    assert info.weight_bytes == (weights("target") / "model.safetensors").stat().st_size
    run("fetch", "draft")
    assert stored("draft", "drafts").parameters == info.parameters


def test_a_tied_head_that_is_stored_twice_counts_once():
    from safetensors.torch import load_file, save_file

    run("fetch", "target")
    once = stored("target").parameters
    copy = Path(shutil.copytree(weights("target"), "copy"))
    tensors = load_file(copy / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, copy / "model.safetensors")
    build(Path(), models={"target": {"source": "path", "path": "copy"}, "draft": {"source": "path", "path": "copy"}})
    run("fetch", "target")
    assert stored("target").parameters == once


def test_what_is_there_and_unchanged_is_left_alone():
    run("fetch", "target")
    before = state()
    assert "already there, every file verified" in run("fetch", "target")
    assert state() == before


@pytest.mark.parametrize("harm", ["a byte", "a file less", "a file more"])
def test_what_was_harmed_is_made_anew(harm):
    run("fetch", "target")
    info = stored("target")
    config = Path("models/target/config.json")
    config.unlink() if harm == "a file less" else None
    if harm == "a byte":
        config.unlink()  # it may be a second name of the source's file
        config.write_text("{ }")
    if harm == "a file more":
        Path("models/target/extra.txt").write_text("")
    assert "already there" not in run("fetch", "target")
    assert stored("target") == info
    assert {path.name for path in Path("models/target").iterdir()} == set(info.files)


def test_another_entry_under_the_same_name_is_fetched():
    run("fetch", "target")
    first = stored("target")
    build(Path(), models={n: {"source": "path", "path": str(weights("stranger"))} for n in ("target", "draft")})
    run("fetch", "target")
    assert stored("target").files != first.files


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "deep/weights.PKL", "model.ckpt"])
def test_a_pickle_is_refused_and_nothing_is_left(name):
    place = Path(shutil.copytree(weights("target"), "foreign"))
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_bytes(b"\x80\x04.")
    build(Path(), models={n: {"source": "path", "path": "foreign"} for n in ("target", "draft")})
    before = files()
    sentence = refused("fetch", "target")
    assert name in sentence
    assert "allowed: weights as safetensors" in sentence
    assert files() == before


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_directory_that_is_no_model_is_named(missing):
    place = Path(shutil.copytree(weights("target"), "foreign"))
    (place / missing).unlink()
    build(Path(), models={n: {"source": "path", "path": "foreign"} for n in ("target", "draft")})
    assert "allowed: a directory with config.json and *.safetensors" in refused("fetch", "target")
    assert not Path("models/target").exists()


def test_a_file_that_is_no_safetensors_is_named():
    place = Path(shutil.copytree(weights("target"), "foreign"))
    (place / "model.safetensors").write_bytes(b"version https://git-lfs")
    build(Path(), models={n: {"source": "path", "path": "foreign"} for n in ("target", "draft")})
    assert "model.safetensors: is no safetensors file" in refused("fetch", "target")


def test_a_path_that_is_not_there_is_named():
    build(Path(), models={n: {"source": "path", "path": "nowhere"} for n in ("target", "draft")})
    assert "'nowhere' is no directory" in refused("fetch", "target")
    assert "holds no 'nobody'; allowed: target, draft" in refused("fetch", "nobody")


def test_a_full_disk_keeps_the_old_weights(monkeypatch):
    run("fetch", "target")
    before = state()
    build(Path(), models={n: {"source": "path", "path": str(weights("draft"))} for n in ("target", "draft")})

    def full(*_, **__):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(stage, "_link", full)
    assert "no space is left on the disk" in refused("fetch", "target")
    assert state() == before


def hub(monkeypatch, answer) -> None:
    build(Path(), models={n: {"source": "hub", "repo": "some/model", "revision": COMMIT} for n in ("target", "draft")})
    monkeypatch.setattr("src.speculative.loading.download", answer)


def test_the_hub_s_snapshot_is_brought_without_what_is_not_wanted(monkeypatch):
    place = Path(shutil.copytree(weights("stranger"), "snapshot"))
    (place / "README.md").write_text("hello")
    asked = []
    hub(monkeypatch, lambda repo, revision: asked.append((repo, revision)) or place)
    run("fetch", "target")
    assert asked == [("some/model", COMMIT)]
    assert set(stored("target").files) == {file.name for file in weights("stranger").iterdir()}


def test_a_hub_that_does_not_answer_leaves_nothing(monkeypatch):
    def refuse(repo, revision):
        raise DownloadError(f"{repo}@{revision}: could not be fetched from the hub (connection refused)")

    hub(monkeypatch, refuse)
    before = files()
    assert f"some/model@{COMMIT}: could not be fetched" in refused("fetch", "target")
    assert files() == before


def test_a_quantized_draft_is_made_from_its_target_and_counts_its_parameters():
    big = save_checkpoint(Path("big"), hidden_size=64, intermediate_size=128, head_dim=16)
    quantized = {"source": "quantize", "of": "target", "bits": 4, "group_size": 32}
    build(Path(), models={"target": {"source": "path", "path": str(big)}, "draft": quantized})
    run("fetch", "draft")
    target, draft = read_json("models/.origins/target.json", Origin).info, stored("draft", "drafts")
    assert draft.parameters == target.parameters
    assert draft.weight_bytes < target.weight_bytes / 2
    assert "already there" in run("fetch", "draft")


def test_a_quantization_that_no_kernel_takes_is_refused():
    quantized = {"source": "quantize", "of": "target", "bits": 4, "group_size": 33}
    build(Path(), models={"target": {"source": "path", "path": str(weights("target"))}, "draft": quantized})
    assert "group_size': 33 cannot be used; allowed: how many weights share a scale: 32, 64, 128 or 256" in refused(
        "fetch", "draft"
    )
    assert not Path("models/draft").exists()


def test_a_draft_without_its_trained_layers_says_how_to_make_them():
    distilled = {"source": "distill", "of": "target"}
    build(Path(), models={"target": {"source": "path", "path": str(weights("target"))}, "draft": distilled})
    sentence = refused("fetch", "draft")
    assert "results/distill" in sentence
    assert "src.pipeline.distill" in sentence
    assert not Path("models/draft").exists()


def test_an_interrupted_fetch_is_done_again_and_the_old_directory_stays(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    run("fetch", "target")
    before = state()
    build(Path(), models={n: {"source": "path", "path": str(weights("draft"))} for n in ("target", "draft")})
    monkeypatch.setattr(stage, "_link", interrupt)
    monkeypatch.setattr(os, "_exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
    assert attempt("fetch", "target").exit_code == 130
    assert state() == before
    monkeypatch.undo()
