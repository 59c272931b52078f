"""Cases of the linear layer.

Suffixes: T tokens, I inputs, O outputs.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from oarlock.ops.case import Case, Inputs, OperatorCases, random
from oarlock.ops.linear import linear


def _case(num_tokens: int, num_inputs: int, num_outputs: int, bias: bool = True, benchmark: bool = False) -> Case:
    def inputs(device: torch.device, dtype: torch.dtype) -> Inputs:
        return {
            "x_TI": random(num_tokens, num_inputs, seed=1, device=device, dtype=dtype),
            "weight_OI": random(num_outputs, num_inputs, seed=2, device=device, dtype=dtype, scale=num_inputs**-0.5),
            "bias_O": random(num_outputs, seed=3, device=device, dtype=dtype) if bias else None,
        }

    name = f"{num_tokens:,} x {num_inputs:,} to {num_outputs:,}{'' if bias else ', no bias'}"
    return Case(name, inputs, benchmark)


def _plain(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    return torch_linear(x_TI, weight_OI, bias_O)


CASES = OperatorCases(
    linear,
    _plain,
    (
        # The gradients that `compare.py` sends in turn by the golden angle from element to element. With a Fibonacci
        # number of outputs they turn little from token to token; else a bias's gradient would add up to less than bf16
        # can tell.
        _case(0, 24, 34),
        _case(1, 24, 34),
        _case(63, 37, 55),
        _case(63, 37, 55, bias=False),
        _case(600, 96, 34),
        _case(513, 160, 1, bias=False),
        _case(1100, 33, 233),
        _case(4096, 768, 768, bias=False, benchmark=True),
        _case(4096, 768, 2304, bias=False, benchmark=True),
        _case(4096, 768, 3072, bias=False, benchmark=True),
        _case(4096, 3072, 768, bias=False, benchmark=True),
        _case(8192, 256, 768, bias=False, benchmark=True),
        _case(8192, 256, 1024, bias=False, benchmark=True),
        _case(8192, 1024, 256, bias=False, benchmark=True),
    ),
    differentiable=("x_TI", "weight_OI", "bias_O"),
)
