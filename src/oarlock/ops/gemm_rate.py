"""How fast the machine multiplies matrices: the limit that a step is measured against."""

import statistics
import time

import torch
from torch.nn.functional import linear


def gemm_rate(device: torch.device, dtype: torch.dtype, size: int = 2048, repeats: int = 5) -> float:
    """Rate of a linear layer of `size` tokens, inputs and outputs, in FLOP/s: the median of `repeats` timings."""
    x = torch.randn(size, size, device=device).to(dtype)
    weight = torch.randn(size, size, device=device).to(dtype)
    calls = 20 if device.type == "cuda" else 1

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            linear(x, weight)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / calls

    seconds()  # the first call chooses and builds a kernel
    return 2 * size**3 / statistics.median(seconds() for _ in range(repeats))
