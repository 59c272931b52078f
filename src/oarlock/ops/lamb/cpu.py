"""LAMB on a CPU: compiled, all tensors at once."""

import torch
from torch import Tensor

from oarlock.ops import native
from oarlock.ops.lamb import reference

_lamb = native.kernel("lamb", "lllllttti" + "fffff" + "i")


def update_(
    weights: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
    grad_scale: Tensor,
    found_inf: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    trust: bool,
) -> None:
    """Update every tensor, or none where `found_inf` is 1."""
    changed = [*weights, *first, *second, *steps]
    read = [*gradients, grad_scale, found_inf]
    if any(x.dtype != torch.float32 for x in (*changed, *read)) or not all(x.is_contiguous() for x in changed):
        reference.update_(
            weights, gradients, first, second, steps,
            grad_scale, found_inf, lr, beta1, beta2, epsilon, weight_decay, trust,
        )  # fmt: skip
        return
    gradients = [gradient.contiguous() for gradient in gradients]
    sizes = torch.tensor([weight.numel() for weight in weights])
    _lamb(
        weights, gradients, first, second, steps, sizes, grad_scale, found_inf, len(weights),
        lr, beta1, beta2, epsilon, weight_decay, trust,
    )  # fmt: skip
