"""A model's weights in 4 or 8 bits: cheap to read, nearly always right, and so a draft of the model that they are from.

Weight-only: activations stay in floating point. Four bits have a scale and a zero for each group of columns, chosen to
minimize the squared error; eight bits have one scale a row, for that is what the kernel multiplies. The head and the
embedding are always in eight bits: the head picks the token, and its error costs more acceptance than the rest's.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from .checkpoints import COPIED
from .errors import ModelError
from .weights import read_weights

CONFIG_KEY = "tinydraft_quantization"
SHRINK = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)  # of a group's range: values beyond it are clipped
REFITS = 3
ROWS_AT_ONCE = 4096  # bounds the memory of the search
EIGHT_BITS = ("lm_head.weight", "model.embed_tokens.weight")
GROUP_SIZES = (32, 64, 128, 256)  # that the kernel for four bits takes
VECTOR = 32  # the kernel for eight bits reads whole vectors, and beyond the row's end if they do not fit


@dataclass
class Groups:
    """A matrix (rows, columns) in groups of columns.

    bits 4: values uint8 0..15, weight = (values - 8) * scale + zero. bits 8: values int8, weight = values * scale.
    scale, zero: bfloat16 (rows, groups), as the kernels take them; zero is None for 8 bits.
    """

    bits: int
    values: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: torch.Tensor) -> "Groups":
        return Groups(self.bits, self.values[rows], self.scale[rows], None if self.zero is None else self.zero[rows])

    def dequantize(self) -> torch.Tensor:
        """The float32 matrix (rows, columns) that these numbers stand for."""
        groups = self.values.float().unflatten(1, (self.scale.shape[1], -1))
        scale = self.scale.float()[..., None]
        groups = groups * scale if self.zero is None else (groups - 8) * scale + self.zero.float()[..., None]
        return groups.flatten(1)


def refuse_shape(weight: Groups) -> None:
    """Raises ModelError if no kernel multiplies a weight of this shape and group size."""
    (rows, columns), groups = weight.values.shape, weight.scale.shape[1]
    if weight.bits == 8 and (groups != 1 or columns % VECTOR):
        raise ModelError(
            f"a weight of {rows} x {columns} with {groups} scales a row cannot be multiplied in 8 bits; allowed: "
            f"columns that {VECTOR} divides, and one scale a row (no group_size)"
        )
    if weight.bits == 4 and (rows % 16 or columns // groups not in GROUP_SIZES):
        raise ModelError(
            f"a weight of {rows} x {columns} in groups of {columns // groups} cannot be multiplied in 4 bits; "
            f"allowed: rows that 16 divides, and groups of {', '.join(map(str, GROUP_SIZES))}"
        )


def stack(parts: list[Groups]) -> Groups:
    """One matrix with the rows of all parts, in order; they share bits and group size."""
    first = parts[0]
    zero = None if first.zero is None else torch.cat([part.zero for part in parts])
    return Groups(first.bits, torch.cat([p.values for p in parts]), torch.cat([p.scale for p in parts]), zero)


def quantize(weight: torch.Tensor, bits: int, group_size: int | None = None) -> Groups:
    """The closest `Groups` found for a float matrix (rows, columns), on any dtype.

    Raises ModelError if bits is not 4 or 8, or if group_size does not divide the columns.
    """
    if bits == 8:
        scale = (weight.float().abs().amax(1, keepdim=True) / 127).clamp(min=1e-9).bfloat16()
        values = (weight.float() / scale.float()).round().clamp(-127, 127)
        return Groups(8, values.to(torch.int8), scale)
    if bits != 4:
        raise ModelError(f"weights cannot be quantized to {bits} bits; allowed: 4 or 8")
    columns = weight.shape[1]
    if not group_size or columns % group_size:
        raise ModelError(f"group_size {group_size} does not divide {columns} columns; allowed: one that divides them")
    pieces = [_search(piece.float().unflatten(1, (-1, group_size))) for piece in weight.split(ROWS_AT_ONCE)]
    values, scale, zero = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return Groups(4, values.flatten(1).to(torch.uint8), scale, zero)


def _search(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values, scale and zero of the least squared error over groups (rows, groups, size), each group by itself.

    From several ranges, values and the line through them are fitted in turn, as k-means does with its means; errors
    are those after rounding scale and zero to bfloat16, for the kernels read those.
    """
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    best = None
    for shrink in SHRINK:
        scale = (shrink * (high - low) / 15).clamp(min=1e-8)
        zero = (high + low) / 2 + scale / 2
        for _ in range(REFITS):
            scale, zero = scale.bfloat16().float(), zero.bfloat16().float()
            values = ((groups - zero) / scale).round().clamp(-8, 7)
            error = (values * scale + zero - groups).square().sum(-1, keepdim=True)
            if best is None:
                best = [error, values, scale, zero]
            else:
                better = error < best[0]
                new = (error, values, scale, zero)
                best = [torch.where(better, n, old) for n, old in zip(new, best, strict=True)]
            scale, zero = _line(values, groups, scale)
    _, values, scale, zero = best
    return values + 8, scale[..., 0].bfloat16(), zero[..., 0].bfloat16()


