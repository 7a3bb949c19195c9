"""A draft distilled from a tiny random target: the stage from end to end, and that it goes on where it stopped."""

import csv
import json
from pathlib import Path

import pytest
import torch
from checkpoints import save_checkpoint
from workshop import build, refused, run

from src.distill.shards import GIVEN, read, shards

LAYERS, KEPT_IDS = 4, 150
SETTINGS = {"of": "target", "layers": 2, "tokens": 2000, "minutes": 0.06, "seed": 3, "draft_vocab": KEPT_IDS}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("target"), num_hidden_layers=LAYERS, initializer_range=0.15)


@pytest.fixture(scope="module")
def taught(tmp_path_factory, target):
    """A repository in which the stage has run with a small budget."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository(tmp_path_factory.mktemp("repository"), target))
        run("distill")
        yield Path.cwd()


@pytest.fixture(autouse=True)
def here(monkeypatch, taught):
    monkeypatch.chdir(taught)


def repository(folder: Path, target: Path, **changes) -> Path:
    sources = {
        "target": {"source": "path", "path": str(target)},
        "draft": {"source": "distill", "of": "target", "draft_vocab": True},
    }
    return build(folder, models=sources, distill=SETTINGS | changes)


def curve() -> list[dict]:
    with open("results/distill/curve.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_agreement_rises_as_it_trains():
    lines = curve()
    untouched, fitted, *_, trained = lines
    assert float(fitted["agreement"]) > float(untouched["agreement"]) + 0.1
    assert float(trained["agreement"]) > float(untouched["agreement"]) + 0.1
    assert float(trained["loss"]) < float(fitted["loss"]) < float(untouched["loss"])
    assert [float(line["minutes"]) for line in lines] == sorted(float(line["minutes"]) for line in lines)


def test_what_is_stored_says_what_was_done():
    record = json.loads(Path("results/distill/trained.json").read_text())
    folder = next(Path("models/.distill/target").iterdir())
    held, *rest = (read(path, "part")["part"] for path in shards(folder))
    assert record["written"] == sum(int((part != GIVEN).sum()) for part in rest) >= SETTINGS["tokens"]
    assert record["conversations"] == sum(len(part) for part in rest)
    assert record["held_out_conversations"] == len(held)
    for taken in (record["attention"], record["units"]):
        assert [layer // 2 for layer in taken] == [0, 1], "one of each half of the target's depth"
    assert record["minutes"] >= SETTINGS["minutes"]
    assert record["trained"] == int(curve()[-1]["tokens"])


def test_the_draft_is_fetched_trimmed_and_loaded():
    from src.pipeline.pair import open_pair
    from src.pipeline.params import load_params

    run("fetch", "target")
    run("fetch", "draft")
    _, draft, _ = open_pair(load_params(), "target", "draft")
    kept = json.loads(Path("results/distill/draft_vocab.json").read_text())
    assert draft.token_ids.tolist() == kept == sorted(set(kept))
    assert len(kept) == KEPT_IDS
    assert draft.forward(torch.tensor([1, 2, 3])).shape[-1] == KEPT_IDS


def test_a_finished_run_repeated_changes_nothing():
    before = {path: path.read_bytes() for path in Path("results/distill").iterdir()}
    run("distill")
    assert {path: path.read_bytes() for path in Path("results/distill").iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"of": "nobody"}, "key 'distill.of': 'nobody'"),
        ({"layers": LAYERS + 1}, f"key 'distill.layers': {LAYERS + 1} cannot be used; allowed: 1 to {LAYERS}"),
        ({"tokens": 10}, "key 'distill.tokens': 10"),
        ({"minutes": 0}, "key 'distill.minutes': 0"),
        ({"draft_vocab": 1}, "key 'distill.draft_vocab': 1"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(tmp_path, monkeypatch, target, changes, words):
    monkeypatch.chdir(repository(tmp_path / "repository", target, **changes))
    assert words in refused("distill")
    assert not Path("results/distill").exists()
