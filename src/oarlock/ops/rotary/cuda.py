"""Rotary positions on a GPU: a program turns, or copies, some heads of queries, keys or values.

Suffixes: R heads of tokens, h half a head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from oarlock.ops.cuda_common import row_tile, serves
from oarlock.ops.rotary import reference


def turn(qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    """Turn queries and keys, or turn them back; copy values. Shapes: qkv [T, 3, H, d], cos and sin [L, d / 2]."""
    if not serves(qkv, cos, sin):
        return reference.turn(qkv, positions, cos, sin, back)
    qkv = qkv.contiguous()
    out = torch.empty_like(qkv)
    num_tokens, _, num_heads, head_size = qkv.shape
    tile = row_tile(head_size // 2, 2048)
    _turn[triton.cdiv(num_tokens * num_heads, tile["ROWS"]), 3](
        qkv, positions.contiguous(), cos.contiguous(), sin.contiguous(), out, num_tokens, num_heads, head_size // 2,
        BACK=back, **tile,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_tokens"])
def _turn(
    qkv, positions, cos, sin, out, num_tokens, num_heads, half,
    BACK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    tokens, heads, which = rows // num_heads, rows % num_heads, tl.program_id(1)
    inside = (tokens < num_tokens)[:, None] & (columns < half)[None, :]
    at = ((tokens * 3 + which) * num_heads + heads)[:, None] * (2 * half) + columns[None, :]
    x1 = tl.load(qkv + at, mask=inside, other=0.0)
    x2 = tl.load(qkv + at + half, mask=inside, other=0.0)
    if which == 2:
        tl.store(out + at, x1, mask=inside)
        tl.store(out + at + half, x2, mask=inside)
    else:
        positions_R = tl.load(positions + tokens, mask=tokens < num_tokens, other=0)
        angles = positions_R[:, None] * half + columns[None, :]
        cos_Rh = tl.load(cos + angles, mask=inside, other=0.0).to(tl.float32)
        sin_Rh = tl.load(sin + angles, mask=inside, other=0.0).to(tl.float32)
        if BACK:
            sin_Rh = -sin_Rh
        turned1 = x1.to(tl.float32) * cos_Rh - x2.to(tl.float32) * sin_Rh
        turned2 = x2.to(tl.float32) * cos_Rh + x1.to(tl.float32) * sin_Rh
        tl.store(out + at, turned1.to(out.dtype.element_ty), mask=inside)
        tl.store(out + at + half, turned2.to(out.dtype.element_ty), mask=inside)
