"""Bias and GELU in one pass: `gelu(x + bias)` (Hendrycks and Gimpel, 2016, arXiv:1606.08415).

Exact, `x * Phi(x)`, or the approximation by tanh of the same paper, which the first BERT used. The product before it
then needs no bias of its own; the backward pass gives the gradient of x and its column sums, the bias's, at once.

Suffixes: T tokens, I features.
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library, native
from oarlock.ops.bias_gelu import cpu, reference

library.define("bias_gelu_forward", "(Tensor x, Tensor bias, bool tanh) -> Tensor", reference.forward)
library.define(
    "bias_gelu_backward", "(Tensor grad, Tensor x, Tensor bias, bool tanh) -> (Tensor, Tensor)", reference.backward
)
native.register("bias_gelu", {"bias_gelu_forward": cpu.forward, "bias_gelu_backward": cpu.backward})
library.register_cuda("bias_gelu", "triton", {"bias_gelu_forward": "forward", "bias_gelu_backward": "backward"})


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, tanh: bool, form: str) -> Tensor:
        ctx.save_for_backward(x, bias)
        ctx.tanh, ctx.form = tanh, form
        out: Tensor = library.namespace(form).bias_gelu_forward(x, bias, tanh)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        return *library.namespace(ctx.form).bias_gelu_backward(grads[0], x, bias, ctx.tanh), None, None


def bias_gelu(x_TI: Tensor, bias_I: Tensor, tanh: bool = False, form: str = "auto") -> Tensor:
    """`gelu(x + bias)`, [T, I]; `tanh` takes the approximation."""
    out: Tensor = library.apply(_BiasGelu, x_TI, bias_I, tanh, form)
    return out
