"""Stage `gate`: it shows the table in any case, and fails for a *different* and nothing else."""

import pytest
from workshop import refused, run

from src.pipeline.files import write_json, write_text
from src.pipeline.gate import faults
from src.pipeline.results import LOSSLESS, TABLE, CellVerdicts, Lossless, Verdict

WRONG = Verdict(id="chat-1", verdict="different", position=7, plain=11, speculative=12, margin=1.25)
TIE = Verdict(id="chat-2", verdict="near tie", position=3, plain=1, speculative=2, margin=0.1)
FINE = Verdict(id="chat-3", verdict="identical")
SAMPLED = Verdict(id="chat-4", verdict="sampled")


def cell(sweep: list, float32: list, **where) -> CellVerdicts:
    where = {"target": "big", "draft": "small", "k": 4} | where
    return CellVerdicts(
        **where, dtype="bfloat16", near_tie=0.5, sweep=sweep, float32=float32, bit_identical=None, compared_logits=0
    )


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text(TABLE, "| the table |\n")


def test_near_ties_and_samples_pass_and_the_table_stands_on_the_screen():
    write_json(LOSSLESS, Lossless(cells=[cell([FINE, TIE, SAMPLED], [FINE])]))
    assert run("gate") == "| the table |\n\n"


@pytest.mark.parametrize(
    ("sweep", "float32", "dtype"), [([FINE, WRONG], [FINE], "bfloat16"), ([TIE], [WRONG], "float32")]
)
def test_a_different_output_fails_with_all_that_names_it(sweep, float32, dtype):
    write_json(LOSSLESS, Lossless(cells=[cell([FINE], [FINE], k=2), cell(sweep, float32)]))
    sentence = refused("gate")
    for part in ("big", "small", "k=4", "'chat-1'", dtype, "token 7", "12 instead of 11", "1.25 apart"):
        assert part in sentence


def test_it_names_the_first_and_counts_the_others():
    write_json(LOSSLESS, Lossless(cells=[cell([WRONG], [], k=k) for k in (1, 2, 3)]))
    sentence = refused("gate")
    assert "k=1" in sentence
    assert "2 more in results/lossless.json" in sentence
    assert len(faults(Lossless(cells=[cell([WRONG], [WRONG])]))) == 2


def test_without_verdicts_it_says_how_to_make_them():
    assert "results/lossless.json: there is no such result" in refused("gate")
