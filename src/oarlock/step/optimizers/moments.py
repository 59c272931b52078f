"""The two running moments that Adam's relatives share, laid out for multi-tensor operations."""

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
    counters: list[Tensor]
    """Updates of each parameter, 0-d, fp32; `step` in the state."""


def moments_of(optimizer: Optimizer, group: dict[str, Any], *, counters_on_device: bool) -> Moments:
    """The state of each parameter of `group` that has a gradient; what is missing starts at zero.

    Counters are on the parameter's device, or on the host, where reading them waits for no device.
    """
    moments = Moments([], [], [], [], [])
    for weight in group["params"]:
        if weight.grad is None:
            continue
        state = optimizer.state[weight]
        if not state:
            device = weight.device if counters_on_device else None
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            state["exp_avg"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        moments.weights.append(weight)
        moments.gradients.append(weight.grad)
        moments.first.append(state["exp_avg"])
        moments.second.append(state["exp_avg_sq"])
        moments.counters.append(state["step"])
    return moments