def _line(values: torch.Tensor, groups: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Slope and intercept of the least-squares line groups ~ values; the old slope where all values are the same."""
    mean_v, mean_g = values.mean(-1, keepdim=True), groups.mean(-1, keepdim=True)
    spread = (values - mean_v).square().sum(-1, keepdim=True)
    slope = ((values - mean_v) * (groups - mean_g)).sum(-1, keepdim=True) / spread.clamp(min=1e-12)
    slope = torch.where((spread > 0) & (slope > 0), slope, scale)
    return slope, mean_g - slope * mean_v


def quantize_weights(weights: dict[str, torch.Tensor], bits: int, group_size: int | None = 32) -> dict:
    """Transformers' weights with every matrix as `Groups`; norms and biases stay as they are.

    Raises ModelError, with the weight's name, where `quantize` does and for sizes that no kernel multiplies.
    """
    found = {}
    for name, weight in weights.items():
        try:
            eight = bits == 8 or name in EIGHT_BITS
            found[name] = quantize(weight, 8 if eight else bits, group_size) if weight.dim() == 2 else weight
            if weight.dim() == 2:
                refuse_shape(found[name])
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from None
    return found


def quantize_checkpoint(source: str | Path, target: str | Path, bits: int, group_size: int | None = None) -> None:
    """Writes the model in directory `source`, quantized, into the empty or missing directory `target`.

    The result has config (with the key `tinydraft_quantization`), tokenizer and one safetensors file. Raises
    ModelError for sizes that the kernels do not take, before anything is written.
    """
    from safetensors.torch import save_file

    source, target = Path(source), Path(target)
    try:
        weights = quantize_weights(read_weights(source), bits, group_size)
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from None
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config[CONFIG_KEY] = {"bits": bits, "group_size": group_size}
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix in COPIED and "index" not in file.name:
            shutil.copy(file, target / file.name)
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    save_file(_stored(weights), target / "model.safetensors", metadata={"format": "pt"})


def _stored(weights: dict) -> dict[str, torch.Tensor]:
    """Plain tensors: four-bit values two to a byte, the even column in the low half."""
    stored = {}
    for name, weight in weights.items():
        if not isinstance(weight, Groups):
            stored[name] = weight.contiguous()
            continue
        values = weight.values
        stored[name] = values if weight.bits == 8 else values[:, 0::2] | values[:, 1::2] << 4
        stored[name + ".scale"] = weight.scale
        if weight.zero is not None:
            stored[name + ".zero"] = weight.zero
    return stored


def load_quantized(directory: str | Path) -> dict:
    """What `quantize_checkpoint` wrote: transformers' parameter names to tensors or `Groups`."""
    stored = read_weights(Path(directory))
    found = {}
    for name, tensor in stored.items():
        if name.endswith((".scale", ".zero")):
            continue
        scale, zero = stored.get(name + ".scale"), stored.get(name + ".zero")
        if scale is None:
            found[name] = tensor
        elif zero is None:
            found[name] = Groups(8, tensor, scale)
        else:
            values = torch.stack((tensor & 15, tensor >> 4), -1).flatten(1)
            found[name] = Groups(4, values, scale, zero)
    return found
