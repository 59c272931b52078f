"""Rotary positions on a CPU: a compiled kernel, one pass over memory."""

import torch
from torch import Tensor

from oarlock.ops import native
from oarlock.ops.rotary import reference

_turn = native.kernel("rotary_turn", "ttttttiiiiii")


def turn(qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    """Turn queries and keys, or turn them back; copy values. Shapes: qkv [T, 3, H, d], cos and sin [L, d / 2].

    Raises IndexError for a position beyond the table.
    """
    if not native.serves(qkv) or cos.dtype != torch.float32:
        return reference.turn(qkv, positions, cos, sin, back)
    qkv, positions, cos, sin = qkv.contiguous(), positions.contiguous(), cos.contiguous(), sin.contiguous()
    out, outside = torch.empty_like(qkv), positions.new_empty(1)
    num_tokens, _, num_heads, size = qkv.shape
    native.demand(cos.shape == sin.shape == (len(cos), size // 2), f"the table's width is not half of heads of {size}")
    native.demand(positions.shape == (num_tokens,), f"{num_tokens} tokens need as many positions")
    wide = qkv.dtype == torch.float32
    _turn(qkv, positions, cos, sin, out, outside, num_tokens, num_heads, size // 2, len(cos), back, wide)
    if outside.item():
        raise IndexError(f"a token's position lies outside the rotary table's {len(cos)} rows")
    return out
