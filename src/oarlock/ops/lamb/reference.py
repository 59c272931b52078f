"""LAMB in plain torch, one tensor at a time."""

import torch
from torch import Tensor


def measure_(
    weights: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
    grad_scale: Tensor,
    found_inf: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> Tensor:
    """Move the moments and counters on, and return the squared norms of weights and updates, fp64 [2, tensors].

    Where `found_inf` is 1 nothing moves.
    """
    skip = found_inf != 0
    squares = []
    for w, gradient, m, v, step in zip(weights, gradients, first, second, steps, strict=True):
        g = gradient / grad_scale
        new_m, new_v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        for old, new in ((m, new_m), (v, new_v), (step, step + 1)):
            old.copy_(torch.where(skip, old, new))
        update = _update(w, m, v, step, beta1, beta2, epsilon, weight_decay)
        squares.append(torch.stack([w.double().square().sum(), update.double().square().sum()]))
    return torch.stack(squares, dim=1) if squares else grad_scale.new_zeros(2, 0, dtype=torch.float64)


def apply_(
    weights: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
    squares: Tensor,
    found_inf: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    trust: bool,
) -> None:
    """Move the weights by the moments as they are now, or none where `found_inf` is 1."""
    for w, m, v, step, square in zip(weights, first, second, steps, squares.unbind(dim=1), strict=True):
        update = _update(w, m, v, step, beta1, beta2, epsilon, weight_decay)
        ratio = _ratio(square).to(w.dtype) if trust else torch.ones_like(step)
        w.copy_(torch.where(found_inf != 0, w, w - lr * ratio * update))


def _update(
    w: Tensor, m: Tensor, v: Tensor, step: Tensor, beta1: float, beta2: float, epsilon: float, weight_decay: float
) -> Tensor:
    return m / (1 - beta1**step) / ((v / (1 - beta2**step)).sqrt() + epsilon) + weight_decay * w


def _ratio(squares: Tensor) -> Tensor:
    weight_norm, update_norm = squares.sqrt().unbind()
    return torch.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1.0)
