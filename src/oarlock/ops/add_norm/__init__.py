"""Dropout, residual sum and LayerNorm as one operator.

    total = residual + keep * x / (1 - p)
    normed = (total - mean) / sqrt(variance + epsilon) * weight + bias      (Ba et al., 2016, arXiv:1607.06450)

A post-norm layer goes on with `normed`; a pre-norm layer with both, `total` being its residual stream. The statistics
are those of `total` as it is stored, rounded to its type. The backward pass reads `total` and the statistics, and
draws the same dropout decisions again from the rows' keys (`random_bits`).

Suffixes: T tokens, D features.
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library, native
from oarlock.ops.add_norm import cpu, reference

library.define(
    "add_norm_forward",
    "(Tensor x, Tensor residual, Tensor weight, Tensor? bias, float epsilon, Tensor keys, float dropout)"
    " -> (Tensor, Tensor, Tensor)",
    reference.forward,
)
library.define(
    "add_norm_backward",
    "(Tensor grad_normed, Tensor? grad_total, Tensor total, Tensor stats, Tensor weight, Tensor keys, float dropout)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    reference.backward,
)
library.register_cuda("add_norm", "triton", {"add_norm_forward": "forward", "add_norm_backward": "backward"})
native.register("add_norm", {"add_norm_forward": cpu.forward, "add_norm_backward": cpu.backward})


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        keys: Tensor,
        dropout: float,
        form: str,
    ) -> tuple[Tensor, Tensor]:
        normed, total, stats = library.namespace(form).add_norm_forward(
            x, residual, weight, bias, epsilon, keys, dropout
        )
        ctx.save_for_backward(total, stats, weight, keys)
        ctx.dropout, ctx.form, ctx.has_bias = dropout, form, bias is not None
        ctx.set_materialize_grads(False)
        return normed, total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        total, stats, weight, keys = ctx.saved_tensors
        grad_normed, grad_total = grads
        if grad_normed is None:
            grad_normed = torch.zeros_like(total)
        grad_x, grad_residual, grad_weight, grad_bias = library.namespace(ctx.form).add_norm_backward(
            grad_normed, grad_total, total, stats, weight, keys, ctx.dropout
        )
        # Without dropout the two gradients are one tensor, which an operator may not return twice.
        grad_x = grad_x if ctx.dropout else grad_residual
        return grad_x, grad_residual, grad_weight, grad_bias if ctx.has_bias else None, None, None, None, None


def add_norm(
    x_TD: Tensor,
    residual_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor | None,
    epsilon: float,
    *,
    dropout: float = 0.0,
    keys_T: Tensor | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor]:
    """`normed` and `total` of the formulas above, both [T, D].

    Args:
        x_TD: output of a sub-layer.
        residual_TD: what it is added to.
        weight_D: scale of the norm.
        bias_D: shift of the norm, or none.
        epsilon: added to the variance.
        dropout: probability with which an element of x is dropped; needs `keys_T`.
        keys_T: row keys of the tokens (`random_bits.row_keys`), int64.
        form: `auto` or `reference`.
    """
    if keys_T is None:
        keys_T = x_TD.new_empty(0, dtype=torch.int64)
    normed, total = library.apply(_AddNorm, x_TD, residual_TD, weight_D, bias_D, epsilon, keys_T, dropout, form)
    return normed, total
