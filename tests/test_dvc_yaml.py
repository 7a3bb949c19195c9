"""dvc.yaml: what each stage says it depends on covers what it imports, and the graph is the one that is meant."""

import ast
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
DVC = YAML(typ="safe", pure=True).load((ROOT / "dvc.yaml").read_text())
STAGES = DVC["stages"]


def sources_of(file: Path) -> set[str]:
    """Every file of the repository that importing `file` may run, itself and late imports included."""
    todo, found = [file], set()
    while todo:
        file = todo.pop()
        if file in found:
            continue
        found.add(file)
        for node in _run(ast.parse(file.read_text())):
            todo += [path for name in _modules(node, file) for path in _files(name)]
    return {str(path.relative_to(ROOT)) for path in found if path.read_text().strip()}


def _run(node: ast.AST):
    """The nodes below, without what only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING"):
            yield child
            yield from _run(child)


def _modules(node: ast.AST, file: Path) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        package = file.relative_to(ROOT).parts[: -node.level]
        base = ".".join([*package, *([base] if base else [])])
    return [base, *(f"{base}.{alias.name}" for alias in node.names)]


def _files(module: str) -> list[Path]:
    """The file of a module of this repository, and the packages on the way to it."""
    parts = module.split(".")
    if parts[0] != "src":
        return []
    packages = [ROOT.joinpath(*parts[:end], "__init__.py") for end in range(1, len(parts) + 1)]
    return [path for path in [*packages, ROOT.joinpath(*parts).with_suffix(".py")] if path.exists()]


def module_of(stage: dict) -> str:
    words = stage["cmd"].split()
    assert words[:2] == ["python", "-m"], "a path instead of a module would not find src"
    return words[2]


def test_the_walk_finds_late_and_relative_imports():
    found = sources_of(ROOT / "src/pipeline/sweep.py")
    assert {"src/pipeline/params.py", "src/speculative/llama.py", "src/speculative/errors.py"} <= found


@pytest.mark.parametrize("name", STAGES)
def test_dependencies_cover_the_imports(name):
    listed = [path for path in STAGES[name].get("deps", []) if path.startswith("src/")]
    needed = sources_of(ROOT / Path(*module_of(STAGES[name]).split(".")).with_suffix(".py"))
    if STAGES[name].get("always_changed"):
        assert not listed, "it runs every time anyway"
        return
    folders = {path for path in listed if (ROOT / path).is_dir()}
    assert folders <= {"src/speculative"}
    assert all(sum(file.startswith(folder) for file in needed) > 8 for folder in folders)
    single = {file for file in needed if not file.startswith(tuple(folders))}
    assert sorted(listed) == sorted(folders | single)


@pytest.mark.parametrize("name", STAGES)
def test_outputs_are_kept_in_git_and_not_in_the_cache(name):
    for out in STAGES[name].get("outs", []):
        assert isinstance(out, dict) and all(options["cache"] is False for options in out.values()), out
    assert "metrics" not in STAGES[name] and "plots" not in STAGES[name], "these would bring old timings back"


@pytest.mark.parametrize("name", ["baseline", "sweep", "costs"])
def test_what_is_measured_depends_on_the_machine(name):
    assert {"results/machine.json": ["fingerprint"]} in STAGES[name]["params"]
