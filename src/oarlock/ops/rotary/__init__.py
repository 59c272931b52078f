"""Rotary positions on packed queries and keys (Su et al., 2021, arXiv:2104.09864), in the half-split layout.

A pair (x1, x2) of a query or key, half a head apart, turns by the angle of its token's position:
`(x1 cos - x2 sin, x2 cos + x1 sin)`. Values pass unchanged. The backward pass turns the other way. The table is kept in
fp32 and read by position inside the operator: nothing of the size [T, h] is gathered.

Suffixes: T tokens, H heads, d head size, h = d / 2, L positions of the table.
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library, native
from oarlock.ops.rotary import cpu, reference

library.define(
    "rotary_turn", "(Tensor qkv, Tensor positions, Tensor cos, Tensor sin, bool back) -> Tensor", reference.turn
)
library.register_cuda("rotary", "triton", {"rotary_turn": "turn"})
native.register("rotary", {"rotary_turn": cpu.turn})


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, form: str) -> Tensor:
        ctx.save_for_backward(positions, cos, sin)
        ctx.form = form
        out: Tensor = library.namespace(form).rotary_turn(qkv, positions, cos, sin, False)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        positions, cos, sin = ctx.saved_tensors
        return library.namespace(ctx.form).rotary_turn(grads[0], positions, cos, sin, True), None, None, None, None


def rotary(qkv_T3Hd: Tensor, positions_T: Tensor, cos_Lh: Tensor, sin_Lh: Tensor, form: str = "auto") -> Tensor:
    """Turn queries and keys by the angles of their tokens' positions, [T, 3, H, d]; the table is fp32."""
    out: Tensor = library.apply(_Rotary, qkv_T3Hd, positions_T, cos_Lh, sin_Lh, form)
    return out
