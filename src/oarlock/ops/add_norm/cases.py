"""Cases of dropout, residual sum and LayerNorm.

Suffixes: T tokens, D features.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from oarlock.ops.add_norm import add_norm
from oarlock.ops.case import Case, Inputs, OperatorCases, random, rows_keys


def _case(
    num_tokens: int,
    size: int,
    dropout: float = 0.0,
    *,
    bias: bool = True,
    pre_norm: bool = False,
    scale: float = 1.0,
    benchmark: bool = False,
) -> Case:
    def inputs(device: torch.device, dtype: torch.dtype) -> Inputs:
        return {
            "x_TD": random(num_tokens, size, seed=1, device=device, dtype=dtype, scale=scale),
            "residual_TD": random(num_tokens, size, seed=2, device=device, dtype=dtype, scale=scale),
            "weight_D": random(size, seed=3, device=device, dtype=dtype),
            "bias_D": random(size, seed=4, device=device, dtype=dtype) if bias else None,
            "epsilon": 1e-5,
            "dropout": dropout,
            "keys_T": rows_keys(num_tokens, device) if dropout else None,
            "pre_norm": pre_norm,
        }

    name = f"{num_tokens:,} x {size}, dropout {dropout}, {'pre' if pre_norm else 'post'}-norm"
    return Case(name + ("" if bias else ", no bias") + (f", scale {scale:g}" if scale != 1 else ""), inputs, benchmark)


def _used(pre_norm: bool, **inputs: Any) -> tuple[Tensor, ...]:
    """What a layer goes on with: a post-norm layer drops the sum, which then gets no gradient."""
    normed_TD, total_TD = add_norm(**inputs)
    return (normed_TD, total_TD) if pre_norm else (normed_TD,)


def _plain(
    x_TD: Tensor,
    residual_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor | None,
    epsilon: float,
    dropout: float,
    keys_T: Tensor | None,
    pre_norm: bool,
) -> tuple[Tensor, ...]:
    total_TD = residual_TD + functional.dropout(x_TD, dropout)
    normed_TD = functional.layer_norm(total_TD, weight_D.shape, weight_D, bias_D, epsilon)
    return (normed_TD, total_TD) if pre_norm else (normed_TD,)


CASES = OperatorCases(
    _used,
    _plain,
    (
        _case(0, 24, 0.1),
        _case(0, 24, pre_norm=True),
        _case(1, 24),
        _case(1, 24, 0.5, pre_norm=True),
        _case(63, 37),
        _case(63, 37, 0.1),
        _case(63, 37, 0.5, bias=False),
        _case(63, 37, bias=False, pre_norm=True),
        _case(63, 37, 0.1, pre_norm=True),
        _case(300, 89, 0.5, pre_norm=True, scale=100.0),
        _case(300, 1, 0.1, pre_norm=True),
        _case(4096, 768, 0.1, bias=False, benchmark=True),
        _case(4096, 768, bias=False, pre_norm=True, benchmark=True),
        _case(8192, 256, 0.1, bias=False, benchmark=True),
        _case(8192, 256, bias=False, pre_norm=True, benchmark=True),
    ),
    differentiable=("x_TD", "residual_TD", "weight_D", "bias_D"),
)
