"""Bias and GELU in plain torch, in fp32 (fp64 where x is)."""

import math

import torch
from torch import Tensor
from torch.nn.functional import gelu

from oarlock.ops.random_bits import accumulator


def forward(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """`gelu(x + bias)`."""
    wide = x.to(accumulator(x.dtype)) + bias
    return gelu(wide, approximate="tanh" if tanh else "none").to(x.dtype)


def backward(grad: Tensor, x: Tensor, bias: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of the bias in fp32: the sums of the former before it is rounded."""
    wide = x.to(accumulator(x.dtype)) + bias
    grad_x = grad * (_tanh_slope(wide) if tanh else slope(wide))
    return grad_x.to(x.dtype), grad_x.sum(dim=0)


def slope(x: Tensor) -> Tensor:
    """Derivative of the exact GELU: `Phi(x) + x phi(x)`."""
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density


def _tanh_slope(x: Tensor) -> Tensor:
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    bent = torch.tanh(root * (x + cubic * x**3))
    return 0.5 * (1 + bent) + 0.5 * x * (1 - bent * bent) * root * (1 + 3 * cubic * x * x)
