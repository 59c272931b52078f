"""Parameters that are gathered, reduced and freed together: a layer's, say.

Their numbers lie one after the other in a flat tensor of N elements, N a multiple of the processes n that share it out;
process r holds the r-th n-th of the fp32 weights, and so of the optimizer's state. What falls on it of a parameter is a
run of the parameter's flattened elements: a *segment*.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from oarlock.parallel.groups import Group


class Segment(NamedTuple):
    """What this process holds of a parameter."""

    weights: nn.Parameter
    """fp32; flat, unless it is all of it."""
    start: int
    """Of its first element in the flattened parameter."""


class Unit:
    """A unit's weights as this process holds them: all in the type that computes, and its share in fp32."""

    def __init__(self, named: list[tuple[str, nn.Parameter]], group: Group, dtype: torch.dtype, *, frees: bool) -> None:
        """Takes over the parameters' memory. With `frees`, weights are there only between `gather` and `free`."""
        self.parameters = [parameter for _, parameter in named]
        self._group, self._frees = group, frees
        sizes = [parameter.numel() for parameter in self.parameters]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        length = -(-sum(sizes) // group.size)
        wide = torch.zeros(length * group.size, device=self.parameters[0].device)
        for parameter, start in zip(self.parameters, self._starts, strict=True):
            wide[start : start + parameter.numel()] = parameter.detach().flatten()
        begin, end = group.rank * length, (group.rank + 1) * length
        self._whole = wide if dtype == torch.float32 else wide.to(dtype)
        # Where weights are fp32 and stay, a process's share is a part of them.
        self._share = wide[begin:end] if self._whole is wide and not frees else wide[begin:end].clone()
        self._narrow = self._share if self._whole is wide else self._whole[begin:end].clone() if frees else None
        self._own = self._whole[begin:end]
        for parameter, start in zip(self.parameters, self._starts, strict=True):
            parameter.data = self._whole[start : start + parameter.numel()].view(parameter.shape)
            if parameter.requires_grad:
                parameter.grad_dtype = torch.float32
        self.segments: dict[str, Segment] = {}
        for (name, parameter), start in zip(named, self._starts, strict=True):
            first, last = max(start, begin), min(start + parameter.numel(), end)
            if first < last:
                weights = self._share[first - begin : last - begin]
                if len(weights) == parameter.numel():
                    weights = weights.view(parameter.shape)
                weights = nn.Parameter(weights, parameter.requires_grad)
                self.segments[name] = Segment(weights, first - start)
        self._begin = begin
        self._gradient: Tensor | None = None
        self._arrives: Callable[[], None] | None = None
        self._there = True
        self.free()

    def gather(self) -> None:
        """Begin to fetch the weights, unless they are there or on their way; all processes of the group must."""
        if self._there:
            return
        self._there = True
        self._whole.untyped_storage().resize_(self._whole.nbytes)
        assert self._narrow is not None
        self._arrives = self._group.all_gather(self._whole, self._narrow)

    def wait(self) -> None:
        """Return when weights that are on their way have arrived."""
        arrives, self._arrives = self._arrives, None
        if arrives is not None:
            arrives()

    def free(self) -> None:
        """Give the memory of the weights back, where they are freed at all."""
        if self._frees:
            self.wait()
            self._there = False
            self._whole.untyped_storage().resize_(0)

    @torch.no_grad()
    def publish(self) -> None:
        """Begin to hand this process's share, which an optimizer has changed, to the others."""
        if self._frees:
            if self._narrow is not None and self._narrow is not self._share:
                self._narrow.copy_(self._share)
            self.free()
            return
        if self._own.data_ptr() != self._share.data_ptr():
            self._own.copy_(self._share)
        self._arrives = self._group.all_gather(self._whole, self._own)

    @torch.no_grad()
    def take_gradients(self) -> Tensor:
        """The parameters' gradients as one flat fp32 tensor, zeros where there is none; they are gone from there."""
        flat = torch.zeros_like(self._whole, dtype=torch.float32)
        for parameter, start in zip(self.parameters, self._starts, strict=True):
            if parameter.grad is not None:
                flat[start : start + parameter.numel()] = parameter.grad.flatten()
                parameter.grad = None
        return flat

    def add_gradient(self, share: Tensor) -> None:
        """Add the sums of this process's share [N / n] to what came before."""
        self._gradient = share if self._gradient is None else self._gradient.add_(share)

    def hand_over_gradient(self, groups: Sequence[Group]) -> Callable[[], None]:
        """Begin to add up the gradient of this process's share over the first of the groups; what comes back does so
        over the others, one after the other, and gives the sums to the segments.
        """
        gradient, self._gradient = self._gradient, None
        assert gradient is not None
        arrives = groups[0].all_reduce(gradient)

        def give() -> None:
            arrives()
            for group in groups[1:]:
                group.all_reduce(gradient)()
            offset = 0
            for segment in self.segments.values():
                size = segment.weights.numel()
                if segment.weights.requires_grad:
                    segment.weights.grad = gradient[offset : offset + size].view(segment.weights.shape)
                offset += size

        return give


class Round:
    """Units whose gradients one backward pass completes, and how many of them are still to come."""

    def __init__(self, order: list[Unit]) -> None:
        """`order` is that in which units are handed on, the same in all processes."""
        self.order = order
        self.missing: Counter[Unit] = Counter()
        self.last = False
        """Whether no further micro-batch follows in this step."""
        self._next = 0

    def expect(self, last: bool) -> None:
        """Be told of one more backward pass."""
        self.last, self._next = last, 0
        for unit in self.order:
            self.missing[unit] += sum(parameter.requires_grad for parameter in unit.parameters)

    def completed(self) -> Iterator[Unit]:
        """The units whose turn it is to be handed on now."""
        while self._next < len(self.order) and self.missing[self.order[self._next]] == 0:
            self._next += 1
            yield self.order[self._next - 1]
