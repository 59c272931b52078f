"""Sum of embeddings, LayerNorm and dropout on a CPU: compiled kernels; gradients of tables are written once."""

import torch
from torch import Tensor

from oarlock.ops import native
from oarlock.ops.embed_norm import reference

_forward = native.kernel("embed_norm_forward", "llttttttt" + "iiiffi")
_backward = native.kernel("embed_norm_backward", "tllttt" + "lttt" + "iiifi")


def forward(
    tables: list[Tensor],
    rows: list[Tensor],
    weight: Tensor,
    bias: Tensor | None,
    epsilon: float,
    keys: Tensor,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Hidden states, and mean and reciprocal deviation of each sum in fp32.

    Raises IndexError for a row that its table does not have.
    """
    if not native.serves(*tables, weight, *([] if bias is None else [bias])):
        return reference.forward(tables, rows, weight, bias, epsilon, keys, dropout)
    tables, rows = [table.contiguous() for table in tables], [row.contiguous() for row in rows]
    num_tokens, size = len(rows[0]), len(weight)
    native.demand(all(table.shape[1:] == weight.shape for table in tables), "tables and weight differ in their width")
    native.demand(bias is None or bias.shape == weight.shape, "weight and bias are not of one shape")
    native.demand(all(len(row) == num_tokens for row in rows), "tables have rows of different numbers of tokens")
    native.demand(not dropout or len(keys) == num_tokens, "dropout needs a key of each token")
    out, stats = weight.new_empty(num_tokens, size), weight.new_empty(num_tokens, 2, dtype=torch.float32)
    outside = rows[0].new_empty(1)
    _forward(
        tables,
        rows,
        weight.contiguous(),
        None if bias is None else bias.contiguous(),
        keys.contiguous(),
        out,
        stats,
        torch.tensor([len(table) for table in tables]),
        outside,
        len(tables),
        num_tokens,
        size,
        epsilon,
        dropout,
        weight.dtype == torch.float32,
    )
    if (i := int(outside)) >= 0:
        raise IndexError(f"a token's row lies outside of table {i}, which has {len(tables[i])} rows")
    return out, stats


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
    if not native.serves(grad, *tables, weight):
        return reference.backward(grad, tables, rows, stats, weight, keys, dropout)
    tables, rows = [table.contiguous() for table in tables], [row.contiguous() for row in rows]
    assert grad.shape == (len(rows[0]), len(weight))
    grad_tables = [torch.empty_like(table, dtype=torch.float32) for table in tables]
    grad_weight = torch.empty_like(weight, dtype=torch.float32)
    grad_bias = torch.empty_like(grad_weight)
    _backward(
        grad.contiguous(),
        tables,
        rows,
        stats.contiguous(),
        weight.contiguous(),
        keys.contiguous(),
        grad_tables,
        torch.tensor([len(table) for table in tables]),
        grad_weight,
        grad_bias,
        len(tables),
        *grad.shape,
        dropout,
        weight.dtype == torch.float32,
    )
    return grad_tables, grad_weight, grad_bias
