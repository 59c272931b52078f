"""Cases of bias and GELU.

Suffixes: T tokens, I features.
"""

import torch
from torch import Tensor
from torch.nn.functional import gelu

from oarlock.ops.bias_gelu import bias_gelu
from oarlock.ops.case import Case, Inputs, OperatorCases, random


def _case(name: str, num_tokens: int, size: int, tanh: bool = False, scale: float = 2.0, **more: bool) -> Case:
    def inputs(device: torch.device, dtype: torch.dtype) -> Inputs:
        return {
            "x_TI": random(num_tokens, size, seed=1, device=device, dtype=dtype, scale=scale),
            "bias_I": random(size, seed=2, device=device, dtype=dtype),
            "tanh": tanh,
        }

    return Case(name, inputs, **more)


def _plain(x_TI: Tensor, bias_I: Tensor, tanh: bool) -> Tensor:
    return gelu(x_TI + bias_I, approximate="tanh" if tanh else "none")


CASES = OperatorCases(
    bias_gelu,
    _plain,
    (
        _case("no tokens", 0, 24),
        _case("one token", 1, 24),
        _case("63 x 37", 63, 37),
        _case("63 x 37, tanh", 63, 37, tanh=True),
        _case("512 x 96, far out", 512, 96, scale=40.0),
        _case("512 x 96, far out, tanh", 512, 96, tanh=True, scale=40.0),
        _case("4,096 x 3,072", 4096, 3072, benchmark=True),
        _case("4,096 x 3,072, tanh", 4096, 3072, tanh=True, benchmark=True),
    ),
    differentiable=("x_TI", "bias_I"),
)
