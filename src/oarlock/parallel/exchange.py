"""What processes that share a layer's work send each other, as functions that autograd knows.

Suffixes: T tokens; t of them, this process's share, the T / n from its rank on.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oarlock.parallel.groups import Group


def sum_gradients(x: Tensor, group: Group) -> Tensor:
    """`x`, the same on every process, of which each computes a part of the gradient."""
    return _apply(x, lambda values: values.view_as(values), lambda grad: sum_parts_of(grad, group))


def sum_parts(x: Tensor, group: Group) -> Tensor:
    """The sum of everybody's `x`; its gradient is the same on every process."""
    return _apply(x, lambda values: sum_parts_of(values, group), lambda grad: grad)


def gather_tokens(x_tD: Tensor, group: Group) -> Tensor:
    """Everybody's tokens, [T, D], of whose gradient each process computes a part."""
    return _apply(x_tD, lambda x: gathered(x, group), lambda grad: scattered(grad, group))


def gather_alike(x_tD: Tensor, group: Group) -> Tensor:
    """Everybody's tokens, [T, D], of which each process computes the same gradient."""
    return _apply(x_tD, lambda x: gathered(x, group), lambda grad: own(grad, group))


def scatter_sums(x_TD: Tensor, group: Group) -> Tensor:
    """Of the sum of everybody's `x`, this process's tokens, [t, D]."""
    return _apply(x_TD, lambda x: scattered(x, group), lambda grad: gathered(grad, group))


def own(x_T: Tensor, group: Group) -> Tensor:
    """This process's tokens."""
    share = x_T.shape[0] // group.size
    return x_T[group.rank * share : (group.rank + 1) * share]


def sum_parts_of(x: Tensor, group: Group) -> Tensor:
    """The sum of everybody's `x`, outside of autograd."""
    total = x.contiguous().clone()
    group.all_reduce(total)()
    return total


def gathered(x_t: Tensor, group: Group) -> Tensor:
    """Everybody's tokens, outside of autograd."""
    whole = x_t.new_empty(group.size * x_t.shape[0], *x_t.shape[1:])
    if x_t.numel() > 0:
        group.all_gather(whole.flatten(), x_t.contiguous().flatten())()
    return whole


def scattered(x_T: Tensor, group: Group) -> Tensor:
    """Of the sum of everybody's `x`, this process's tokens, outside of autograd."""
    share = own(x_T, group)
    if x_T.numel() == 0:
        return share
    return group.reduce_scatter(x_T.contiguous().flatten())().view_as(share)


def _apply(x: Tensor, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]) -> Tensor:
    out: Tensor = _Exchange.apply(x, forward, backward)  # type: ignore[no-untyped-call]
    return out


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.backward_of = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.backward_of(grads[0]), None, None
