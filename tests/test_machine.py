"""The fingerprint: the same from run to run, another in another clone, and the first to complain about params."""

import json
from pathlib import Path

import pytest
from workshop import build, files, refused, run


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(build(tmp_path / "a"))


def stored() -> bytes:
    return Path("results/machine.json").read_bytes()


def test_the_same_bytes_each_time():
    run("machine")
    first = stored()
    run("machine")
    assert stored() == first
    assert files() == {".machine-id", "results/machine.json"}


def test_a_clone_differs_though_the_machine_is_the_same(tmp_path, monkeypatch):
    """Results from elsewhere lie in git; without this a clone of the same machine type would measure nothing."""
    run("machine")
    first = json.loads(stored())["fingerprint"]
    other = build(tmp_path / "b")
    (other / "results").mkdir()
    (other / "results/machine.json").write_bytes(stored())
    monkeypatch.chdir(other)
    run("machine")
    second = json.loads(stored())["fingerprint"]
    assert {key for key in first if first[key] != second[key]} == {"id"}


def test_git_does_not_take_the_id_along():
    from workshop import ROOT

    assert "/.machine-id" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("spoiled", ["", "0123abcd\n0123abcd", "../../etc", "ÿÿÿÿÿÿÿÿ"])
def test_a_spoiled_id_is_replaced(spoiled):
    Path(".machine-id").write_text(spoiled, encoding="utf-8")
    run("machine")
    found = Path(".machine-id").read_text().strip()
    assert int(found, 16) >= 0
    assert json.loads(stored())["fingerprint"]["id"] == found


def test_what_timings_depend_on_is_there_and_nothing_that_changes_by_itself():
    run("machine")
    found = json.loads(stored())["fingerprint"]
    wanted = {"id", "processor", "accelerator", "cores", "memory_gib", "system", "python", "torch", "transformers"}
    assert set(found) == wanted | {"threads"}
    assert found["threads"] == 1
    build(Path(), threads=2)
    run("machine")
    assert json.loads(stored())["fingerprint"] == found | {"threads": 2}


def test_wrong_params_and_prompts_are_refused_before_anything_is_written():
    build(Path(), ks=[2, 2])
    assert "params.yaml: key 'ks': 2 stands there twice" in refused("machine")
    build(Path(), prompts="prompts/none.jsonl")
    assert "params.yaml: key 'prompts': 'prompts/none.jsonl' does not exist" in refused("machine")
    build(Path())
    Path("prompts/set.jsonl").write_text("")
    assert "prompts/set.jsonl: holds no prompt" in refused("machine")
    Path("params.yaml").unlink()
    assert "params.yaml: there is no such file" in refused("machine")
    assert files() == set()
