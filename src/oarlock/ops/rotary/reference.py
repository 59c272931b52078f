"""Rotary positions in plain torch, in fp32 (fp64 where qkv is)."""

import torch
from torch import Tensor

from oarlock.ops.random_bits import accumulator


def turn(qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    """Turn queries and keys, or turn them back; copy values. Shapes: qkv [T, 3, H, d], cos and sin [L, d / 2]."""
    cos, sin = cos[positions][:, None, None], sin[positions][:, None, None]
    if back:
        sin = -sin
    x1, x2 = qkv[:, :2].to(accumulator(qkv.dtype)).chunk(2, dim=-1)
    turned = torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1).to(qkv.dtype)
    return torch.cat([turned, qkv[:, 2:]], dim=1)
