"""Loading a target, its draft and the tokenizer, from a directory or from the hub at a pinned revision.

Weights are read from safetensors alone: a pickle can run code, and remote code is never trusted.
"""

import json
import re
from pathlib import Path

import torch

from .checkpoints import PICKLES, WANTED
from .errors import DownloadError, ModelError, TinydraftError
from .invariance import make_exact
from .linear import best_format
from .llama import Llama, unsupported
from .models import CausalLM, FastModel, TransformersModel
from .quantize import CONFIG_KEY, load_quantized, quantize_weights
from .vocabulary import count_ids, reconcile
from .weights import read_weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEFAULT_TARGET, DEFAULT_DRAFT = "models/smollm2-135m", "models/smollm2-draft"
HUB_NAME = re.compile(r"^(?P<repo>[\w.-]+/[\w.-]+)@(?P<revision>.*)$")


def load_models(
    target: str | Path = DEFAULT_TARGET,
    draft: str | Path | None = DEFAULT_DRAFT,
    *,
    device: str = "cpu",
    dtype: str | torch.dtype | None = None,
    exact: bool | None = None,
    draft_vocab: torch.Tensor | None = None,
    draft_quantization: int | None = None,
    compile: bool = False,
):
    """(target, draft, tok): two models ready to decode, and the tokenizer that they share.

    target, draft: a directory, or "repo@revision" on the hub with the revision's 40 hex digits; draft=None loads none.
    dtype: None is that of the stored weights. exact: True demands a width-invariant target (ModelError where the
    machine allows none), None takes it where it holds, False leaves it. draft_vocab: int64 ids that the draft's head
    keeps. draft_quantization: 4 or 8, bits of the draft's weights; by default as they are stored. compile: have torch
    compile the layers of both, which takes up to a minute once on a machine, and seconds later on.
    Raises ModelError or DownloadError, and ModelError if the two tokenizers differ in any real id.
    """
    device = check_device(device)
    target_dir = locate(target)
    tok = load_tokenizer(target_dir)
    big = load_model(target_dir, device=device, dtype=dtype, compile=compile)
    big.real_ids = count_ids(tok)
    if exact is not False and not make_exact(big) and exact:
        raise ModelError(
            f"exact: {target} has no width-invariant pass on {device} in {_name(big.dtype)}; allowed is false or none"
        )
    if draft is None:
        return big, None, tok
    draft_dir = locate(draft)
    vocabulary = reconcile(tok, load_tokenizer(draft_dir))
    small = load_model(
        draft_dir, device=device, dtype=dtype, vocab=draft_vocab, bits=draft_quantization, compile=compile
    )
    small.real_ids = vocabulary.draft_size
    return big, small, tok


def load_model(
    source: str | Path,
    *,
    device="cpu",
    dtype: str | torch.dtype | None = None,
    vocab=None,
    bits: int | None = None,
    compile: bool = False,
) -> CausalLM:
    """One model with an empty cache; arguments as for `load_models`. Raises ModelError or DownloadError."""
    from transformers import AutoConfig

    device, directory = check_device(device), locate(source)
    config = _quietly(AutoConfig.from_pretrained, directory, "config.json")
    dtype = as_dtype(dtype or getattr(config, "dtype", None) or torch.float32)
    try:
        why = unsupported(config)
        if why is None:
            model = FastModel(_network(directory, config, device, dtype, vocab, bits, compile), token_ids=vocab)
        elif vocab is not None or bits is not None or compile:
            raise ModelError(
                f"{directory}: {why} runs through transformers, so it cannot be trimmed, quantized or compiled"
            )
        else:
            model = _through_transformers(directory, device, dtype)
    except (MemoryError, RuntimeError) as error:
        if not _memory(error):
            raise
        raise ModelError(f"{directory}: not enough memory on {device} for weights in {_name(dtype)}") from error
    model.eos_ids = _eos_ids(directory, config)
    return model


def _network(directory: Path, config, device, dtype, vocab, bits, compile) -> Llama:
    stored = getattr(config, CONFIG_KEY, None)
    if (stored or bits) and device.type != "cpu":
        raise ModelError(f"{directory}: weights of 4 or 8 bits have kernels on the CPU alone; device is {device}")
    fmt = best_format(device, dtype)
    weights = load_quantized(directory) if stored else read_weights(directory)
    if bits and not stored:
        weights = quantize_weights(weights, bits)
    if compile:
        from .compiled import CompiledLlama as kind
    else:
        kind = Llama
    return kind(config, weights, device=device, dtype=dtype, head_ids=vocab, product=fmt)


