"""A small repository to run stages in: params.yaml, three prompts, and tiny random models in models/."""

import contextlib
import functools
import json
import shutil
import tempfile
from pathlib import Path

from checkpoints import save_checkpoint
from ruamel.yaml import YAML
from typer.testing import CliRunner

ROOT = Path(__file__).parent.parent
PROMPTS = [
    {"id": "a", "category": "chat", "prompt": "Hi"},
    {"id": "b", "category": "code", "prompt": "x="},
    {"id": "c", "category": "chat", "prompt": "?"},
]


@functools.cache
def weights(name: str) -> Path:
    """A checkpoint, made once: a target, a draft that is the target with noise on every weight, and a stranger."""
    folder = Path(tempfile.mkdtemp(prefix="tinydraft-")) / name
    if name == "stranger":
        return save_checkpoint(folder, "qwen2", seed=5)
    save_checkpoint(folder)
    if name == "draft":
        _perturb(folder / "model.safetensors", 0.06)
    return folder


def _perturb(file: Path, share: float) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    chance = torch.Generator().manual_seed(1)
    tensors = load_file(file)
    noisy = {n: t + share * t.std() * torch.randn(t.shape, generator=chance) for n, t in tensors.items()}
    save_file(noisy, file, metadata={"format": "pt"})


def build(folder: Path, **changes) -> Path:
    """Writes the repository into `folder`; `changes` are keys of params.yaml. The models still have to be fetched."""
    yaml = YAML()
    data = yaml.load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    data |= {"targets": ["target"], "drafts": ["draft"], "ks": [1, 3], "dtype": "float32", "threads": 1}
    data |= {"prompts": "prompts/set.jsonl", "max_new_tokens": 9, "repeats": 2}
    data["check"] |= {"prompts": 2, "max_new_tokens": 6}
    data["models"] = {name: {"source": "path", "path": str(weights(name))} for name in ("target", "draft")}
    data["distill"]["of"] = "target"
    data |= changes
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    (folder / "prompts/set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(data, file)
    return folder


@functools.cache
def _template(stages: tuple) -> Path:
    folder = build(Path(tempfile.mkdtemp(prefix="tinydraft-")))
    with contextlib.chdir(folder):
        for arguments in stages:
            run(*arguments)
    return folder


def after(folder: Path, *stages: str) -> Path:
    """The repository in `folder` as it is after these stages, which run once for all tests."""
    template = _template(tuple(tuple(stage.split()) for stage in stages))
    return Path(shutil.copytree(template, folder, dirs_exist_ok=True))


def run(module: str, *arguments) -> str:
    """Runs a stage in the working directory, as `python -m src.pipeline.<module>` does; returns what it printed."""
    result = attempt(module, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(module: str, *arguments) -> str:
    """Runs a stage that must fail in the way that is promised, and returns its one sentence."""
    result = attempt(module, *arguments)
    assert result.exit_code == 1, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("error: ")
    return result.stderr.removeprefix("error: ").strip()


def attempt(module: str, *arguments):
    """The outcome of a stage, however it ended."""
    from importlib import import_module

    app = import_module(f"src.pipeline.{module}").app
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def files() -> set[str]:
    """Every file below the working directory, the prompts and params apart."""
    found = {str(path) for path in Path().rglob("*") if path.is_file()}
    return found - {"params.yaml", "prompts/set.jsonl"}
