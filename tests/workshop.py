"""A small repository to run stages in: params.yaml, three prompts, and tiny random models in models/."""

import functools
import json
import tempfile
from pathlib import Path

from checkpoints import save_checkpoint
from ruamel.yaml import YAML
from typer.testing import CliRunner

ROOT = Path(__file__).parent.parent
PROMPTS = [
    {"id": f"p{i}", "category": ("chat", "code")[i % 2], "prompt": text} for i, text in enumerate(["Hi", "x=", "?"])
]


@functools.cache
def weights(name: str) -> Path:
    """A checkpoint, made once: a target, its first layer as a draft that is often wrong, and a stranger's weights."""
    folder = Path(tempfile.mkdtemp(prefix="tinydraft-")) / name
    kinds = {"target": {}, "draft": {"num_hidden_layers": 1}, "stranger": {"seed": 5, "family": "qwen2"}}
    return save_checkpoint(folder, **kinds[name])


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
