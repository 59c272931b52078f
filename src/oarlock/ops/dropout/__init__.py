"""Dropout and residual sum in one operator: `residual + keep * x / (1 - p)`.

The decisions are those of `oarlock.ops.random_bits`, so they do not depend on how a batch is split. The mask is kept
for the backward pass (one byte an element).

Suffixes: T tokens, D features.
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library
from oarlock.ops.dropout import reference
from oarlock.ops.random_bits import keep_mask, keep_scale

library.define(
    "dropout_add_forward", "(Tensor x, Tensor residual, Tensor keep, float scale) -> Tensor", reference.forward
)
library.define("dropout_add_backward", "(Tensor grad, Tensor keep, float scale) -> Tensor", reference.backward)


class _DropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, keep: Tensor, scale: float, form: str) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale, ctx.form = scale, form
        out: Tensor = library.namespace(form).dropout_add_forward(x, residual, keep, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (keep,) = ctx.saved_tensors
        return library.namespace(ctx.form).dropout_add_backward(grads[0], keep, ctx.scale), grads[0], None, None, None


def dropout_add(x_TD: Tensor, residual_TD: Tensor, keys_T: Tensor, probability: float, form: str = "auto") -> Tensor:
    """`residual + dropout(x)`, [T, D], with the random decisions of the rows' keys (`random_bits.row_keys`)."""
    keep = keep_mask(keys_T, x_TD.shape[1], probability)
    return library.apply(_DropoutAdd, x_TD, residual_TD, keep, keep_scale(probability), form)
