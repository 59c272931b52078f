"""Rotary positions on packed queries and keys (Su et al., 2021, arXiv:2104.09864), in the half-split layout.

A pair (x1, x2) of a query or key, half a head apart, turns by the angle of its token's position:
`(x1 cos - x2 sin, x2 cos + x1 sin)`. Values pass unchanged. The backward pass turns the other way.

Suffixes: T tokens, H heads, d head size, h = d / 2.
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library
from oarlock.ops.rotary import reference

library.define("rotary_forward", "(Tensor qkv, Tensor cos, Tensor sin) -> Tensor", reference.forward)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, form: str) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.form = form
        out: Tensor = library.namespace(form).rotary_forward(qkv, cos, sin)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return library.namespace(ctx.form).rotary_forward(grads[0], cos, -sin), None, None, None


def rotary(qkv_T3Hd: Tensor, cos_Th: Tensor, sin_Th: Tensor, form: str = "auto") -> Tensor:
    """Turn queries and keys by their tokens' angles; `cos_Th` and `sin_Th` are gathered by position."""
    return library.apply(_Rotary, qkv_T3Hd, cos_Th, sin_Th, form)
