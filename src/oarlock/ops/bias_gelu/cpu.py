"""Bias and GELU on a CPU: compiled kernels, one pass over memory each way."""

import torch
from torch import Tensor

from oarlock.ops import native
from oarlock.ops.bias_gelu import reference

_forward = native.kernel("bias_gelu_forward", "tttiiii")
_backward = native.kernel("bias_gelu_backward", "tttttiiii")


def forward(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """`gelu(x + bias)`."""
    if not native.serves(x, bias):
        return reference.forward(x, bias, tanh)
    native.demand(x.shape[1:] == bias.shape, f"x is {tuple(x.shape)}, the bias {tuple(bias.shape)}")
    x, bias = x.contiguous(), bias.contiguous()
    out = torch.empty_like(x)
    _forward(x, bias, out, *x.shape, tanh, x.dtype == torch.float32)
    return out


def backward(grad: Tensor, x: Tensor, bias: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of the bias in fp32."""
    if not native.serves(grad, x, bias):
        return reference.backward(grad, x, bias, tanh)
    assert grad.shape == x.shape
    grad, x, bias = grad.contiguous(), x.contiguous(), bias.contiguous()
    grad_x, grad_bias = torch.empty_like(x), torch.empty_like(bias, dtype=torch.float32)
    _backward(grad, x, bias, grad_x, grad_bias, *x.shape, tanh, x.dtype == torch.float32)
    return grad_x, grad_bias
