"""LAMB: Adam's update, scaled for each tensor to the size of its weights."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from oarlock.ops import lamb_
from oarlock.step.optimizers.moments import moments_of


class Lamb(Optimizer):
    """LAMB (You et al., 2020, arXiv:1904.00962, algorithm 2), bias-corrected as in the MLPerf BERT reference.

    The formulas are those of the operator `lamb_`, and so is `over_all`. A group with `trust` False (biases and norms)
    has a trust ratio of 1; the ratio is not clamped. Like torch's fused optimizers it takes `grad_scale` and
    `found_inf`; without them, a gradient that is not finite makes its tensor's weights and moments NaN.
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
        over_all: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"trust": trust, "over_all": over_all})
        self._step_supports_amp_scaling = True  # the protocol's own name

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            moments = moments_of(self, group, counters_on_device=True)
            if not moments.weights:
                continue
            device = moments.weights[0].device
            lamb_(
                moments.weights,
                moments.gradients,
                moments.first,
                moments.second,
                moments.counters,
                grad_scale=getattr(self, "grad_scale", torch.ones((), device=device)),
                found_inf=getattr(self, "found_inf", torch.zeros((), device=device)),
                lr=group["lr"],
                betas=group["betas"],
                epsilon=group["eps"],
                weight_decay=group["weight_decay"],
                trust=group["trust"],
                over_all=group["over_all"],
            )
