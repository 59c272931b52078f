"""Dropout, residual sum and LayerNorm on a CPU: compiled kernels, one pass over memory each way."""

import torch
from torch import Tensor

from oarlock.ops import native
from oarlock.ops.add_norm import reference

_forward = native.kernel("add_norm_forward", "ttttttttiiffi")
_backward = native.kernel("add_norm_backward", "ttttttttttiifi")


def forward(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, keys: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normed, total, and mean and reciprocal deviation of each row in fp32."""
    if not native.serves(x, residual, weight, *([] if bias is None else [bias])):
        return reference.forward(x, residual, weight, bias, epsilon, keys, dropout)
    native.demand(residual.shape == x.shape, f"x is {tuple(x.shape)}, the residual {tuple(residual.shape)}")
    native.demand(x.shape[1:] == weight.shape, f"x is {tuple(x.shape)}, the weight {tuple(weight.shape)}")
    native.demand(bias is None or bias.shape == weight.shape, "weight and bias are not of one shape")
    native.demand(not dropout or keys.shape == x.shape[:1], "dropout needs a key of each token")
    x, residual, weight, keys = x.contiguous(), residual.contiguous(), weight.contiguous(), keys.contiguous()
    normed, total = torch.empty_like(x), torch.empty_like(x)
    stats = x.new_empty(len(x), 2, dtype=torch.float32)
    _forward(
        x,
        residual,
        weight,
        None if bias is None else bias.contiguous(),
        keys,
        normed,
        total,
        stats,
        *x.shape,
        epsilon,
        dropout,
        x.dtype == torch.float32,
    )
    return normed, total, stats


def backward(
    grad_normed: Tensor,
    grad_total: Tensor | None,
    total: Tensor,
    stats: Tensor,
    weight: Tensor,
    keys: Tensor,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (empty without dropout: the residual's), residual, weight and bias (both in fp32)."""
    if not native.serves(grad_normed, total, weight, *([] if grad_total is None else [grad_total])):
        return reference.backward(grad_normed, grad_total, total, stats, weight, keys, dropout)
    assert grad_normed.shape == total.shape
    assert grad_total is None or grad_total.shape == total.shape
    grad_normed, total, stats = grad_normed.contiguous(), total.contiguous(), stats.contiguous()
    weight, keys = weight.contiguous(), keys.contiguous()
    grad_residual = torch.empty_like(total)
    grad_x = torch.empty_like(total) if dropout else total.new_empty(0)
    grad_weight = torch.empty_like(weight, dtype=torch.float32)
    grad_bias = torch.empty_like(grad_weight)
    _backward(
        grad_normed,
        None if grad_total is None else grad_total.contiguous(),
        total,
        stats,
        weight,
        keys,
        grad_x,
        grad_residual,
        grad_weight,
        grad_bias,
        *total.shape,
        dropout,
        total.dtype == torch.float32,
    )
    return grad_x, grad_residual, grad_weight, grad_bias
