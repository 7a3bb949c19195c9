"""The stages `trace`, `sampling` and `replay` on tiny models: what is replayed is what was measured."""

import contextlib
import json
import math

import pytest
from workshop import build, run

from src.pipeline.files import read_json
from src.pipeline.results import CellTokens, cell_files
from src.pipeline.traces import Replay, Sampled, Trace, replay_file, sampled_file, trace_file
from src.pipeline.ways import NAMES, render

KS = (1, 3)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository with 24 prompts in which all the stages ran; it is the working directory meanwhile."""
    sampling = {"temperature": 1.0, "k": 4, "prompts": 24, "max_new_tokens": 20}
    folder = build(tmp_path_factory.mktemp("replay"), max_new_tokens=12, ks=list(KS), repeats=1, sampling=sampling)
    rows = [{"id": f"p{i}", "category": "chat", "prompt": chr(65 + i) * 3} for i in range(24)]
    (folder / "prompts/set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with contextlib.chdir(folder):
        for stage in ("machine", "fetch target", "fetch draft", "baseline target", "costs target", "trace target",
                      *(f"sweep target draft {k}" for k in KS), "sampling target draft", "replay target"):  # fmt: skip
            run(*stage.split())
        yield folder


@pytest.fixture
def replayed(repository):
    return read_json(replay_file("target"), Replay).drafts["draft"]


def test_a_trace_holds_distributions(repository):
    trace = read_json(trace_file("target"), Trace)
    rows = trace.drafts["draft"].sampled
    assert [len(row.tokens) for row in rows] == [20] * 24
    for row in rows:
        for place, (p, q) in enumerate(row.tops):
            assert len(p.ids) == len(q.ids) == 64 and p.logs == sorted(p.logs, reverse=True)
            if row.tokens[place] in p.ids:
                log = p.logs[p.ids.index(row.tokens[place])]
                assert log == pytest.approx(math.log(row.p[place]), abs=1e-3)
        assert all(0 < x <= 1 for x in row.p) and all(0 <= x <= 1.000001 for x in row.overlap)
    assert trace.drafts["draft"].vocabulary.size == 258


def test_greedy_cells_are_replayed_to_the_token(repository, replayed):
    """Where nothing is drawn, the trace of the plain output gives the very counts of the cells."""
    for k in KS:
        cell = read_json(cell_files("target", "draft", k)[0], CellTokens).prompts
        one = next(one for one in replayed.greedy if one.k == k)
        assert one.mean_accepted_length == pytest.approx(
            sum(len(row.tokens) for row in cell) / sum(row.target_passes for row in cell)
        )
        assert one.acceptance_rate == pytest.approx(sum(r.accepted for r in cell) / sum(r.proposed for r in cell))
        assert one.length_low <= one.mean_accepted_length <= one.length_high


def test_measured_cells_agree_with_the_replay(repository, replayed):
    assert {one.cell for one in replayed.measured} == {
        *(f"sampling, {rule}, k=4" for rule in ("token", "block", "match")), *(f"sweep, k={k}" for k in KS),
    }  # fmt: skip
    assert all(one.agrees for one in replayed.measured), replayed.measured


def test_every_rule_and_k_is_predicted(replayed):
    assert {(one.rule, one.k) for one in replayed.sampled} == {
        (rule, k) for rule in ("token", "block", "match") for k in range(1, 17)
    }
    for one in replayed.sampled:
        assert 1 <= one.mean_accepted_length <= one.k + 1
        assert one.by_position == sorted(one.by_position, reverse=True)
        assert one.speedup > 0 and one.extrapolated == (one.k > 8)
    lengths = {(one.rule, one.k): one.mean_accepted_length for one in replayed.sampled}
    assert all(lengths["match", k] < lengths["token", k] for k in range(1, 17))


def test_every_way_of_sampling_is_there(repository):
    found = read_json(sampled_file("target", "draft"), Sampled)
    assert set(found.ways) == {"token", "block", "match", "adaptive", "prompt-lookup", "greedy"}
    assert found.ways["prompt-lookup"].prompts[0].draft_passes == 0
    tokens = {name: [row.tokens for row in way.prompts] for name, way in found.ways.items()}
    plain = [row.tokens for row in read_json(trace_file("target"), Trace).drafts["draft"].sampled]
    assert tokens["match"] == plain, "for a seed, sampling and matching gives what plain decoding gives"
    assert tokens["token"] != plain


def test_the_table_has_a_row_for_every_way(repository, replayed):
    text = render([read_json(replay_file("target"), Replay)])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert [row[2] for row in rows[2:]] == list(NAMES.values())
    assert "5 of 5 measured cells agree" in text and "temperature 1 with k=4" in text
    by_name = {one.way: one for one in replayed.ways}
    for row, one in zip(rows[2:], map(by_name.get, NAMES), strict=True):
        assert row[3] == f"{one.speedup:.2f}x" and one.ci_low <= one.speedup <= one.ci_high
        assert row[7] == ("-" if one.way in ("adaptive", "prompt-lookup") else f"{one.predicted_length:.2f}")
    assert render([]) == ""
