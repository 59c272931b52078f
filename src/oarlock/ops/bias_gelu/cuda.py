"""Bias and GELU on a GPU: one pass over memory each way."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from oarlock.ops.bias_gelu import reference
from oarlock.ops.cuda_common import erf_gelu, erf_gelu_slope, serves, tanh_gelu, tanh_gelu_slope

COLUMNS = 256
ROWS = 8
PIECE = 64  # rows of a partial sum


def forward(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """`gelu(x + bias)`."""
    if not serves(x, bias):
        return reference.forward(x, bias, tanh)
    x = x.contiguous()
    out = torch.empty_like(x)
    num_rows, num_columns = x.shape
    grid = (triton.cdiv(num_rows, ROWS), triton.cdiv(num_columns, COLUMNS))
    _forward[grid](x, bias.contiguous(), out, num_rows, num_columns, TANH=tanh, ROWS=ROWS, COLUMNS=COLUMNS)
    return out


def backward(grad: Tensor, x: Tensor, bias: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of the bias in fp32."""
    if not serves(grad, x, bias):
        return reference.backward(grad, x, bias, tanh)
    grad, x = grad.contiguous(), x.contiguous()
    grad_x = torch.empty_like(x)
    num_rows, num_columns = x.shape
    grid = (triton.cdiv(num_rows, PIECE), triton.cdiv(num_columns, COLUMNS))
    sums = torch.empty(grid[0], num_columns, dtype=torch.float32, device=x.device)
    _backward[grid](
        grad, x, bias.contiguous(), grad_x, sums, num_rows, num_columns,
        TANH=tanh, PIECE=PIECE, ROWS=ROWS, COLUMNS=COLUMNS,
    )  # fmt: skip
    return grad_x, sums.sum(dim=0)


@triton.jit(do_not_specialize=["num_rows"])
def _forward(x, bias, out, num_rows, num_columns, TANH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
    at = rows[:, None] * num_columns + columns[None, :]
    shift = tl.load(bias + columns, mask=columns < num_columns, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
    value = tanh_gelu(value) if TANH else erf_gelu(value)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def _backward(
    grad, x, bias, grad_x, sums, num_rows, num_columns,
    TANH: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    shift = tl.load(bias + columns, mask=columns < num_columns, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, PIECE, ROWS):
        rows = tl.program_id(0).to(tl.int64) * PIECE + first + tl.arange(0, ROWS)
        inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
        at = rows[:, None] * num_columns + columns[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
        slope = tanh_gelu_slope(value) if TANH else erf_gelu_slope(value)
        slope = slope * tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x + at, slope.to(grad_x.dtype.element_ty), mask=inside)
        total += slope
    place = sums + tl.program_id(0).to(tl.int64) * num_columns + columns
    tl.store(place, tl.sum(total, axis=0), mask=columns < num_columns)
