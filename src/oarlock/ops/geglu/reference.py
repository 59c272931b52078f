"""GeGLU in plain torch, in fp32 (fp64 where x is)."""

import torch
from torch import Tensor
from torch.nn.functional import gelu

from oarlock.ops.bias_gelu.reference import slope
from oarlock.ops.random_bits import accumulator


def forward(x: Tensor) -> Tensor:
    """`gelu(a) * b` with a, b = the halves of x."""
    a, b = x.to(accumulator(x.dtype)).chunk(2, dim=-1)
    return (gelu(a) * b).to(x.dtype)


def backward(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient with respect to both halves, in one tensor."""
    a, b = x.to(accumulator(x.dtype)).chunk(2, dim=-1)
    return torch.cat([grad * b * slope(a), grad * gelu(a)], dim=-1).to(x.dtype)
