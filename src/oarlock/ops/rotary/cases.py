"""Cases of rotary positions.

Suffixes: T tokens, H heads, d head size, h = d / 2, L positions of the table.
"""

import torch
from torch import Tensor

from oarlock.ops.case import Case, Inputs, OperatorCases, positions, random
from oarlock.ops.rotary import rotary


def _case(lengths: tuple[int, ...], num_heads: int, head_size: int, benchmark: bool = False) -> Case:
    def inputs(device: torch.device, dtype: torch.dtype) -> Inputs:
        steps = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
        angles = torch.arange(max((1, *lengths)), dtype=torch.float64)[:, None] * 10_000.0**-steps
        return {
            "qkv_T3Hd": random(sum(lengths), 3, num_heads, head_size, seed=1, device=device, dtype=dtype),
            "positions_T": positions(lengths, device),
            "cos_Lh": angles.cos().float().to(device),
            "sin_Lh": angles.sin().float().to(device),
        }

    return Case(f"{sum(lengths):,} x 3 x {num_heads} x {head_size}, {len(lengths)} sequences", inputs, benchmark)


def _plain(qkv_T3Hd: Tensor, positions_T: Tensor, cos_Lh: Tensor, sin_Lh: Tensor) -> Tensor:
    cos, sin = (
        torch.cat([table, table], dim=-1)[positions_T].to(qkv_T3Hd.dtype)[:, None] for table in (cos_Lh, sin_Lh)
    )
    q, k, v = qkv_T3Hd.unbind(1)
    return torch.stack([q * cos + _half_turn(q) * sin, k * cos + _half_turn(k) * sin, v], dim=1)


def _half_turn(x: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([-x2, x1], dim=-1)


CASES = OperatorCases(
    rotary,
    _plain,
    (
        _case((), 2, 8),
        _case((1,), 2, 8),
        _case((63,), 3, 2),
        _case((63,), 2, 8),
        _case((63, 1, 30), 3, 64),
        _case((200, 57), 2, 6),
        _case((512, 300, 200, 204) * 3 + (448,), 12, 64, benchmark=True),
        _case((512, 300, 200, 204) * 6 + (896,), 4, 64, benchmark=True),
    ),
    differentiable=("qkv_T3Hd",),
)
