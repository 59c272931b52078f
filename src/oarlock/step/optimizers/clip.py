"""Clipping by the global gradient norm, and what becomes of a step whose gradients are not finite."""

from collections.abc import Container, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from oarlock.ops import gradient_norm
from oarlock.parallel import Layout


@torch.no_grad()
def limit_gradients(optimizers: Iterable[Optimizer], max_norm: float | None, layout: Layout | None = None) -> Tensor:
    """Have the next step of the optimizers divide all gradients by max(1, norm / max_norm), where `norm` is their
    global Euclidean norm; with `max_norm` None they stay as they are. Returns the norm, a 0-d tensor on their device.

    A step whose norm is not finite is skipped: weights, moments and counters stay as they were. Nothing is read by the
    host. AdamW and LAMB are told by what torch's gradient scaler uses, their attributes `grad_scale` and `found_inf`,
    and divide while they read. Other optimizers find their gradients divided already, and those of a step that is not
    finite set to zero: their momentum moves on.

    With a layout, the parameters are its masters, and the norm is that over all processes' together. Parameters
    without a gradient do not count; at least one must have one.
    """
    optimizers = list(optimizers)
    copies = {id(layout.masters[name]) for name in layout.copies} if layout else set()
    norm = gradient_norm([gradient for optimizer in optimizers for gradient in _gradients(optimizer, copies)])
    norm = layout.norm(norm) if layout else norm
    found_inf = (~norm.isfinite()).to(norm.dtype)
    grad_scale = torch.ones_like(norm) if max_norm is None else (norm / max_norm).clamp(min=1.0)
    for optimizer in optimizers:
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            optimizer.grad_scale, optimizer.found_inf = grad_scale, found_inf  # type: ignore[attr-defined]
        else:
            for gradient in _gradients(optimizer):
                gradient.copy_(torch.where(found_inf != 0, 0.0, gradient / grad_scale))
    return norm


def _gradients(optimizer: Optimizer, without: Container[int] = ()) -> list[Tensor]:
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [parameter.grad for parameter in parameters if parameter.grad is not None and id(parameter) not in without]
