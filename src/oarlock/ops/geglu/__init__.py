"""GeGLU: `gelu(a) * b` for the two halves of one projection (Shazeer, 2020, arXiv:2002.05202), exact GELU.

The halves come and their gradients go as one tensor, so that no concatenation is left to autograd. The activation is
computed anew in the backward pass.

Suffixes: T tokens, I features of each half.
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library, native
from oarlock.ops.geglu import cpu, reference

library.define("geglu_forward", "(Tensor x) -> Tensor", reference.forward)
library.define("geglu_backward", "(Tensor grad, Tensor x) -> Tensor", reference.backward)
library.register_cuda("geglu", "triton", {"geglu_forward": "forward", "geglu_backward": "backward"})
native.register("geglu", {"geglu_forward": cpu.forward, "geglu_backward": cpu.backward})


class _GeGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, form: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.form = form
        out: Tensor = library.namespace(form).geglu_forward(x)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return library.namespace(ctx.form).geglu_backward(grads[0], x), None


def geglu(x_T2I: Tensor, form: str = "auto") -> Tensor:
    """`gelu(x[:, :I]) * x[:, I:]`, [T, I]."""
    out: Tensor = library.apply(_GeGLU, x_T2I, form)
    return out
