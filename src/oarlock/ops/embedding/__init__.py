"""Rows of a table by index, with a gradient that is summed in fp32.

A frequent token, or a segment, gathers thousands of rows of gradient; summed in bf16 they would be lost to rounding.

Suffixes: T tokens, V rows of the table, D features.
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library
from oarlock.ops.embedding import reference

library.define("embedding_forward", "(Tensor weight, Tensor ids) -> Tensor", reference.forward)
library.define("embedding_backward", "(Tensor grad, Tensor ids, SymInt num_rows) -> Tensor", reference.backward)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, form: str) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.num_rows, ctx.form = weight.shape[0], form
        out: Tensor = library.namespace(form).embedding_forward(weight, ids)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        return library.namespace(ctx.form).embedding_backward(grads[0], ids, ctx.num_rows), None, None


def embedding(weight_VD: Tensor, ids_T: Tensor, form: str = "auto") -> Tensor:
    """`weight[ids]`, [T, D]."""
    return library.apply(_Embedding, weight_VD, ids_T, form)
