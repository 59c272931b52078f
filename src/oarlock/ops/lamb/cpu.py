"""LAMB on a CPU: compiled, all tensors at once."""

import torch
from torch import Tensor

from oarlock.ops import native
from oarlock.ops.lamb import reference

_measure = native.kernel("lamb_measure", "lllll" + "tttt" + "i" + "ffff")
_apply = native.kernel("lamb_apply", "llll" + "ttt" + "i" + "fffff" + "i")


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
    """Move the moments on, and return the squared norms of weights and updates, fp64 [2, tensors]."""
    settings = beta1, beta2, epsilon, weight_decay
    if not _serves([*weights, *first, *second, *steps], [*gradients, grad_scale, found_inf]):
        return reference.measure_(weights, gradients, first, second, steps, grad_scale, found_inf, *settings)
    for name, tensors in (("gradients", gradients), ("first", first), ("second", second)):
        fits = [x.shape for x in tensors] == [weight.shape for weight in weights]
        native.demand(fits, f"{name} are not of the shapes of the weights")
    native.demand(len(steps) == len(weights), f"{len(weights)} weights have {len(steps)} counters")
    gradients = [gradient.contiguous() for gradient in gradients]
    squares = torch.zeros(2, len(weights), dtype=torch.float64)
    sizes = _sizes(weights)
    _measure(
        weights, gradients, first, second, steps, sizes, grad_scale, found_inf, squares, len(weights), *settings
    )  # fmt: skip
    return squares


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
    settings = lr, beta1, beta2, epsilon, weight_decay
    if not _serves([*weights, *first, *second, *steps], [found_inf]):
        reference.apply_(weights, first, second, steps, squares, found_inf, *settings, trust)
        return
    squares, sizes = squares.contiguous(), _sizes(weights)
    _apply(weights, first, second, steps, sizes, squares, found_inf, len(weights), *settings, trust)


def _serves(changed: list[Tensor], read: list[Tensor]) -> bool:
    return all(x.dtype == torch.float32 for x in (*changed, *read)) and all(x.is_contiguous() for x in changed)


def _sizes(weights: list[Tensor]) -> Tensor:
    return torch.tensor([weight.numel() for weight in weights])
