"""Sum of embeddings, LayerNorm and dropout on a GPU.

The gradient of a table adds up rows that share an id. Tokens are sorted by id, in their order where ids are equal; runs
of equal ids are added up inside pieces of a fixed length, and then over the pieces: the order of additions follows from
the ids alone. (torch's `index_add_` adds by atomics, in another order each time.)

Suffixes: R rows, C columns (features).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from oarlock.ops.add_norm.cuda import PIECE, norm_gradient, norm_rows
from oarlock.ops.cuda_common import dropout_numbers, kept, row_tile, serves
from oarlock.ops.embed_norm import reference

MAX_TABLES = 3  # words, positions, segments
SORTED_PIECE = 128
SORTED_COLUMNS = 256


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
    if not serves(weight, bias, *tables) or len(tables) > MAX_TABLES:
        return reference.forward(tables, rows, weight, bias, epsilon, keys, dropout)
    num_rows, num_columns = rows[0].numel(), tables[0].shape[1]
    out = tables[0].new_empty(num_rows, num_columns)
    stats = torch.empty(num_rows, 2, dtype=torch.float32, device=out.device)
    tile = row_tile(num_columns, 2048)
    _forward[(triton.cdiv(num_rows, tile["ROWS"]),)](
        *_three(tables), *_three(rows), weight.contiguous(), weight if bias is None else bias.contiguous(),
        keys.contiguous(), out, stats, num_rows, num_columns, epsilon, *dropout_numbers(dropout),
        NUM_TABLES=len(tables), HAS_BIAS=bias is not None, DROPOUT=dropout > 0, **tile,
    )  # fmt: skip
    return out, stats


def backward(
    grad: Tensor, tables: list[Tensor], rows: list[Tensor], stats: Tensor, weight: Tensor, keys: Tensor, dropout: float
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Gradients of the tables, of the norm's weight and of its bias, all in fp32."""
    if not serves(grad, weight, *tables) or len(tables) > MAX_TABLES:
        return reference.backward(grad, tables, rows, stats, weight, keys, dropout)
    num_rows, num_columns = rows[0].numel(), tables[0].shape[1]
    grad_total = torch.empty(num_rows, num_columns, dtype=torch.float32, device=grad.device)
    pieces = triton.cdiv(num_rows, PIECE)
    sums = torch.empty(2, pieces, num_columns, dtype=torch.float32, device=grad.device)
    _backward[(pieces,)](
        grad.contiguous(), *_three(tables), *_three(rows), stats, weight.contiguous(), keys.contiguous(), grad_total,
        sums, num_rows, num_columns, *dropout_numbers(dropout),
        NUM_TABLES=len(tables), DROPOUT=dropout > 0, PIECE=PIECE, **row_tile(num_columns, 2048),
    )  # fmt: skip
    grad_weight, grad_bias = sums.sum(dim=1)
    grad_tables = [add_rows(table.shape[0], row, grad_total) for table, row in zip(tables, rows, strict=True)]
    return grad_tables, grad_weight, grad_bias


def add_rows(num_ids: int, ids: Tensor, x: Tensor) -> Tensor:
    """Sums of the rows of x [T, D], fp32, that share an id, [num_ids, D]."""
    num_rows, num_columns = x.shape
    out = torch.zeros(num_ids, num_columns, dtype=torch.float32, device=x.device)
    ids, order = torch.sort(ids, stable=True)
    runs = torch.empty_like(x)
    across = triton.cdiv(num_columns, SORTED_COLUMNS)
    _add_runs[triton.cdiv(num_rows, SORTED_PIECE), across](
        ids, order, x, runs, num_rows, num_columns, PIECE=SORTED_PIECE, COLUMNS=SORTED_COLUMNS, num_warps=2
    )
    _add_pieces[num_rows, across](
        ids, runs, out, num_rows, num_columns, PIECE=SORTED_PIECE, COLUMNS=SORTED_COLUMNS, num_warps=2
    )
    return out


def _three(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors] + [tensors[0]] * (MAX_TABLES - len(tensors))


