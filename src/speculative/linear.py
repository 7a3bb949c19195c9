"""A matrix product in the weight format that suits it. (interim: plain and packed; int8 and int4 follow)"""

import torch
import torch.nn.functional as F

LEAST_ROWS_PACKED = 4


def packable(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN can hold a weight of that dtype in its own blocked layout."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32


def pack(weight, bias=None, fmt: str = "plain"):
    if fmt == "packed":
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, LEAST_ROWS_PACKED)
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return lambda x: F.linear(x, weight, bias)
