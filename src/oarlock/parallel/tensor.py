"""Tensor parallelism (Shoeybi et al., 2019, arXiv:1909.08053): processes that each compute a part of every layer.

A module that can be cut says how (`Splittable`): its first linear layer by outputs, its last by inputs, so that what
lies between needs no exchange. What it is given is the same on every process; the parts of what it returns are added
up, and so are those of the gradient of what it was given: two all-reduces of [T, D] each way in a Transformer layer.
All else is computed by every process alike.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from oarlock.parallel.groups import Group
from oarlock.parallel.layout import Block, Cut


@runtime_checkable
class Splittable(Protocol):
    """A module that can become one of several equal parts of itself. Its first input and its output are [T, D]."""

    def split(self, index: int, count: int) -> Mapping[str, Cut]:
        """Become part `index`; returns how its linear layers are cut, by their names in the module."""


def split(model: nn.Module, group: Group) -> dict[str, Block]:
    """Leave of every splittable module this process's part; returns what was left of each parameter that was cut.

    A bias that is added to a sum of parts stays with the first process alone.
    """
    blocks: dict[str, Block] = {}
    for path, module in model.named_modules():
        cuts = module.split(group.rank, group.size) if isinstance(module, Splittable) else {}
        for name, cut in cuts.items():
            linear = module.get_submodule(name)
            for leaf, parameter in list(linear.named_parameters(recurse=False)):
                if parameter.ndim > cut.dim:
                    block = Block(*cut, group.rank, group.size)
                    setattr(linear, leaf, nn.Parameter(block.of(parameter.detach()).clone(), parameter.requires_grad))
                    blocks[f"{path}.{name}.{leaf}"] = block
                elif group.rank > 0:
                    setattr(linear, leaf, None)
        if cuts:
            module.register_forward_pre_hook(partial(_enter, group))
            module.register_forward_hook(partial(_leave, group))
    return blocks


def _enter(group: Group, module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (_SumGradients.apply(arguments[0], group), *arguments[1:])  # type: ignore[no-untyped-call]


def _leave(group: Group, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
    out: Tensor = _SumParts.apply(output, group)  # type: ignore[no-untyped-call]
    return out


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _sum(grads[0], ctx.group), None


class _SumParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def _sum(x: Tensor, group: Group) -> Tensor:
    total = x.contiguous().clone()
    group.all_reduce(total)()
    return total
