"""StableAdamW: AdamW whose learning rate drops for a tensor whose gradients outgrow its second moment."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from oarlock.step.optimizers.moments import Tensors, moments_of


class StableAdamW(Optimizer):
    """StableAdamW (Wortsman et al., 2023, arXiv:2304.13013, algorithm 2).

    With g the gradient, m and v its moments, w the weights of one tensor, at the tensor's t-th update:

        m += (1 - beta1) / (1 - beta1^t) * (g - m)          v += (1 - beta2) / (1 - beta2^t) * (g^2 - v)
        RMS = sqrt(mean(g^2 / max(v, epsilon^2)))
        w = w - lr / max(1, RMS) * (m / (sqrt(v) + epsilon) + weight_decay * w)

    The moments in the state are thus already free of their start at zero. A gradient that is not finite makes its
    tensor's weights and moments NaN.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            moments = moments_of(self, group, counters_on_device=False)
            if not moments.weights:
                continue
            beta1, beta2 = group["betas"]
            torch._foreach_add_(moments.counters, 1.0)
            steps = [counter.item() for counter in moments.counters]
            new1 = [(1 - beta1) / (1 - beta1**step) for step in steps]
            new2 = [(1 - beta2) / (1 - beta2**step) for step in steps]
            torch._foreach_lerp_(moments.first, moments.gradients, new1)
            torch._foreach_mul_(moments.second, [1 - share for share in new2])
            torch._foreach_addcmul_(moments.second, moments.gradients, moments.gradients, new2)

            roots = torch._foreach_sqrt(moments.second)
            shares = clip_shares(moments.gradients, roots, group["eps"])
            torch._foreach_add_(roots, group["eps"])
            updates = torch._foreach_div(moments.first, roots)
            if group["weight_decay"]:
                torch._foreach_add_(updates, moments.weights, alpha=group["weight_decay"])
            torch._foreach_mul_(updates, shares)
            torch._foreach_add_(moments.weights, updates, alpha=-group["lr"])


def clip_shares(gradients: Tensors, roots: Tensors, epsilon: float) -> list[Tensor]:
    """1 / max(1, RMS) for each tensor, where RMS is that of gradient / max(root of its second moment, epsilon); 0-d."""
    quotients = torch._foreach_div(gradients, torch._foreach_clamp_min(roots, epsilon))
    norms = torch._foreach_norm(quotients)
    torch._foreach_div_(norms, [math.sqrt(gradient.numel()) for gradient in gradients])
    return list(torch.stack(norms).clamp(min=1.0).reciprocal().unbind())
