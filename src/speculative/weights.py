"""Weights as they lie in a directory: safetensors alone, for a pickle can run code."""

from pathlib import Path

import torch

from .errors import ModelError


def read_weights(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of the directory's safetensors files, memory-mapped. Raises ModelError if there are none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(Path(directory).glob("*.safetensors"))
    if not files:
        raise ModelError(f"{directory}: holds no .safetensors file; weights are read from safetensors alone")
    weights = {}
    for file in files:
        try:
            weights |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: not a readable safetensors file ({error})") from error
    return weights
