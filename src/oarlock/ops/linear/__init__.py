"""A linear layer whose weight gradient is summed, and returned, in fp32.

    y = x W^T + b        dx = dy W        dW = dy^T x        db = column sums of dy

The two products that give activations are torch's own (oneDNN, cuBLAS). A weight's gradient adds up thousands of
tokens; here it is never rounded to bf16, so what the optimizer and a second micro-batch add to is exact. Its parameter
must accept it (`Tensor.grad_dtype`, see `parallel/local.py`). It may also be put off, for nothing in a backward pass
waits for it: then a caller is handed the product, to run when it suits.

Suffixes: T tokens, I inputs, O outputs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from oarlock.ops import library, native
from oarlock.ops.linear import cpu, reference

library.define("weight_gradient", "(Tensor grad, Tensor x) -> Tensor", reference.weight_gradient)
library.define("column_sums", "(Tensor x) -> Tensor", reference.column_sums)
if native.level() is None:
    library.register_form("linear", "cpu", "torch products", {"weight_gradient": cpu.weight_product})
else:
    native.register("linear", {"weight_gradient": cpu.weight_gradient, "column_sums": cpu.column_sums})
library.register_cuda("linear", "cublas", {"weight_gradient": "weight_gradient", "column_sums": "column_sums"})


Later = Callable[[Callable[[], None]], None]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, form: str, later: tuple[Later, Tensor] | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.form, ctx.has_bias, ctx.later = form, bias is not None, later
        return torch_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        operators = library.namespace(ctx.form)
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        grad_bias = operators.column_sums(grad) if ctx.has_bias else None
        if ctx.later is not None:
            put_off, leaf = ctx.later
            put_off(lambda: torch.autograd.backward([leaf], [operators.weight_gradient(grad, x)]))
            return grad_x, None, grad_bias, None, None
        return grad_x, operators.weight_gradient(grad, x), grad_bias, None, None


def linear(
    x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, form: str = "auto", put_off: Later | None = None
) -> Tensor:
    """`x W^T + b`, [T, O].

    With `put_off` the backward pass hands it a function that adds the gradient of the weight, a leaf, to its `grad`.
    """
    out: Tensor
    if put_off is None:
        out = library.apply(_Linear, x_TI, weight_OI, bias_O, form, None)
    else:
        out = library.apply(_Linear, x_TI, weight_OI.detach(), bias_O, form, (put_off, weight_OI))
    return out
