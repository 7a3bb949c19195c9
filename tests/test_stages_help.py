"""Every stage explains itself at once: its help needs neither torch nor transformers, and teaches with an example."""

import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
STAGES = YAML(typ="safe", pure=True).load((ROOT / "dvc.yaml").read_text())["stages"]
TOOLS = {"src.pipeline.advise", "src.pipeline.verify"}
MODULES = sorted({stage["cmd"].split()[2] for stage in STAGES.values()} | TOOLS)
HEAVY = ("torch", "transformers", "scipy", "pandas", "matplotlib", "huggingface_hub")

PROGRAM = """
import importlib, sys
from typer.testing import CliRunner
for name in sys.argv[1:]:
    app = importlib.import_module(name).app
    result = CliRunner().invoke(app, ["--help"])
    heavy = [module for module in {heavy!r} if module in sys.modules]
    print(name, result.exit_code, len(result.output.split()), heavy, sep=";")
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, list[str]]:
    """Exit code, words and heavy modules after each stage's --help; one process, since none may load anything."""
    command = [sys.executable, "-c", PROGRAM.format(heavy=HEAVY), *MODULES]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: rest for name, *rest in (line.split(";") for line in lines)}


@pytest.mark.parametrize("module", MODULES)
def test_help_teaches_without_loading_what_it_does_not_need(helps, module):
    code, words, heavy = helps[module]
    assert code == "0"
    assert int(words) > 30
    assert heavy == "[]"
