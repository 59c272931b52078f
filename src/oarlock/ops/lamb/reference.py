"""LAMB in plain torch, one tensor at a time."""

import torch
from torch import Tensor


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
    skip = found_inf != 0
    for w, gradient, m, v, step in zip(weights, gradients, first, second, steps, strict=True):
        g = gradient / grad_scale
        count = step + 1
        new_m = beta1 * m + (1 - beta1) * g
        new_v = beta2 * v + (1 - beta2) * g * g
        update = new_m / (1 - beta1**count) / ((new_v / (1 - beta2**count)).sqrt() + epsilon) + weight_decay * w
        ratio = _ratio(w, update) if trust else torch.ones_like(step)
        for old, new in ((w, w - lr * ratio * update), (m, new_m), (v, new_v), (step, count)):
            old.copy_(torch.where(skip, old, new))


def _ratio(weight: Tensor, update: Tensor) -> Tensor:
    weight_norm, update_norm = weight.square().sum().sqrt(), update.square().sum().sqrt()
    return torch.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1.0)
