"""The two running moments that Adam's relatives share, laid out for torch's multi-tensor operations."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Tensors = list[Tensor] | tuple[Tensor, ...]  # what torch's multi-tensor operations take and give


@dataclass(frozen=True)
class Moments:
    """The parameters of one group that have a gradient: five lists of equal length, one entry a parameter."""

    weights: list[Tensor]
    gradients: list[Tensor]
    first: list[Tensor]
    """Running mean of the gradient, of the parameter's shape; `exp_avg` in the state."""
    second: list[Tensor]
    """Running mean of the squared gradient, of the parameter's shape; `exp_avg_sq` in the state."""
    steps: list[int]
    """Updates of each parameter, the present one included."""


def advance(optimizer: Optimizer, group: dict[str, Any]) -> Moments:
    """Count one more update of each parameter of `group` that has a gradient; state that is missing starts at zero.

    The counter is a 0-d fp32 tensor on the host, as in torch's own AdamW: to read it waits for no device.
    """
    moments = Moments([], [], [], [], [])
    for weight in group["params"]:
        if weight.grad is None:
            continue
        state = optimizer.state[weight]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        state["step"] += 1
        moments.weights.append(weight)
        moments.gradients.append(weight.grad)
        moments.first.append(state["exp_avg"])
        moments.second.append(state["exp_avg_sq"])
        moments.steps.append(int(state["step"].item()))
    return moments
