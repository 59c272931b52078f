"""Sum of embeddings, LayerNorm and dropout as one operator.

    x = dropout(LayerNorm(sum over tables of table[rows]))

Gradients of the tables are summed in fp32, in the order of the tokens: a frequent token, or a segment, gathers
thousands of rows, and bf16 sums would lose them to rounding. The backward pass gathers the sum again instead of
keeping it.

Suffixes: T tokens, R rows of a table, D features.
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library, native
from oarlock.ops.embed_norm import cpu, reference

_NORM = "Tensor keys, float dropout"
library.define(
    "embed_norm_forward",
    f"(Tensor[] tables, Tensor[] rows, Tensor weight, Tensor? bias, float epsilon, {_NORM}) -> (Tensor, Tensor)",
    reference.forward,
)
library.define(
    "embed_norm_backward",
    f"(Tensor grad, Tensor[] tables, Tensor[] rows, Tensor stats, Tensor weight, {_NORM})"
    " -> (Tensor[], Tensor, Tensor)",
    reference.backward,
)
library.register_cuda("embed_norm", "triton", {"embed_norm_forward": "forward", "embed_norm_backward": "backward"})
native.register("embed_norm", {"embed_norm_forward": cpu.forward, "embed_norm_backward": cpu.backward})


class _EmbedNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        keys: Tensor,
        dropout: float,
        form: str,
        num_tables: int,
        *tables_and_rows: Tensor,
    ) -> Tensor:
        tables, rows = list(tables_and_rows[:num_tables]), list(tables_and_rows[num_tables:])
        out: Tensor
        out, stats = library.namespace(form).embed_norm_forward(tables, rows, weight, bias, epsilon, keys, dropout)
        ctx.save_for_backward(stats, weight, keys, *tables_and_rows)
        ctx.dropout, ctx.form, ctx.num_tables, ctx.has_bias = dropout, form, num_tables, bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        stats, weight, keys, *tables_and_rows = ctx.saved_tensors
        tables, rows = tables_and_rows[: ctx.num_tables], tables_and_rows[ctx.num_tables :]
        grad_tables, grad_weight, grad_bias = library.namespace(ctx.form).embed_norm_backward(
            grads[0], tables, rows, stats, weight, keys, ctx.dropout
        )
        grad_norm = (grad_weight, grad_bias if ctx.has_bias else None)
        return *grad_norm, None, None, None, None, None, *grad_tables, *(None for _ in rows)


def embed_norm(
    tables: list[Tensor],
    rows: list[Tensor],
    weight_D: Tensor,
    bias_D: Tensor | None,
    epsilon: float,
    *,
    dropout: float = 0.0,
    keys_T: Tensor | None = None,
    form: str = "auto",
) -> Tensor:
    """First hidden states, [T, D].

    Args:
        tables: embeddings [R, D] that are summed, each with its own R: words, positions, segments.
        rows: for each table the row of every token, int64 [T].
        weight_D: scale of the norm.
        bias_D: shift of the norm, or none.
        epsilon: added to the variance.
        dropout: probability with which an element of the result is dropped; needs `keys_T`.
        keys_T: row keys of the tokens (`random_bits.row_keys`), int64.
        form: `auto` or `reference`.
    """
    if keys_T is None:
        keys_T = rows[0].new_empty(0)
    out: Tensor = library.apply(
        _EmbedNorm, weight_D, bias_D, epsilon, keys_T, dropout, form, len(tables), *tables, *rows
    )
    return out
