"""Devices by name, and what a pass costs on one: the roofline of memory and arithmetic.

Williams et al. 2009, "Roofline". Figures are the makers' own for dense matrix products in 16-bit floating point with
32-bit sums; a pass reaches 60 to 90 % of the bandwidth, so times made of them are the least that is possible.
"""

from typing import NamedTuple

from src.speculative.errors import SettingsError
from src.speculative.theory import best_k, break_even_alpha, speedup

WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5625}  # int4: a scale per 32


class Device(NamedTuple):
    """bandwidth: bytes a second of its memory. arithmetic: operations a second; None where nobody says."""

    bandwidth: float
    arithmetic: float | None
    source: str


DEVICES = {
    "m1": Device(68.25e9, 2.6e12, "Apple, M1 (2020): 2.6 TFLOPS; LPDDR4X-4266 on 128 bits"),
    "m1-max": Device(400e9, 10.4e12, "Apple newsroom, M1 Pro and M1 Max (2021)"),
    "m2-ultra": Device(800e9, 27.2e12, "Apple newsroom, M2 Ultra (2023)"),
    "m3-max": Device(400e9, None, "Apple, MacBook Pro (2023), 40-core GPU; Apple gives no arithmetic"),
    "m4-max": Device(546e9, None, "Apple newsroom, M4 Max (2024), 40-core GPU; Apple gives no arithmetic"),
    "m5": Device(153e9, None, "Apple newsroom, M5 (2025); Apple gives no arithmetic"),
    "rtx-3090": Device(936e9, 71e12, "NVIDIA, Ampere GA102 whitepaper"),
    "rtx-4090": Device(1008e9, 165.2e12, "NVIDIA, Ada GPU architecture whitepaper"),
    "a100": Device(2039e9, 312e12, "NVIDIA, A100 80GB SXM datasheet"),
    "h100": Device(3350e9, 989.4e12, "NVIDIA, H100 SXM datasheet"),
    "h200": Device(4800e9, 989.4e12, "NVIDIA, H200 SXM datasheet"),
}


def pass_seconds(device: Device, parameters: float, weight_bytes: float, rows: int) -> float:
    """A pass over `rows` rows of all sequences together: reading the weights or computing, whichever takes longer.

    parameters: numbers in the model; weight_bytes: bytes of each.
    """
    reading = parameters * weight_bytes / device.bandwidth
    return max(reading, 2 * parameters * rows / device.arithmetic) if device.arithmetic else reading


class Advice(NamedTuple):
    """What a pair does at a batch size. plain, speculative: tokens a second, all sequences together; k = 0: no draft.

    break_even: the constant α above which the best k pays, None if none does; bound: what limits the verifying pass.
    """

    batch: int
    plain: float
    speculative: float
    k: int
    factor: float
    break_even: float | None
    bound: str


class Pair(NamedTuple):
    """Parameters and bytes a weight of target and draft."""

    target: float
    draft: float
    target_bytes: float
    draft_bytes: float


def advise(device: Device, pair: Pair, acceptance, ks: list[int], batch: int) -> Advice:
    """The roofline's prediction for `batch` sequences decoded together; raises SettingsError for a batch below 1.

    A verifying pass has batch x (k + 1) rows, so it reaches the arithmetic's limit k + 1 times as early as a pass of
    plain decoding does: that is why a draft pays less as batches grow.
    """
    if batch < 1:
        raise SettingsError(f"batch: {batch} cannot be used; allowed: a whole number from 1")

    def target(rows: int) -> float:
        return pass_seconds(device, pair.target, pair.target_bytes, batch * rows)

    one_row = target(1)
    c = pass_seconds(device, pair.draft, pair.draft_bytes, batch) / one_row
    v = [target(rows) / one_row for rows in range(1, max(ks) + 2)]
    k, factor = best_k(acceptance, [0, *ks], c, v)
    tried = k or max(ks, key=lambda other: speedup(acceptance, other, c, v))
    reading = pair.target * pair.target_bytes / device.bandwidth
    return Advice(
        batch=batch,
        plain=batch / one_row,
        speculative=factor * batch / one_row,
        k=k,
        factor=factor,
        break_even=break_even_alpha(tried, c, v),
        bound="bandwidth" if target(tried + 1) <= reading else "arithmetic",
    )
