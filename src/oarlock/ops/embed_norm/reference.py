"""Sum of embeddings, LayerNorm and dropout in plain torch, in fp32 (fp64 where the tables are)."""

import torch
from torch import Tensor

from oarlock.ops.add_norm.reference import norm_backward, norm_forward
from oarlock.ops.random_bits import accumulator, dropped


def forward(
    tables: list[Tensor],
    rows: list[Tensor],
    weight: Tensor,
    bias: Tensor | None,
    epsilon: float,
    keys: Tensor,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Hidden states [T, D], and mean and reciprocal deviation of each sum [T, 2]."""
    normed, stats = norm_forward(_total(tables, rows), weight, bias, epsilon)
    return dropped(normed, keys, dropout).to(tables[0].dtype), stats


def backward(
    grad: Tensor,
    tables: list[Tensor],
    rows: list[Tensor],
    stats: Tensor,
    weight: Tensor,
    keys: Tensor,
    dropout: float,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Gradients of the tables, of the norm's weight and of its bias, all in fp32."""
    wide = dropped(grad.to(accumulator(grad.dtype)), keys, dropout)
    grad_total, grad_weight, grad_bias = norm_backward(wide, _total(tables, rows), stats, weight)
    grad_tables = [
        torch.zeros(table.shape, dtype=wide.dtype, device=wide.device).index_add_(0, row, grad_total)
        for table, row in zip(tables, rows, strict=True)
    ]
    return grad_tables, grad_weight, grad_bias


def _total(tables: list[Tensor], rows: list[Tensor]) -> Tensor:
    wide = accumulator(tables[0].dtype)
    total = tables[0].index_select(0, rows[0]).to(wide)
    for table, row in zip(tables[1:], rows[1:], strict=True):
        total = total + table.index_select(0, row)
    return total
