"""The README: what it shows is what is committed, and what it tells people to type is there."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from src.pipeline.report import BEGIN, END

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^ *```(\w+)\n(.*?)^ *```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [line.partition("#")[0].strip() for kind, block in BLOCKS if kind == "bash" for line in block.splitlines()]


def test_the_two_commands_stand_on_the_first_screen():
    first = TEXT.splitlines()[:30]
    assert 'pip install -e ".[dev]" && dvc repro' in first
    assert "pytest" in first


def test_the_table_is_the_committed_one():
    """Not the one that lies in results/ now: a user who has just measured anew must fail no test."""
    shown = TEXT.partition(BEGIN)[2].partition(END)[0].strip()
    command = ["git", "show", "HEAD:results/table.md"]
    committed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert shown == committed, "put it there with `python -m src.pipeline.report --readme`"


def test_the_graph_is_that_of_dvc_yaml_without_what_follows_from_the_rest():
    """All arrows of `dvc dag` are too many to be read; an arrow that a longer way implies is left out."""
    command = [sys.executable, "-m", "dvc", "dag", "--collapse-foreach-matrix", "--md"]
    whole = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = dict(re.findall(r'(node\d+)\["(.*?)"\]', whole))
    arrows = {(names[a], names[b]) for a, b in re.findall(r"(node\d+)-->(node\d+)", whole)}

    def below(stage: str) -> set[str]:
        return {stage}.union(*(below(b) for a, b in arrows if a == stage))

    needed = sorted((a, b) for a, b in arrows if not any(c != b and b in below(c) for d, c in arrows if d == a))
    graph = "\n".join(["```mermaid", "flowchart LR", *(f"    {a} --> {b}" for a, b in needed), "```"])
    assert graph in TEXT, f"it should be\n{graph}"


@pytest.mark.parametrize("name", sorted(set(re.findall(r"python -m (src\.pipeline\.\w+)", TEXT))))
def test_each_command_that_it_names_is_there(name):
    assert import_module(name).app


def test_each_file_that_it_names_is_there():
    named = set(re.findall(r"`((?:src|tests|prompts)/[\w./-]*)`", TEXT)) | set(
        re.findall(r"`(\w+\.(?:yaml|md))`", TEXT)
    )
    assert len(named) > 8
    assert not [name for name in named if not (ROOT / name).exists()]


def test_each_setting_that_it_changes_is_in_params():
    data = YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    changed = re.findall(r"-S '?(\w+)=(\[.*?\]|\S+)", "\n".join(COMMANDS))
    assert len(changed) >= 4
    for key, value in changed:
        assert key in data
        if key in ("targets", "drafts"):
            assert set(value.strip("[]").split(",")) <= set(data["models"])


def test_it_says_where_the_default_weights_come_from_and_under_which_licence():
    assert "4-bit file" in TEXT.partition("## Limits")[2]
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")


@pytest.mark.models
def test_its_python_runs_as_it_stands(real, monkeypatch, capsys):
    from src.pipeline.params import load_params

    for slug in ("smollm2-135m", "smollm2-draft"):
        assert slug in load_params().models
        real(slug)
    for kind, block in BLOCKS:
        if kind == "python":
            exec(compile(block, "README.md", "exec"), {})
    assert "tok/s" in capsys.readouterr().out
