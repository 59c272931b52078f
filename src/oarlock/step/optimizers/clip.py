"""Clipping by the global gradient norm, without reading the device."""

from collections.abc import Iterable

import torch
from torch import Tensor


def clip_gradients(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)), where `norm` is their global Euclidean norm.

    Returns the norm before scaling, a 0-d tensor on the gradients' device. With `max_norm` None nothing is scaled.
    Parameters without a gradient do not count. A gradient that is not finite makes the returned norm not finite and,
    where clipping is on, every gradient NaN or 0: nothing is hidden, and the host does not wait to find out.
    """
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in with_gradient if p.grad is not None])
    if max_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(with_gradient, max_norm, norm)
    return norm