def _through_transformers(directory: Path, device, dtype) -> TransformersModel:
    from transformers import AutoModelForCausalLM

    def load(path):
        return AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, use_safetensors=True, trust_remote_code=False, local_files_only=True
        )

    return TransformersModel(_quietly(load, directory, "weights").to(device).eval())


def load_tokenizer(directory: Path):
    """The directory's tokenizer. Raises ModelError if there is none."""
    from transformers import AutoTokenizer

    return _quietly(AutoTokenizer.from_pretrained, Path(directory), "tokenizer")


def locate(name: str | Path) -> Path:
    """The local directory of a model's name; a hub name is downloaded at its revision, or found in the hub's cache."""
    if not isinstance(name, str | Path) or not str(name):
        raise ModelError(f'{name!r} is no model; allowed: a directory, or "repo@revision" on the hub')
    directory = Path(name)
    if directory.is_dir():
        return _checked(directory)
    if match := HUB_NAME.match(str(name)):
        return _checked(download(match["repo"], match["revision"]))
    ours = directory.parts[:1] == ("models",) and len(directory.parts) == 2
    hint = f"run `python -m src.pipeline.fetch {directory.name}`" if ours else 'give a directory or "repo@revision"'
    raise ModelError(f"{name}: there is no such directory; {hint}")


def _checked(directory: Path) -> Path:
    for file in sorted(directory.iterdir()):
        if file.suffix.lower() in PICKLES:
            raise ModelError(
                f"{file}: a pickle can run code; a model's directory may hold weights as safetensors alone"
            )
    if not (directory / "config.json").is_file():
        raise ModelError(f"{directory}: holds no config.json, so it is not a model's directory")
    # Here, for the tokenizer is loaded first, and reads it too: the error would name the tokenizer.
    _quietly(lambda _: json.loads((directory / "config.json").read_text(encoding="utf-8")), directory, "config.json")
    return directory


def download(repo: str, revision: str) -> Path:
    """Fetches a repository's safetensors, config and tokenizer from the hub. Raises DownloadError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # it tries six times, and would tell of each
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise DownloadError(
            f"{repo}@{revision}: a revision is the 40 hex digits of a commit; a branch or tag may change under you"
        )
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(WANTED)))
    except GatedRepoError as error:
        raise DownloadError(f"{repo}: the hub asks for an account that may read it") from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise DownloadError(f"{repo}@{revision}: the hub has no such repository or revision") from error
    except Exception as error:  # what a broken connection raises depends on the hub's client and its backends
        raise DownloadError(f"{repo}@{revision}: could not be fetched from the hub ({_first_line(error)})") from error


def check_device(device: str | torch.device) -> torch.device:
    """The device, if it is there. Raises ModelError."""
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        raise ModelError(f"device: {device!r} is not a device; allowed are cpu, cuda and mps") from None
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present.get(device.type):
        here = ", ".join(name for name, there in present.items() if there)
        raise ModelError(f"device: {device} is not on this machine; here are {here}")
    return device


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A torch dtype by name or by itself. Raises ModelError for one that weights cannot have."""
    dtype = DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if dtype not in DTYPES.values():
        raise ModelError(f"dtype: {dtype} is not one of {', '.join(DTYPES)}")
    return dtype


def _eos_ids(directory: Path, config) -> tuple[int, ...]:
    file = Path(directory) / "generation_config.json"
    ids = _quietly(lambda _: json.loads(file.read_text()).get("eos_token_id"), file, "JSON") if file.is_file() else None
    ids = config.get_text_config().eos_token_id if ids is None else ids
    return () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)


def _quietly(load, directory: Path, what: str):
    """Calls one of transformers' loaders, and turns whatever it raises into one sentence."""
    try:
        return load(str(directory))
    except (TinydraftError, MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # transformers raises a dozen types for a broken file
        raise ModelError(f"{directory}: the {what} cannot be read ({_first_line(error)})") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _memory(error: BaseException) -> bool:
    """Whether it says that memory ran out; on the CPU torch has no type of its own for that."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
