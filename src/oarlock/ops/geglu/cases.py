"""Cases of GeGLU.

Suffixes: T tokens, I features of each half.
"""

import torch
from torch import Tensor
from torch.nn.functional import gelu

from oarlock.ops.case import Case, Inputs, OperatorCases, random
from oarlock.ops.geglu import geglu


def _case(num_tokens: int, size: int, scale: float = 2.0, benchmark: bool = False) -> Case:
    def inputs(device: torch.device, dtype: torch.dtype) -> Inputs:
        return {"x_T2I": random(num_tokens, 2 * size, seed=1, device=device, dtype=dtype, scale=scale)}

    return Case(f"{num_tokens:,} x 2 x {size:,}, scale {scale:g}", inputs, benchmark)


def _plain(x_T2I: Tensor) -> Tensor:
    a_TI, b_TI = x_T2I.chunk(2, dim=-1)
    return gelu(a_TI) * b_TI


CASES = OperatorCases(
    geglu,
    _plain,
    (
        _case(0, 24),
        _case(1, 24),
        _case(63, 37),
        _case(63, 1),
        _case(512, 96, scale=40.0),
        _case(4096, 1152, benchmark=True),
        _case(8192, 384, benchmark=True),
    ),
    differentiable=("x_T2I",),
)
