"""What a directory of weights is, where it came from, and whether it is still what it was made to be."""

import hashlib
import json
from pathlib import Path

from pydantic import ValidationError

from src.pipeline.files import Record, write_json
from src.speculative.checkpoints import PICKLES
from src.speculative.errors import ModelError


class ModelInfo(Record):
    """What the fetch stage stored for one name of the catalogue.

    parameters: numbers in the model, tied ones once, before any quantization. weight_bytes: size of its safetensors.
    """

    slug: str
    source: dict
    parameters: int
    weight_bytes: int
    files: dict[str, str]  # SHA-256 by file name


class Origin(Record):
    """Kept beside the directory: what it was made from, so that it is not made again."""

    recipe: dict
    info: ModelInfo


def sha256(path: Path) -> str:
    """The SHA-256 of a file, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_pickles(directory: Path) -> None:
    """Raises ModelError when the directory holds a file that could be a pickle, for loading one runs its code."""
    for file in sorted(directory.rglob("*")):
        if file.suffix.lower() in PICKLES and file.is_file():
            raise ModelError(
                f"{directory}: holds {file.relative_to(directory)}, which may be a pickle and is not trusted; "
                "allowed: weights as safetensors"
            )


def describe(directory: Path, slug: str, source: dict, parameters: int | None = None) -> ModelInfo:
    """What lies in `directory`; `parameters` where the stored tensors are not the model's own (quantized ones).

    Raises ModelError when config.json or the weights are missing or cannot be read.
    """
    weights = sorted(directory.glob("*.safetensors"))
    if not weights or not (directory / "config.json").is_file():
        raise ModelError(f"{directory}: is no model; allowed: a directory with config.json and *.safetensors")
    return ModelInfo(
        slug=slug,
        source=source,
        parameters=parameters or _count(directory, weights),
        weight_bytes=sum(file.stat().st_size for file in weights),
        files={file.name: sha256(file) for file in sorted(directory.iterdir()) if file.is_file()},
    )


def _count(directory: Path, weights: list[Path]) -> int:
    tied = json.loads((directory / "config.json").read_text()).get("tie_word_embeddings", False)
    total = 0
    for file in weights:
        for name, shape in shapes(file).items():
            if not (tied and name == "lm_head.weight"):
                size = 1
                for rows in shape:
                    size *= rows
                total += size
    return total


def shapes(file: Path) -> dict[str, list[int]]:
    """Names and shapes of the tensors in a safetensors file; ModelError when it is none."""
    try:
        with file.open("rb") as handle:
            header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
        return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, OverflowError, MemoryError):
        raise ModelError(f"{file}: is no safetensors file; allowed: weights as safetensors") from None


def kept(directory: Path, recipe: dict) -> ModelInfo | None:
    """What is known of `directory` if it was made by this recipe and every byte is still the same, else None."""
    try:
        origin = Origin.model_validate_json(_place(directory).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    if origin.recipe != recipe or not directory.is_dir():
        return None
    names = {file.name for file in directory.iterdir()}
    same = names == set(origin.info.files)
    return origin.info if same and all(sha256(directory / n) == h for n, h in origin.info.files.items()) else None


def keep(directory: Path, recipe: dict, info: ModelInfo) -> None:
    """Remember that `directory` was made by this recipe."""
    write_json(_place(directory), Origin(recipe=recipe, info=info))


def _place(directory: Path) -> Path:
    return directory.parent / ".origins" / f"{directory.name}.json"
