"""Dropout and residual sum in plain torch."""

import torch
from torch import Tensor

from oarlock.ops.random_bits import keep_


def forward(x: Tensor, residual: Tensor, bits: Tensor, scale: float) -> Tensor:
    """`residual + keep * x * scale`."""
    return torch.add(residual, keep_(x.clone(memory_format=torch.contiguous_format), bits), alpha=scale)


def backward(grad: Tensor, bits: Tensor, scale: float) -> Tensor:
    """Gradient with respect to x."""
    return keep_(grad * scale, bits)
