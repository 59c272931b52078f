"""Rotary positions in plain torch."""

import torch
from torch import Tensor


def forward(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries and keys; copy values. Shapes: qkv [T, 3, H, d], cos and sin [T, d / 2]."""
    out = torch.empty_like(qkv)
    x1, x2 = qkv[:, :2].chunk(2, dim=-1)
    out1, out2 = out[:, :2].chunk(2, dim=-1)
    cos, sin = cos[:, None, None], sin[:, None, None]
    torch.mul(x1, cos, out=out1)
    out1.addcmul_(x2, sin, value=-1)
    torch.mul(x2, cos, out=out2)
    out2.addcmul_(x1, sin)
    out[:, 2] = qkv[:, 2]
    return out
