"""LAMB: Adam's update, scaled for each tensor to the size of its weights."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from oarlock.step.optimizers.moments import Tensors, advance


class Lamb(Optimizer):
    """LAMB (You et al., 2020, arXiv:1904.00962, algorithm 2), bias-corrected as in the MLPerf BERT reference.

    With m, v the bias-corrected moments of the gradient and w the weights of one tensor:

        u = m / (sqrt(v) + epsilon) + weight_decay * w
        w = w - lr * r * u        r = |w| / |u|, or 1 where either norm is 0

    A group with `trust` False (biases and norms) has r = 1. The trust ratio r is not clamped. A gradient that is not
    finite makes its tensor's weights and moments NaN.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        trust: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            moments = advance(self, group)
            if not moments.weights:
                continue
            beta1, beta2 = group["betas"]
            torch._foreach_lerp_(moments.first, moments.gradients, 1 - beta1)
            torch._foreach_mul_(moments.second, beta2)
            torch._foreach_addcmul_(moments.second, moments.gradients, moments.gradients, 1 - beta2)

            roots = torch._foreach_div(moments.second, [1 - beta2**step for step in moments.steps])
            torch._foreach_sqrt_(roots)
            torch._foreach_add_(roots, group["eps"])
            updates = torch._foreach_div(moments.first, [1 - beta1**step for step in moments.steps])
            torch._foreach_div_(updates, roots)
            if group["weight_decay"]:
                torch._foreach_add_(updates, moments.weights, alpha=group["weight_decay"])
            if group["trust"]:
                torch._foreach_mul_(updates, trust_ratios(moments.weights, updates))
            torch._foreach_add_(moments.weights, updates, alpha=-group["lr"])


def trust_ratios(weights: Tensors, updates: Tensors) -> list[Tensor]:
    """|w| / |u| for each pair of tensors, 1 where either norm is 0; 0-d tensors."""
    weight_norms = torch.stack(torch._foreach_norm(weights))
    update_norms = torch.stack(torch._foreach_norm(updates))
    both = (weight_norms > 0) & (update_norms > 0)
    return list(torch.where(both, weight_norms / update_norms, 1.0).unbind())
