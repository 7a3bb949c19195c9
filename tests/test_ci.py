""".ci/run does what the README tells a new user, and its small run is really small."""

import os
import re
import subprocess
from pathlib import Path

from src.pipeline.params import load_params
from src.pipeline.prompts import load_prompts

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / ".ci/run"
TEXT = SCRIPT.read_text(encoding="utf-8")


def test_it_is_a_program_that_bash_can_read():
    assert os.access(SCRIPT, os.X_OK)
    assert subprocess.run(["bash", "-n", SCRIPT]).returncode == 0
    assert "set -euo pipefail" in TEXT


def test_it_runs_the_commands_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command, needle in (('-e ".[dev]"', "pip install"), ("pytest", "pytest"), ("dvc repro", "dvc repro")):
        assert needle in readme
        assert any(needle in line and command in line for line in TEXT.splitlines())
    assert "ruff check" in TEXT


def test_its_settings_take_hold_and_make_the_run_small(tmp_path):
    """A setting whose line is not found would leave the default in silence, and the run an hour long."""
    lines = [line for line in TEXT.splitlines() if line.startswith("set_param")]
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run(["bash", "-ec", "\n".join(lines)], cwd=tmp_path, check=True)
    assert os.listdir(tmp_path) == ["params.yaml"]
    params = load_params(tmp_path / "params.yaml")
    assert (params.ks, params.max_new_tokens, params.repeats) == ([1, 2], 8, 1)
    assert (params.check.prompts, params.check.max_new_tokens) == (1, 8)
    assert len(load_prompts(ROOT / params.prompts)) <= 3
    assert (params.targets, params.drafts) == (load_params(ROOT / "params.yaml").targets, load_params(
        ROOT / "params.yaml").drafts)  # fmt: skip


def test_every_step_is_named():
    assert len(re.findall(r'^step "', TEXT, re.MULTILINE)) >= 7


def test_every_package_is_installed():
    import tomllib

    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "src").rglob("*.py")}
    assert set(packages) == folders
