"""Global gradient norm in plain torch, in fp32 (fp64 where a gradient is)."""

import torch
from torch import Tensor

from oarlock.ops.random_bits import accumulator


def norm(gradients: list[Tensor]) -> Tensor:
    """Square root of the sum of all squares."""
    squares = [gradient.to(accumulator(gradient.dtype)).square().sum() for gradient in gradients]
    return torch.stack(squares).sum().sqrt()
