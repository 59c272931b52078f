"""Cases of output projection and cross entropy.

Suffixes: M targets, D hidden, V vocabulary (padded).
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as torch_cross_entropy
from torch.nn.functional import linear

from oarlock.ops.case import Case, Inputs, OperatorCases, random
from oarlock.ops.cross_entropy import cross_entropy


def _case(
    name: str, num_targets: int, size: int, vocab_size: int, padded: int, spread: float = 1.0, benchmark: bool = False
) -> Case:
    def inputs(device: torch.device, dtype: torch.dtype) -> Inputs:
        targets = torch.arange(num_targets, dtype=torch.int64) * 7919 % vocab_size
        return {
            "hidden_MD": random(num_targets, size, seed=1, device=device, dtype=dtype),
            "weight_VD": random(padded, size, seed=2, device=device, dtype=dtype, scale=spread * size**-0.5),
            "bias_V": random(padded, seed=3, device=device, dtype=dtype),
            "targets_M": targets.to(device),
            "vocab_size": vocab_size,
            "denominator": max(1, num_targets),
        }

    return Case(name, inputs, benchmark)


def _plain(
    hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_M: Tensor, vocab_size: int, denominator: int
) -> Tensor:
    logits = linear(hidden_MD, weight_VD, bias_V)[:, :vocab_size]
    return torch_cross_entropy(logits.float(), targets_M, reduction="sum") / denominator


CASES = OperatorCases(
    cross_entropy,
    _plain,
    (
        _case("no targets", 0, 24, 13, 16),
        _case("one target", 1, 24, 13, 16),
        _case("63 targets of 13 ids", 63, 37, 13, 16),
        _case("63 targets of 1,000 ids, odd", 63, 37, 1000, 1003),
        _case("two ids", 5, 24, 2, 8),
        _case("700 targets of 4,090 ids, far out", 700, 64, 4090, 4096, spread=2.0),
        _case("2,300 targets of 8,185 ids", 2300, 40, 8185, 8192),
        _case("640 targets x 768 of 30,522 ids", 640, 768, 30522, 30528, benchmark=True),
        _case("1,200 targets x 256 of 30,522 ids", 1200, 256, 30522, 30528, benchmark=True),
    ),
    differentiable=("hidden_MD", "weight_VD", "bias_V"),
)
