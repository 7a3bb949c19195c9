"""verify: consistent results pass, and whatever figure, token, sample, hash or setting is tampered with is noticed."""

import contextlib
import json
import random
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from src.pipeline.checks import differences
from src.pipeline.params import load_params
from src.pipeline.plots import plots
from src.pipeline.replay import replay
from src.pipeline.report import report
from src.pipeline.results import LOSSLESS, SUMMARY, TABLE
from src.pipeline.traces import replay_file, trace_file
from src.pipeline.verify import app, faults
from tests.made_up import write_results, write_trace


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A made-up sweep, with all that the report makes of it."""
    folder = tmp_path_factory.mktemp("original")
    with contextlib.chdir(folder):
        write_results(folder, drafts={"good": (0.8, 0.2)}, ks=(1, 4))
        report(readme=False)
        plots()
    return folder


@pytest.fixture
def results(original, tmp_path, monkeypatch):
    """A copy of it in the working directory."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def leaves(value, path=()):
    """(path, number) of every number in JSON."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def put(value, path, new):
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def tamper(file: Path, path, new) -> None:
    data = json.loads(file.read_text())
    put(data, path, new)
    file.write_text(json.dumps(data))


def test_consistent_results_pass(results):
    outcome = CliRunner().invoke(app, [])
    assert outcome.exit_code == 0, outcome.output
    assert "2 cells, every figure follows" in outcome.output


def test_every_number_of_the_summary_is_compared(results):
    stored = json.loads(SUMMARY.read_text())
    for path, number in list(leaves(stored)):
        other = json.loads(SUMMARY.read_text())
        put(other, path, number * 1.001 + 1 if isinstance(number, int) else number * 1.001 + 1e-6)
        assert len(list(differences(other, stored))) == 1, path


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_figure_of_the_summary_is_named(results, seed):
    places = [(path, number) for path, number in leaves(json.loads(SUMMARY.read_text())) if isinstance(number, float)]
    path, number = random.Random(seed).choice(places)
    tamper(SUMMARY, path, number + 0.01)
    found = list(faults(load_params()))
    assert len(found) == 1 and str(SUMMARY) in found[0] and str(path[-1]).strip("[]") in found[0]


def test_a_changed_digit_of_the_table_is_named_with_its_line(results):
    lines = TABLE.read_text().split("\n")
    for at in [at for at, line in enumerate(lines) if re.search(r"\d", line)]:
        digit = re.search(r"\d", lines[at])
        changed = lines[at][: digit.start()] + str((int(digit[0]) + 1) % 10) + lines[at][digit.end() :]
        TABLE.write_text("\n".join([*lines[:at], changed, *lines[at + 1 :]]))
        found = list(faults(load_params()))
        assert len(found) == 1 and f"{TABLE}: line {at + 1} " in found[0]


@pytest.mark.parametrize(
    ("file", "path", "new"),
    [
        ("results/sweep/target/good/k4-timing.json", ("prompts", 3, "speculative", 1, "target"), 9.0),
        ("results/sweep/target/good/k1-timing.json", ("prompts", 0, "plain", 0, "other"), 9.0),
        ("results/sweep/target/good/k4-timing.json", ("prompts", 0, "plain"), []),
        ("results/sweep/target/good/k4-timing.json", ("prompts", 0, "generated"), 7),
        ("results/sweep/target/good/k4-timing.json", ("prompts", 0, "id"), "other"),
        ("results/sweep/target/good/k4-timing.json", ("machine", "id"), "ffffffff"),
        ("results/sweep/target/good/k4.json", ("prompts", 2, "accepted"), 1000),
        ("results/sweep/target/good/k4.json", ("prompts", 2, "accepted_by_position", 1), 1000),
        ("results/sweep/target/good/k4.json", ("prompts", 2, "histogram", 0), 1000),
        ("results/sweep/target/good/k4.json", ("prompts", 2, "target_passes"), 1),
        ("results/sweep/target/good/k4.json", ("prompts", 2, "tokens", 5), 1000),
        ("results/sweep/target/good/k4.json", ("settings", "prompts_sha256"), "0" * 16),
        ("results/sweep/target/good/k4.json", ("settings", "dtype"), "float32"),
        ("results/baseline/target.json", ("prompts", 1, "tokens", 0), 1000),
        ("results/baseline/target-timing.json", ("settings", "threads"), 64),
        ("results/lossless/target/good/k1.json", ("sweep", 0, "verdict"), "different"),
        ("results/lossless/target/good/k1.json", ("near_tie",), 50.0),
        ("results/lossless/target/good/k1.json", ("bit_identical",), False),
        ("results/costs/target.json", ("figures", "v", 4), 0.5),
        ("results/costs/target.json", ("samples", "passes", 4, 0), 9.0),
        ("results/costs/target.json", ("samples", "bandwidth"), 1e9),
        ("results/peers/target.json", ("runs", 0, "assisted", 0), 9.0),
        ("results/peers/target.json", ("settings", "device"), "mps"),
        ("results/metrics/target/good/k4.json", ("speedup",), 3.0),
        ("results/lossless.json", ("cells", 0, "sweep", 0, "verdict"), "near tie"),
        ("results/drafts/good.json", ("parameters",), 7),
        ("results/machine.json", ("fingerprint", "cores"), 64),
    ],
)  # fmt: skip
def test_tampering_with_a_raw_file_is_noticed_and_the_file_named(results, file, path, new):
    tamper(Path(file), path, new)
    outcome = CliRunner().invoke(app, [])
    assert outcome.exit_code == 1
    made_of_it = [file, str(SUMMARY), file.replace("sweep", "lossless"), "results/lossless/target/good/k1.json"]
    assert any(name in outcome.output for name in made_of_it)
    assert outcome.stderr.startswith("error: ") and "Traceback" not in outcome.output


@pytest.mark.parametrize(
    "file", ["results/costs/target.json", "results/sweep/target/good/k4.json", str(LOSSLESS), str(TABLE)]
)
def test_a_missing_file_is_named_once(results, file):
    Path(file).unlink()
    outcome = CliRunner().invoke(app, [])
    assert outcome.exit_code == 1 and outcome.stdout.count(f"{file}: there is no such result") == 1


def test_changed_prompts_and_params_are_named(results):
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("max_new_tokens: 32", "max_new_tokens: 49"))
    assert any("max_new_tokens = 32, and now it is 49" in fault for fault in faults(load_params()))
    params.write_text(params.read_text().replace("max_new_tokens: 49", "max_new_tokens: 32"))
    prompts = Path(load_params().prompts)
    prompts.write_text(prompts.read_text().replace("bread", "cake", 1))
    assert any("prompts_sha256" in fault for fault in faults(load_params()))


def test_the_data_of_the_plots_are_compared(results):
    data = Path("results/plots/speedup/target_good.csv")
    data.write_text(data.read_text().replace("1", "2", 1))
    found = list(faults(load_params()))
    assert len(found) == 1 and str(data) in found[0]


@pytest.mark.parametrize(
    ("file", "path", "new"),
    [
        (replay_file("target"), ("drafts", "good", "sampled", 3, "mean_accepted_length"), 1.0),
        (replay_file("target"), ("drafts", "good", "greedy", 0, "by_position", 0), 0.5),
        (trace_file("target"), ("drafts", "good", "sampled", 0, "q", 3), 0.123),
        (trace_file("target"), ("settings", "dtype"), "float32"),
    ],
)
def test_what_a_trace_says_is_computed_anew(results, file, path, new):
    write_trace(load_params(), "good")
    replay("target")
    report(readme=False)
    assert not list(faults(load_params()))
    tamper(file, path, new)
    assert any("results/replay/target.json" in fault or str(file) in fault for fault in faults(load_params()))
