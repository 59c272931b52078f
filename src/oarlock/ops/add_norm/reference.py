"""Dropout, residual sum and LayerNorm in plain torch, every intermediate in fp32 (fp64 where x is).

Suffixes: T tokens, D features.
"""

import torch
from torch import Tensor

from oarlock.ops.random_bits import accumulator, dropped


def forward(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, keys: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normed [T, D], total [T, D], and mean and reciprocal deviation of each row [T, 2]."""
    wide = accumulator(x.dtype)
    total = (residual.to(wide) + dropped(x.to(wide), keys, dropout)).to(x.dtype)
    normed, stats = norm_forward(total.to(wide), weight, bias, epsilon)
    return normed.to(x.dtype), total, stats


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
    wide = accumulator(total.dtype)
    grad, grad_weight, grad_bias = norm_backward(grad_normed.to(wide), total.to(wide), stats, weight)
    if grad_total is not None:
        grad = grad + grad_total.to(wide)
    grad_x = dropped(grad, keys, dropout) if dropout else grad.new_empty(0)
    return grad_x.to(total.dtype), grad.to(total.dtype), grad_weight, grad_bias


def norm_forward(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """LayerNorm of wide rows, and their mean and reciprocal deviation [T, 2]."""
    mean = x.mean(dim=-1, keepdim=True)
    centred = x - mean
    scale = ((centred * centred).mean(dim=-1, keepdim=True) + epsilon).rsqrt()
    normed = centred * scale * weight
    return (normed if bias is None else normed + bias), torch.cat([mean, scale], dim=-1)


def norm_backward(grad: Tensor, x: Tensor, stats: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of LayerNorm's wide input, weight and bias."""
    mean, scale = stats.split(1, dim=-1)
    unit = (x - mean) * scale
    pulled = grad * weight
    inner = pulled - pulled.mean(dim=-1, keepdim=True) - unit * (pulled * unit).mean(dim=-1, keepdim=True)
    return inner * scale, (grad * unit).sum(dim=0), grad.sum(dim=0)
