"""Dropout, residual sum and LayerNorm on a GPU: whole rows in registers, one pass over memory each way.

Gradients of weight and bias are summed over pieces of a fixed number of rows, and then over the pieces.

Suffixes: R rows, C columns (features).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from oarlock.ops.add_norm import reference
from oarlock.ops.cuda_common import dropout_numbers, kept, row_tile, serves

PIECE = 32  # rows of a partial sum


def forward(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, keys: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normed [T, D], total [T, D], and mean and reciprocal deviation of each row [T, 2]."""
    if not serves(x, residual, weight, bias):
        return reference.forward(x, residual, weight, bias, epsilon, keys, dropout)
    x = x.contiguous()
    normed, total = torch.empty_like(x), torch.empty_like(x)
    num_rows, num_columns = x.shape
    stats = torch.empty(num_rows, 2, dtype=torch.float32, device=x.device)
    tile = row_tile(num_columns, 4096)
    _forward[(triton.cdiv(num_rows, tile["ROWS"]),)](
        x, residual.contiguous(), weight.contiguous(), weight if bias is None else bias.contiguous(), keys.contiguous(),
        normed, total, stats, num_rows, num_columns, epsilon, *dropout_numbers(dropout),
        HAS_BIAS=bias is not None, DROPOUT=dropout > 0, **tile,
    )  # fmt: skip
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
    if not serves(grad_normed, grad_total, total, weight):
        return reference.backward(grad_normed, grad_total, total, stats, weight, keys, dropout)
    grad_normed = grad_normed.contiguous()
    grad_residual = torch.empty_like(total)
    grad_x = torch.empty_like(total) if dropout else total.new_empty(0)
    num_rows, num_columns = total.shape
    pieces = triton.cdiv(num_rows, PIECE)
    sums = torch.empty(2, pieces, num_columns, dtype=torch.float32, device=total.device)
    tile = row_tile(num_columns, 2048)
    _backward[(pieces,)](
        grad_normed, grad_normed if grad_total is None else grad_total.contiguous(), total, stats, weight.contiguous(),
        keys.contiguous(), grad_x, grad_residual, sums, num_rows, num_columns, *dropout_numbers(dropout),
        HAS_TOTAL=grad_total is not None, DROPOUT=dropout > 0, PIECE=PIECE, **tile,
    )  # fmt: skip
    grad_weight, grad_bias = sums.sum(dim=1)
    return grad_x, grad_residual, grad_weight, grad_bias


@triton.jit
def norm_rows(x_RC, inside_RC, num_columns, epsilon):
    """Rows less their mean, the means, and the reciprocal deviations."""
    mean_R = tl.sum(x_RC, axis=1) / num_columns
    centred_RC = tl.where(inside_RC, x_RC - mean_R[:, None], 0.0)
    variance_R = tl.sum(centred_RC * centred_RC, axis=1) / num_columns
    return centred_RC, mean_R, 1 / tl.sqrt(variance_R + epsilon)


@triton.jit
def norm_gradient(pulled_RC, unit_RC, scale_R, num_columns):
    """Gradient of LayerNorm's input from those of its normalised rows (0 outside), and these rows themselves."""
    mean_R = tl.sum(pulled_RC, axis=1) / num_columns
    slope_R = tl.sum(pulled_RC * unit_RC, axis=1) / num_columns
    return (pulled_RC - mean_R[:, None] - unit_RC * slope_R[:, None]) * scale_R[:, None]


@triton.jit(do_not_specialize=["num_rows", "first_dropped"])
def _forward(
    x, residual, weight, bias, keys, normed, total, stats, num_rows, num_columns, epsilon, first_dropped, keep_scale,
    HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    here = rows < num_rows
    inside = here[:, None] & (columns[None, :] < num_columns)
    at = rows[:, None] * num_columns + columns[None, :]
    update = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if DROPOUT:
        keys_R = tl.load(keys + rows, mask=here, other=0)
        update = tl.where(kept(keys_R, 0, first_dropped, COLUMNS), update * keep_scale, 0.0)
    stored = (tl.load(residual + at, mask=inside, other=0.0).to(tl.float32) + update).to(total.dtype.element_ty)
    tl.store(total + at, stored, mask=inside)
    centred, mean_R, scale_R = norm_rows(stored.to(tl.float32), inside, num_columns, epsilon)
    tl.store(stats + 2 * rows, mean_R, mask=here)
    tl.store(stats + 2 * rows + 1, scale_R, mask=here)
    weight_C = tl.load(weight + columns, mask=columns < num_columns, other=0.0).to(tl.float32)
    out = centred * scale_R[:, None] * weight_C[None, :]
    if HAS_BIAS:
        out += tl.load(bias + columns, mask=columns < num_columns, other=0.0).to(tl.float32)[None, :]
    tl.store(normed + at, out.to(normed.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "first_dropped"])
def _backward(
    grad_normed, grad_total, total, stats, weight, keys, grad_x, grad_residual, sums,
    num_rows, num_columns, first_dropped, keep_scale,
    HAS_TOTAL: tl.constexpr, DROPOUT: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    weight_C = tl.load(weight + columns, mask=columns < num_columns, other=0.0).to(tl.float32)
    sum_weight = tl.zeros((ROWS, COLUMNS), tl.float32)
    sum_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, PIECE, ROWS):
        in_piece = first + tl.arange(0, ROWS)
        rows = piece * PIECE + in_piece
        here = (rows < num_rows) & (in_piece < PIECE)
        inside = here[:, None] & (columns[None, :] < num_columns)
        at = rows[:, None] * num_columns + columns[None, :]
        grad = tl.load(grad_normed + at, mask=inside, other=0.0).to(tl.float32)
        mean_R = tl.load(stats + 2 * rows, mask=here, other=0.0)
        scale_R = tl.load(stats + 2 * rows + 1, mask=here, other=0.0)
        unit = tl.load(total + at, mask=inside, other=0.0).to(tl.float32) - mean_R[:, None]
        unit = tl.where(inside, unit * scale_R[:, None], 0.0)
        sum_weight += grad * unit
        sum_bias += grad
        grad = norm_gradient(grad * weight_C[None, :], unit, scale_R, num_columns)
        if HAS_TOTAL:
            grad += tl.load(grad_total + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_residual + at, grad.to(grad_residual.dtype.element_ty), mask=inside)
        if DROPOUT:
            keys_R = tl.load(keys + rows, mask=here, other=0)
            grad = tl.where(kept(keys_R, 0, first_dropped, COLUMNS), grad * keep_scale, 0.0)
            tl.store(grad_x + at, grad.to(grad_x.dtype.element_ty), mask=inside)
    place = sums + piece * num_columns + columns
    tl.store(place, tl.sum(sum_weight, axis=0), mask=columns < num_columns)
    place += tl.num_programs(0).to(tl.int64) * num_columns
    tl.store(place, tl.sum(sum_bias, axis=0), mask=columns < num_columns)
