"""What a forward pass must at least cost: the bytes that it reads, over how fast this machine reads memory.

A pass over one sequence reads every weight once and the keys and values of all positions so far; its arithmetic is
small beside that. Pope et al. 2022 (arXiv 2211.05102), section 2; Williams et al. 2009 (roofline).
"""

import json
import math
from pathlib import Path

from src.speculative.errors import ModelError

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
STORED_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1}  # four-bit numbers lie two to a byte
READ_BYTES = 2**29  # far more than a processor's caches hold
REPEATS = 5


def read_bandwidth(device: str) -> float:
    """Bytes a second that this machine reads from memory with torch's threads: the fastest of several plain reads.

    A matrix of 512 MiB is multiplied with a vector, and summed. The best of all is taken, for what disturbs a read
    makes it slower only.
    """
    import torch

    matrix = torch.ones(2**14, READ_BYTES // 4 // 2**14, device=device)
    vector = torch.ones(matrix.shape[1], device=device)
    reads = (lambda: matrix @ vector, matrix.sum)
    return matrix.nbytes / min(_seconds(read, device) for _ in range(REPEATS) for read in reads)


def arithmetic(device: str, dtype: str) -> float:
    """Floating-point operations a second of a square matrix product, in `dtype` or float32, whichever is faster.

    A processor that has no products in a half-precision type emulates them, slowly, and widens in fact.
    """
    import torch

    from src.speculative.linear import multiplies

    size = 768 if device == "cpu" else 4096
    best, kinds = 0.0, {torch.float32}
    if dtype != "float32" and (device != "cpu" or multiplies(getattr(torch, dtype))):
        kinds.add(getattr(torch, dtype))
    for kind in kinds:
        square = torch.ones(size, size, device=device, dtype=kind)
        spent = min(_seconds(lambda square=square: square @ square, device) for _ in range(3))
        best = max(best, 2 * size**3 / spent)
    return best


def _seconds(work, device: str) -> float:
    import torch

    from src.speculative.stats import now

    begun = now(torch.device(device))
    work()
    return now(torch.device(device)) - begun


def weights_read(directory: Path, dtype: str, head_rows: int | None = None, bits: int | None = None) -> tuple[int, int]:
    """(bytes, numbers) of the weights that a pass reads: all but an embedding that is not also the head.

    Weights count in `dtype`, stored quantized ones as they are. head_rows: how many rows of the head are computed,
    where not all are. bits: 4 or 8, of weights that are quantized when they are loaded. Raises ModelError when the
    directory holds no readable weights.
    """
    tensors = {name: entry for file in sorted(directory.glob("*.safetensors")) for name, entry in _header(file).items()}
    if not tensors:
        raise ModelError(f"{directory}: holds no .safetensors file; allowed: a model's directory")
    head = "lm_head." if "lm_head.weight" in tensors else "model.embed_tokens."
    total = count = 0
    for name, entry in tensors.items():
        if name.startswith("model.embed_tokens.") and head != "model.embed_tokens.":
            continue
        shape = [head_rows, *entry["shape"][1:]] if head_rows and name.startswith(head) else entry["shape"]
        size, extra = math.prod(shape), name.endswith((".scale", ".zero"))
        if extra or f"{name}.scale" in tensors:
            total += size * STORED_BYTES[entry["dtype"]]
        elif bits and len(shape) == 2:
            total += _quantized(shape, 8 if name.startswith(head) else bits)
        else:
            total += size * ITEM_BYTES[dtype]
        count += 0 if extra else size * (2 if f"{name}.zero" in tensors else 1)
    return total, count


def _quantized(shape: list[int], bits: int) -> int:
    """Bytes of a matrix in 8 bits with a two-byte scale a row, or in 4 with scale and zero for each 32 columns."""
    rows, columns = shape
    return rows * (columns + 2) if bits == 8 else rows * (columns // 2 + 4 * columns // 32)


def cache_bytes(directory: Path, positions: int, dtype: str) -> int:
    """Bytes of keys and values that a pass reads after `positions` tokens; 0 where config.json does not say."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    heads = config.get("num_attention_heads", 0)
    width = config.get("head_dim") or (config.get("hidden_size", 0) // heads if heads else 0)
    keys = config.get("num_key_value_heads", heads)
    return 2 * config.get("num_hidden_layers", 0) * keys * width * positions * ITEM_BYTES[dtype]


def _header(file: Path) -> dict:
    try:
        with file.open("rb") as handle:
            header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
        return {name: entry for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, OverflowError, MemoryError):
        raise ModelError(f"{file}: is no safetensors file; allowed: weights as safetensors") from None
