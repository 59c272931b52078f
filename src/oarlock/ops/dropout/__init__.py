"""Dropout and residual sum in one operator: `residual + keep * x / (1 - p)`.

The decisions are those of `oarlock.ops.random_bits`, so they do not depend on how a batch is split. The bits are kept
for the backward pass (two bytes an element).

Suffixes: T tokens, D features.
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library
from oarlock.ops.dropout import reference
from oarlock.ops.random_bits import keep_bits, keep_scale

library.define(
    "dropout_add_forward", "(Tensor x, Tensor residual, Tensor bits, float scale) -> Tensor", reference.forward
)
library.define("dropout_add_backward", "(Tensor grad, Tensor bits, float scale) -> Tensor", reference.backward)


class _DropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, bits: Tensor, scale: float, form: str) -> Tensor:
        ctx.save_for_backward(bits)
        ctx.scale, ctx.form = scale, form
        out: Tensor = library.namespace(form).dropout_add_forward(x, residual, bits, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (bits,) = ctx.saved_tensors
        return library.namespace(ctx.form).dropout_add_backward(grads[0], bits, ctx.scale), grads[0], None, None, None


def dropout_add(x_TD: Tensor, residual_TD: Tensor, keys_T: Tensor, probability: float, form: str = "auto") -> Tensor:
    """`residual + dropout(x)`, [T, D], with the random decisions of the rows' keys (`random_bits.row_keys`)."""
    bits = keep_bits(keys_T, x_TD.shape[1], probability)
    return library.apply(_DropoutAdd, x_TD, residual_TD, bits, keep_scale(probability), form)
