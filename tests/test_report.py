"""Stage `report`: every figure from the stored samples, of the cells that params.yaml asks for, and of no others."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_up import write_results
from ruamel.yaml import YAML
from workshop import refused, run

from src.pipeline.files import read_json, write_json
from src.pipeline.params import load_params
from src.pipeline.results import CellTiming, CellTokens, CellVerdicts, Lossless, Seconds, Verdict, cell_files
from src.pipeline.summary import Summary, interval


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path)


def summary() -> Summary:
    run("report")
    return read_json("results/summary.json", Summary)


def set_params(**changes) -> None:
    yaml = YAML()
    data = yaml.load(Path("params.yaml"))
    data |= changes
    yaml.dump(data, Path("params.yaml"))


def retime(draft: str, k: int, plain: list, speculative: list) -> None:
    """Sets decode seconds of every prompt and repeat."""
    file = cell_files("target", draft, k)[1]
    record = read_json(file, CellTiming)
    for row, before, after in zip(record.prompts, plain, speculative, strict=True):
        row.plain = [Seconds(prefill=9.0, draft=0.0, target=s, other=0.0) for s in before]
        row.speculative = [Seconds(prefill=9.0, draft=s / 2, target=s / 4, other=s / 4) for s in after]
    write_json(file, record)


def test_the_speedup_is_total_seconds_over_total_seconds_without_the_prefill():
    chance = np.random.default_rng(0)
    plain, fast = chance.uniform(1, 2, (12, 2)), chance.uniform(0.2, 0.9, (12, 2))
    retime("good", 2, plain.tolist(), fast.tolist())
    cell = next(c for c in summary().cells if (c.draft, c.k) == ("good", 2))
    tokens = read_json(cell_files("target", "good", 2)[0], CellTokens).prompts
    generated = 2 * sum(len(row.tokens) for row in tokens)
    assert cell.speedup == pytest.approx(plain.sum() / fast.sum())
    assert cell.tokens_per_second == pytest.approx(generated / fast.sum())
    assert cell.plain_tokens_per_second == pytest.approx(generated / plain.sum())
    assert (cell.draft_share, cell.target_share) == (pytest.approx(0.5), pytest.approx(0.25))
    assert cell.acceptance_rate == pytest.approx(sum(r.accepted for r in tokens) / sum(r.proposed for r in tokens))
    assert cell.mean_accepted_length == pytest.approx(generated / 2 / sum(r.target_passes for r in tokens))
    for name, part in cell.categories.items():
        at = [i for i, row in enumerate(tokens) if row.category == name]
        assert part.speedup == pytest.approx(plain[at].sum() / fast[at].sum())
        assert part.ci_low is None, "two prompts of a category say nothing about others"


def test_the_interval_covers_what_it_says_and_is_none_below_eight_prompts():
    """Prompts drawn from a known law: the true ratio of totals lies inside in about 91 % of 300 trials."""
    chance, hits = np.random.default_rng(3), 0
    for _ in range(300):
        plain = chance.lognormal(0, 0.3, 16)
        fast = plain / 1.5 * chance.lognormal(0, 0.15, 16)
        low, high = interval(plain, fast, 0)
        hits += low <= 1.5 / np.exp(0.15**2 / 2) <= high
    assert 0.85 < hits / 300 < 0.97
    assert interval(np.ones(7), np.ones(7), 0) == (None, None)
    assert interval(np.ones(8), np.full(8, 0.5), 0) == (2.0, 2.0)


def test_everything_is_the_same_bytes_again():
    run("report")
    first = {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file()}
    run("report")
    assert {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file()} == first


def test_the_table_has_a_row_per_cell_and_names_where_and_how_it_was_measured():
    found = summary()
    text = Path("results/table.md").read_text()
    first = text.splitlines()[0]
    for part in ("Made-up 3000", "cpu", "bfloat16", "2 threads", "prompts/default.jsonl", "greedy", "torch 2.13.0"):
        assert part in first
    for part in ("2 cores", "24 GiB", "12 prompts", f"{load_params().max_new_tokens} tokens", "transformers 5.24.0"):
        assert part in first
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| target | ")]
    rows = [[part.strip() for part in row] for row in rows if len(row) == 11][1:]
    for row, cell in zip(rows, found.cells, strict=True):
        assert row[:3] == ["target", cell.draft, str(cell.k)]
        assert row[3:6] == [
            f"{cell.plain_tokens_per_second:.1f}",
            f"{cell.tokens_per_second:.1f}",
            f"{cell.speedup:.2f}x",
        ]
        assert row[6] == f"{cell.ci_low:.2f} to {cell.ci_high:.2f}"
        assert row[-3:] == [f"{100 * cell.acceptance_rate:.1f}%", f"{cell.mean_accepted_length:.2f}", "bit-identical"]


def test_the_best_k_and_the_ratio_of_parameters_are_computed():
    run("report")
    text = Path("results/table.md").read_text()
    for draft, ratio in (("good", "5"), ("costly", "1.4")):  # made-up sizes are 1e9 and 1e9 c
        best = max((c for c in summary().cells if c.draft == draft), key=lambda c: c.speedup)
        row = next(line for line in text.splitlines() if f"({ratio}x params) | {draft} |" in line)
        assert f"{best.tokens_per_second:.1f} tok/s ({best.speedup:.2f}x, k={best.k})" in row


def test_a_draft_of_equal_parameters_is_compared_by_bytes():
    file = Path("results/drafts/good.json")
    data = json.loads(file.read_text())
    data |= {"parameters": 10**9, "weight_bytes": 5 * 10**8}
    file.write_text(json.dumps(data))
    run("report")
    assert "target (same params, 4x bytes) | good" in Path("results/table.md").read_text()


def test_a_dropped_k_is_left_out_though_its_files_still_lie_there():
    run("report")
    assert Path("results/metrics/target/good/k6.json").exists()
    set_params(ks=[2, 4])
    assert {cell.k for cell in summary().cells} == {2, 4}
    assert "| 6 |" not in Path("results/table.md").read_text()
    assert not Path("results/metrics/target/good/k6.json").exists()
    assert {cell.k for cell in read_json("results/lossless.json", Lossless).cells} == {2, 4}


def test_metrics_are_few_and_flat_for_dvc_to_show():
    cells = summary().cells
    for cell in cells:
        found = json.loads(Path(f"results/metrics/{cell.target}/{cell.draft}/k{cell.k}.json").read_text())
        assert found["speedup"] == round(cell.speedup, 3)
        assert {"speedup", "acceptance_rate", "tokens_per_second"} <= set(found)
        assert all(isinstance(value, float | int | None) for value in found.values())
    assert len(list(Path("results/metrics").rglob("*.json"))) == len(cells)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_missing_cell_is_named_and_nothing_is_written(which):
    file = cell_files("target", "costly", 4)[which]
    file.unlink()
    assert f"{file}: there is no such result; make it anew with `dvc repro`" in refused("report")
    assert not Path("results/table.md").exists()


def test_a_cell_of_other_settings_is_refused():
    before = load_params().max_new_tokens
    set_params(max_new_tokens=before - 1)
    assert "with other settings than now" in refused("report")
    set_params(max_new_tokens=before)
    file = Path("prompts/default.jsonl")
    file.write_text(file.read_text().replace("bread", "cake"))
    assert "with other settings than now" in refused("report")


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("near tie", "identical but for 1 near tie"),
        ("different", "1 DIFFERENT"),
        ("sampled", "identical in float32, greedy"),
    ],
)
def test_the_worst_verdict_of_a_cell_is_what_the_table_says(verdict, words):
    file = cell_files("target", "good", 2)[2]
    record = read_json(file, CellVerdicts)
    record.sweep[3] = Verdict(id=record.sweep[3].id, verdict=verdict, position=0, plain=1, speculative=2)
    write_json(file, record)
    cell = next(c for c in summary().cells if (c.draft, c.k) == ("good", 2))
    assert (cell.verdict, cell.lossless) == (verdict, words)
    assert f"{words} |" in Path("results/table.md").read_text()


def test_identical_tokens_are_not_called_bit_identical_without_the_logits():
    for k in (1, 2, 4, 6):
        file = cell_files("target", "good", k)[2]
        write_json(file, read_json(file, CellVerdicts).model_copy(update={"bit_identical": None, "compared_logits": 0}))
    assert {cell.lossless for cell in summary().cells if cell.draft == "good"} == {"identical"}


def test_the_readme_takes_the_table_between_its_marks_and_nothing_else():
    run("report")
    Path("README.md").write_text("# a\n<!-- table: begin -->\nold\n<!-- table: end -->\nb\n")
    run("report", "--readme")
    table = Path("results/table.md").read_text()
    assert Path("README.md").read_text() == f"# a\n<!-- table: begin -->\n{table}<!-- table: end -->\nb\n"
    run("report", "--readme")
    assert Path("README.md").read_text().count(table) == 1


def test_a_readme_without_marks_or_a_table_that_is_missing_is_named():
    run("report")
    Path("README.md").write_text("# a\n")
    assert "README.md: lacks the line <!-- table: begin -->" in refused("report", "--readme")
    shutil.rmtree("results")
    assert "results/table.md: there is no such result" in refused("report", "--readme")
