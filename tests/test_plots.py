"""Pictures and their data: figures are the summary's, files the same each time, pairs told apart without colour."""

import csv
import itertools

import matplotlib.pyplot as plt
import pytest

from src.pipeline import drawing
from src.pipeline.costmodel import Costs, costs_file
from src.pipeline.explain import cells_by_pair
from src.pipeline.files import read_json
from src.pipeline.plots import PLOTS, csv_text, plots, tables
from src.pipeline.report import report
from src.pipeline.results import SUMMARY, CellTiming, CellTokens, cell_files
from src.pipeline.summary import Summary
from tests.made_up import write_results


@pytest.fixture
def results(tmp_path, monkeypatch):
    """(pairs, costs) of a made-up sweep in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path)
    report(readme=False)
    summary = read_json(SUMMARY, Summary)
    yield cells_by_pair(summary), [read_json(costs_file(target), Costs) for target in summary.costs]
    plt.close("all")


def test_the_data_are_the_figures_of_the_summary(results):
    plots()
    for cells in results[0]:
        with (PLOTS / f"speedup/{cells[0].target}_{cells[0].draft}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [int(row["k"]) for row in rows] == [cell.k for cell in cells]
        for row, cell in zip(rows, cells, strict=True):
            told = [float(row[key]) for key in ("speedup", "low", "high", "predicted")]
            assert told == pytest.approx([cell.speedup, cell.ci_low, cell.ci_high, cell.predicted], rel=1e-5)


def test_the_same_results_give_the_same_files(results):
    plots()
    first = {path: path.read_bytes() for path in PLOTS.rglob("*") if path.is_file()}
    plots()
    assert {path: path.read_bytes() for path in PLOTS.rglob("*") if path.is_file()} == first
    assert sum(path.suffix == ".svg" for path in first) == 4
    assert not any(b"dc:date" in text for text in first.values())


def test_the_parts_of_a_step_add_up_to_its_time(results):
    for cell in itertools.chain(*results[0]):
        tokens_file, timing_file, _ = cell_files(cell.target, cell.draft, cell.k)
        timing, counts = read_json(timing_file, CellTiming).prompts, read_json(tokens_file, CellTokens).prompts
        parts = {"draft": 0.0, "target": 0.0, "other": 0.0}
        for row in timing:
            for part in parts:
                parts[part] += sum(getattr(sample, part) for sample in row.speculative)
        steps = 2 * sum(row.target_passes for row in counts)
        expected = {part: 1000 * seconds / steps for part, seconds in parts.items()}
        assert drawing.step_parts(cell) == pytest.approx(expected)


def test_a_pass_over_more_rows_does_more_work_on_the_same_bytes(results):
    record = results[1][0]
    points = [point for point in drawing.roofline_points(record) if point[0] == "target, by rows"]
    assert [rows for _, rows, _, _ in points] == list(range(1, 10))
    one = points[0]
    samples = record.samples
    assert one[2] == pytest.approx(samples.operations / (samples.weight_bytes + samples.cache_bytes))
    assert one[3] == pytest.approx(samples.operations / record.figures.one_row_seconds)
    for (_, rows, intensity, speed), cost in zip(points, record.figures.v, strict=True):
        assert (intensity, speed) == pytest.approx((rows * one[2], rows * one[3] / cost))


@pytest.mark.parametrize(
    ("draw", "x", "y"),
    [
        ("speedup", "tokens drafted", "(times)"),
        ("acceptance", "position", "(%)"),
        ("step_time", "", "(ms)"),
        ("roofline", "per byte", "per second"),
    ],
)
def test_axes_have_units_and_pairs_differ_in_more_than_colour(results, draw, x, y):
    figure = getattr(drawing, draw)(results[draw == "roofline"])
    axes = figure.axes[0]
    assert x in axes.get_xlabel() and y in axes.get_ylabel() and axes.get_legend()
    named = [line for line in axes.lines if not line.get_label().startswith("_") and line.get_marker() != "None"]
    looks = [(line.get_marker(), line.get_linestyle(), line.get_markerfacecolor() == "white") for line in named]
    assert len(set(looks)) == len(looks)
    if draw == "step_time":
        assert len({(bar.get_hatch(), bar.get_facecolor()) for bar in axes.patches}) == 3


def test_a_sweep_without_intervals_or_costs_can_be_drawn(results):
    bare = {"ci_low": None, "ci_high": None, "predicted": None, "residual": None, "excludes_one": None}
    pairs = [[cells[0].model_copy(update=bare)] for cells in results[0]]
    for draw in (drawing.speedup, drawing.acceptance, drawing.step_time):
        assert draw(pairs).axes
    row = tables(pairs, results[1])["speedup/target_good.csv"][0]
    assert row["low"] is None and row["predicted"] is None


def test_nothing_stands_where_nothing_is_known():
    assert csv_text([{"k": 1, "low": None, "speedup": 1.23456789}]) == "k,low,speedup\n1,,1.23457\n"
