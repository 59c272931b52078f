"""Dropout and residual sum in plain torch."""

import torch
from torch import Tensor


def forward(x: Tensor, residual: Tensor, keep: Tensor, scale: float) -> Tensor:
    """`residual + keep * x * scale`."""
    return torch.addcmul(residual, x, keep.to(x.dtype), value=scale)


def backward(grad: Tensor, keep: Tensor, scale: float) -> Tensor:
    """Gradient with respect to x."""
    return (grad * scale).mul_(keep)
