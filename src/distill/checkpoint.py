"""The trained layers as a small file, and that file joined with its target into a checkpoint of its own.

Eight bits a weight, in groups of 32 with one scale each: the error, at most 0.4 % of a group's largest weight, is far
below what four bits or bfloat16 arithmetic do to a draft, and the output is exact whatever a draft computes.
"""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from src.speculative.checkpoints import COPIED
from src.speculative.errors import ModelError

if TYPE_CHECKING:
    from .student import Student

GROUP = 32
LAYERS_FILE = "layers.safetensors"
VOCAB_FILE = "draft_vocab.json"
FILES = (LAYERS_FILE, VOCAB_FILE)  # all that `export` writes and `join` reads


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 (rows, columns) and float16 scales (rows, groups) of a float matrix; one group a row if 32 does not fit."""
    groups = weight.float().unflatten(1, (-1, GROUP if weight.shape[1] % GROUP == 0 else weight.shape[1]))
    scale = (groups.abs().amax(-1) / 127).clamp(min=1e-7).half()
    return (groups / scale.float()[..., None]).round().clamp(-127, 127).to(torch.int8).flatten(1), scale


def dequantize(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The float32 matrix that `quantize` stands for."""
    return (weight.unflatten(1, (scale.shape[1], -1)) * scale.float()[..., None]).flatten(1)


def export(student: "Student", vocabulary: torch.Tensor, folder: Path) -> None:
    """Writes the trained layers and the draft's vocabulary into `folder`, each file whole or not at all.

    The student's weights become what was written, so that figures measured afterwards are those of the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = {}
    for name, value in student.weights.items():
        if value.dim() == 2:
            stored[name], stored[name + ".scale"] = quantize(value.detach())
            value.data = dequantize(stored[name], stored[name + ".scale"])
        else:
            stored[name] = value.detach().bfloat16()
            value.data = stored[name].float()
    part = folder / f".{LAYERS_FILE}.part"
    save_file(stored, part, metadata={"kept": json.dumps(student.kept)})
    part.chmod(0o644)
    part.replace(folder / LAYERS_FILE)
    part = folder / f".{VOCAB_FILE}.part"
    part.write_text(json.dumps(vocabulary.tolist(), separators=(",", ":")) + "\n", encoding="utf-8")
    part.replace(folder / VOCAB_FILE)


def join(layers_dir: str | Path, target_dir: str | Path, out_dir: str | Path) -> None:
    """A standalone checkpoint in `out_dir`: the trained layers, and everything else from the target.

    layers_dir: what `export` wrote. The weights get the target's dtype; config, tokenizer and `draft_vocab.json`
    (the ids worth keeping in a trimmed head) lie beside them. out_dir: a directory, empty or not there yet; the caller
    sees to it that nobody takes it for whole before this returns.
    Raises ModelError if a file is missing or the layers do not fit the target.
    """
    layers_dir, target_dir, out_dir = Path(layers_dir), Path(target_dir), Path(out_dir)
    source = layers_dir / LAYERS_FILE
    if not source.exists():
        raise ModelError(f"{source}: there are no trained layers; make them with `python -m src.pipeline.distill`")
    target = {k: v for path in sorted(target_dir.glob("*.safetensors")) for k, v in load_file(path).items()}
    with safe_open(source, "pt") as file:
        kept = json.loads(file.metadata()["kept"])
    weights = {name: value for name, value in target.items() if not name.startswith("model.layers.")}
    for name, value in _trained(source).items():
        like = target.get(_origin(name, kept))
        if like is None or like.shape != value.shape:
            raise ModelError(f"{source}: {name!r} does not fit the model in {target_dir}; it was trained from another")
        weights[name] = value.to(like.dtype)
    config = json.loads((target_dir / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = len(kept)
    if config.get("layer_types"):
        config["layer_types"] = [config["layer_types"][old] for old in kept]
    out_dir.mkdir(parents=True, exist_ok=True)
    for file in target_dir.iterdir():
        if file.is_file() and file.suffix in COPIED and "index" not in file.name:
            shutil.copy(file, out_dir / file.name)
    (out_dir / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    shutil.copy(layers_dir / VOCAB_FILE, out_dir / VOCAB_FILE)
    save_file({k: v.contiguous() for k, v in weights.items()}, out_dir / "model.safetensors", metadata={"format": "pt"})


def _trained(path: Path) -> dict:
    stored = load_file(path)
    scales = {name.removesuffix(".scale"): stored.pop(name) for name in list(stored) if name.endswith(".scale")}
    return {name: dequantize(value, scales[name]) if name in scales else value for name, value in stored.items()}


def _origin(name: str, kept: list[int]) -> str:
    """The target's name of a weight of the draft: model.layers.1.x of a draft whose second layer was the ninth."""
    if not name.startswith("model.layers."):
        return name
    number, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"model.layers.{kept[int(number)]}.{rest}" if int(number) < len(kept) else ""
