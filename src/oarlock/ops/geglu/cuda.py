"""GeGLU on a GPU: one pass over memory each way."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from oarlock.ops.cuda_common import erf_gelu, erf_gelu_slope, serves
from oarlock.ops.geglu import reference

COLUMNS = 256
ROWS = 8


def forward(x: Tensor) -> Tensor:
    """`gelu(a) * b` with a, b = the halves of x."""
    if not serves(x):
        return reference.forward(x)
    x = x.contiguous()
    num_rows, num_columns = x.shape[0], x.shape[1] // 2
    out = x.new_empty(num_rows, num_columns)
    grid = (triton.cdiv(num_rows, ROWS), triton.cdiv(num_columns, COLUMNS))
    _forward[grid](x, out, num_rows, num_columns, ROWS=ROWS, COLUMNS=COLUMNS)
    return out


def backward(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient with respect to both halves, in one tensor."""
    if not serves(grad, x):
        return reference.backward(grad, x)
    grad, x = grad.contiguous(), x.contiguous()
    out = torch.empty_like(x)
    num_rows, num_columns = grad.shape
    grid = (triton.cdiv(num_rows, ROWS), triton.cdiv(num_columns, COLUMNS))
    _backward[grid](grad, x, out, num_rows, num_columns, ROWS=ROWS, COLUMNS=COLUMNS)
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _forward(x, out, num_rows, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
    at = 2 * rows[:, None] * num_columns + columns[None, :]
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + at + num_columns, mask=inside, other=0.0).to(tl.float32)
    place = out + rows[:, None] * num_columns + columns[None, :]
    tl.store(place, (erf_gelu(a) * b).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def _backward(grad, x, out, num_rows, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
    at = 2 * rows[:, None] * num_columns + columns[None, :]
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + at + num_columns, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + rows[:, None] * num_columns + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (g * b * erf_gelu_slope(a)).to(out.dtype.element_ty), mask=inside)
    tl.store(out + at + num_columns, (g * erf_gelu(a)).to(out.dtype.element_ty), mask=inside)
