"""Advice against the closed forms, the roofline at its two ends, the figures of the report, and bad input."""

import re

import pytest
from typer.testing import CliRunner

from src.pipeline import published
from src.pipeline.advise import app
from src.pipeline.devices import DEVICES, Device, Pair, advise, pass_seconds
from src.pipeline.files import read_json
from src.pipeline.params import load_params
from src.pipeline.predictions import predict
from src.pipeline.report import collect
from src.pipeline.traces import Trace, trace_file
from src.speculative import theory
from tests.made_up import ROOT, write_results, write_trace

PAIR = Pair(7e9, 0.5e9, 2.0, 2.0)
KS = list(range(1, 13))


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def table(text: str) -> list[list[str]]:
    """The cells of the table in a text, its head first."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not re.fullmatch(r"[|:-]+", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_pass_takes_the_longer_of_reading_and_computing():
    device = Device(1e12, 1e14, "")
    assert pass_seconds(device, 1e9, 2, 1) == pytest.approx(2e-3)
    assert pass_seconds(device, 1e9, 2, 99) == pytest.approx(2e-3)
    assert pass_seconds(device, 1e9, 2, 1000) == pytest.approx(2e-2)


@pytest.mark.parametrize("alpha", [0.3, 0.7, 0.95])
def test_one_sequence_on_a_fast_device_is_the_form_by_parameter_counts(alpha):
    found = advise(DEVICES["h200"], PAIR, alpha, KS, 1)
    best = max(KS, key=lambda k: theory.mbsu(alpha, k, PAIR.draft, PAIR.target))
    assert (found.k, found.bound) == (best, "bandwidth")
    assert found.factor == pytest.approx(theory.mbsu(alpha, best, PAIR.draft, PAIR.target))
    assert found.plain == pytest.approx(DEVICES["h200"].bandwidth / (2 * PAIR.target))


def test_a_draft_pays_less_and_then_nothing_as_batches_grow():
    found = [advise(DEVICES["a100"], PAIR, 0.7, KS, 2**power) for power in range(13)]
    factors = [advice.factor for advice in found]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] > 2 and factors[-1] == 1
    assert [advice.k for advice in found] == sorted((advice.k for advice in found), reverse=True)
    assert found[-1].k == 0 and found[-1].bound == "arithmetic"
    assert found[-1].plain == pytest.approx(DEVICES["a100"].arithmetic / (2 * PAIR.target))


def test_the_break_even_separates_gain_from_loss():
    alpha = advise(DEVICES["rtx-4090"], PAIR, 0.7, [3], 32).break_even
    assert advise(DEVICES["rtx-4090"], PAIR, alpha + 0.01, [3], 32).factor > 1
    assert advise(DEVICES["rtx-4090"], PAIR, alpha - 0.01, [3], 32).k == 0


def test_quantizing_the_draft_makes_it_cheaper():
    plain, small = (
        advise(DEVICES["m1"], PAIR, 0.8, KS, 1),
        advise(DEVICES["m1"], Pair(7e9, 0.5e9, 2, 0.5625), 0.8, KS, 1),
    )
    assert small.factor > plain.factor and small.plain == plain.plain


def test_the_command_shows_what_the_roofline_says():
    text = run(
        "--alpha", "0.61@3", "--target-params", "7B", "--draft-params", "500M", "--device", "A100", "--batch", "1,64"
    )
    alpha = theory.constant_rate(0.61, 3)
    for row, batch in zip(table(text)[1:], (1, 64), strict=True):
        found = advise(DEVICES["a100"], PAIR, alpha, KS, batch)
        assert row[:5] == [
            str(batch),
            f"{found.plain:.0f}",
            f"{found.speculative:.0f}",
            f"{found.factor:.2f}x",
            str(found.k),
        ]
    assert f"which is {alpha:.2f} for each draft token" in text


def test_where_nobody_knows_the_arithmetic_larger_batches_are_left_out():
    pair = ["--alpha", "0.7", "--target-params", "7B", "--draft-params", "500M", "--device", "m5"]
    text = run(*pair)
    assert [row[0] for row in table(text)[1:]] == ["1"]
    assert "larger batches are left out" in text
    assert [row[0] for row in table(run(*pair, "--arithmetic", "10"))[1:]] == ["1", "4", "16", "64", "256"]


def test_advice_from_measurements_is_the_prediction_of_the_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path)
    cells = {cell.k: cell for cell in collect(load_params())[0].cells if cell.draft == "good"}
    trace = "results/sweep/target/good/k6.json"
    text = run("--costs", "results/costs/target.json", "--draft", "good", "--trace", trace, "--emit", "vllm")
    rows = {int(row[0]): row for row in table(text)[1:]}
    assert rows[6][3] == f"{cells[6].predicted:.2f}x"
    best = max(rows.values(), key=lambda row: float(row[3].rstrip("x")))
    assert f"recommended: k={best[0]}" in text and f'"num_speculative_tokens": {best[0]}' in text


def test_acceptance_comes_from_a_recorded_trace_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path)
    write_trace(params := load_params(), "good")
    outputs = read_json(trace_file("target"), Trace).drafts["good"].greedy
    rates = predict(outputs, "token", 12, None, "good", params.seed).by_position
    arguments = ["--costs", "results/costs/target.json", "--draft", "good", "--trace", "results/trace/target.json"]
    rows = table(run(*arguments))[1:]
    assert [row[1] for row in rows] == [f"{theory.expected_tokens(rates, int(row[0])):.2f}" for row in rows]
    result = CliRunner().invoke(app, [*arguments[:3], "other", *arguments[4:]])
    assert result.exit_code == 1 and "'other' is not in" in result.stderr


def test_no_draft_is_recommended_where_none_pays():
    text = run(
        "--alpha", "0.1", "--target-params", "1B", "--draft-params", "900M", "--bandwidth", "100", "--emit", "vllm"
    )
    assert "recommended: no draft" in text and "nothing to emit" in text


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--alpha", "1.5"],
        ["--alpha", "0.5@1000"],
        ["--alpha", "0.5", "--device", "a100"],
        ["--alpha", "0.5", "--target-params", "1B", "--draft-params", "1M", "--device", "m5", "--batch", "8"],
        ["--alpha", "0.5", "--trace", "k.json"],
        ["--trace", "missing.json"],
        ["--alpha", "0.5", "--device", "abacus"],
        ["--alpha", "0.5", "--target-params", "many", "--draft-params", "1M", "--device", "a100"],
        ["--alpha", "0.5", "--target-params", "1B", "--draft-params", "1M"],
        ["--alpha", "0.5", "--target-params", "1B", "--draft-params", "1M", "--device", "a100", "--batch", "0"],
        ["--alpha", "0.5", "--dtype", "float7"],
        ["--alpha", "0.5", "--emit", "abacus"],
        ["--alpha", "0.5", "--costs", "missing.json"],
        ["--alpha", ".5", "--bandwidth", "9", "--target-params", "1B", "--draft-params", "1M", "--emit", "vllm",
         "--vocabularies", "x"],
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(arguments, capsys):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1
    assert "allowed" in result.stderr or "dvc repro" in result.stderr


def test_the_reference_points_are_predicted_from_their_own_figures():
    small, large = published.POINTS[:2]
    assert published.by_bytes(small) == pytest.approx((1 + 2 * 0.694) / (1 + 2 * 0.494 / 1.54))
    assert published.by_layers(large) == pytest.approx((1 + 3 * 0.613) / (1 + 3 * 24 / 36))
    for point in (small, large):
        assert published.by_layers(point) < point.published < published.by_bytes(point)


def test_the_alpha_that_a_point_needs_gives_the_published_factor():
    for point in published.POINTS:
        alpha = published.needed_alpha(point)[0]
        assert theory.mbsu(alpha, point.k, point.draft, point.target) == pytest.approx(point.published)
    assert len(table(run("--published"))) == 1 + len(published.POINTS)


def test_the_readme_shows_predicted_beside_published():
    assert published.table() in (ROOT / "README.md").read_text(encoding="utf-8")