@triton.jit
def _row(table, rows, tokens, columns, here, inside, num_columns):
    rows_R = tl.load(rows + tokens, mask=here, other=0)
    return tl.load(table + rows_R[:, None] * num_columns + columns[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _total(
    table0, table1, table2, rows0, rows1, rows2, tokens, columns, here, inside, num_columns, NUM_TABLES: tl.constexpr
):
    total = _row(table0, rows0, tokens, columns, here, inside, num_columns)
    if NUM_TABLES > 1:
        total += _row(table1, rows1, tokens, columns, here, inside, num_columns)
    if NUM_TABLES > 2:
        total += _row(table2, rows2, tokens, columns, here, inside, num_columns)
    return total


@triton.jit(do_not_specialize=["num_rows", "first_dropped"])
def _forward(
    table0, table1, table2, rows0, rows1, rows2, weight, bias, keys, out, stats,
    num_rows, num_columns, epsilon, first_dropped, keep_scale,
    NUM_TABLES: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    here = tokens < num_rows
    inside = here[:, None] & (columns[None, :] < num_columns)
    total = _total(
        table0, table1, table2, rows0, rows1, rows2, tokens, columns, here, inside, num_columns, NUM_TABLES
    )  # fmt: skip
    centred, mean_R, scale_R = norm_rows(total, inside, num_columns, epsilon)
    tl.store(stats + 2 * tokens, mean_R, mask=here)
    tl.store(stats + 2 * tokens + 1, scale_R, mask=here)
    weight_C = tl.load(weight + columns, mask=columns < num_columns, other=0.0).to(tl.float32)
    normed = centred * scale_R[:, None] * weight_C[None, :]
    if HAS_BIAS:
        normed += tl.load(bias + columns, mask=columns < num_columns, other=0.0).to(tl.float32)[None, :]
    if DROPOUT:
        keys_R = tl.load(keys + tokens, mask=here, other=0)
        normed = tl.where(kept(keys_R, 0, first_dropped, COLUMNS), normed * keep_scale, 0.0)
    tl.store(out + tokens[:, None] * num_columns + columns[None, :], normed.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "first_dropped"])
def _backward(
    grad_out, table0, table1, table2, rows0, rows1, rows2, stats, weight, keys, grad_total, sums,
    num_rows, num_columns, first_dropped, keep_scale,
    NUM_TABLES: tl.constexpr, DROPOUT: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    weight_C = tl.load(weight + columns, mask=columns < num_columns, other=0.0).to(tl.float32)
    sum_weight = tl.zeros((ROWS, COLUMNS), tl.float32)
    sum_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, PIECE, ROWS):
        in_piece = first + tl.arange(0, ROWS)
        tokens = piece * PIECE + in_piece
        here = (tokens < num_rows) & (in_piece < PIECE)
        inside = here[:, None] & (columns[None, :] < num_columns)
        at = tokens[:, None] * num_columns + columns[None, :]
        grad = tl.load(grad_out + at, mask=inside, other=0.0).to(tl.float32)
        if DROPOUT:
            keys_R = tl.load(keys + tokens, mask=here, other=0)
            grad = tl.where(kept(keys_R, 0, first_dropped, COLUMNS), grad * keep_scale, 0.0)
        mean_R = tl.load(stats + 2 * tokens, mask=here, other=0.0)
        scale_R = tl.load(stats + 2 * tokens + 1, mask=here, other=0.0)
        total = _total(
            table0, table1, table2, rows0, rows1, rows2, tokens, columns, here, inside, num_columns, NUM_TABLES
        )  # fmt: skip
        unit = tl.where(inside, (total - mean_R[:, None]) * scale_R[:, None], 0.0)
        sum_weight += grad * unit
        sum_bias += grad
        tl.store(grad_total + at, norm_gradient(grad * weight_C[None, :], unit, scale_R, num_columns), mask=inside)
    place = sums + piece * num_columns + columns
    tl.store(place, tl.sum(sum_weight, axis=0), mask=columns < num_columns)
    place += tl.num_programs(0).to(tl.int64) * num_columns
    tl.store(place, tl.sum(sum_bias, axis=0), mask=columns < num_columns)


@triton.jit(do_not_specialize=["num_rows"])
def _add_runs(ids, order, x, runs, num_rows, num_columns, PIECE: tl.constexpr, COLUMNS: tl.constexpr):
    """Add up the rows of each run of equal ids inside a piece; a sum stands where its run begins."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < num_columns
    begin = tl.program_id(0) * PIECE
    end = tl.minimum(begin + PIECE, num_rows)
    run = begin
    total = tl.zeros((COLUMNS,), tl.float32)
    for i in range(begin, end):
        row = tl.load(order + i)
        total += tl.load(x + row * num_columns + columns, mask=inside, other=0.0)
        last = tl.load(ids + i) != tl.load(ids + i + 1, mask=i + 1 < end, other=-1)
        tl.store(runs + run.to(tl.int64) * num_columns + columns, total, mask=inside & last)
        total = tl.where(last, 0.0, total)
        run = tl.where(last, i + 1, run)


@triton.jit(do_not_specialize=["num_rows"])
def _add_pieces(ids, runs, out, num_rows, num_columns, PIECE: tl.constexpr, COLUMNS: tl.constexpr):
    """Where an id's first run begins, add up its runs: one there, and one at the start of each piece it reaches."""
    i = tl.program_id(0)
    id_here = tl.load(ids + i)
    if id_here != tl.load(ids + i - 1, mask=i > 0, other=-1):
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = columns < num_columns
        total = tl.load(runs + i.to(tl.int64) * num_columns + columns, mask=inside, other=0.0)
        i = (i // PIECE + 1) * PIECE
        while tl.load(ids + i, mask=i < num_rows, other=-1) == id_here:
            total += tl.load(runs + i.to(tl.int64) * num_columns + columns, mask=inside, other=0.0)
            i += PIECE
        tl.store(out + id_here * num_columns + columns, total, mask=inside)
