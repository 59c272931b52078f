"""A model whose sequences and state are shared out among processes (Rajbhandari et al., 2020, arXiv:1910.02054).

A step's gradients are added up over all processes, unit by unit, while the backward pass goes on to the next. Stage 1
does so in the last micro-batch, and each process updates its share of the weights; stages 2 and 3 in every micro-batch,
and keep of the sums only the share; stage 3 also fetches a layer's weights when they are needed, the next layer's
meanwhile, and frees them after.

With F the bytes of the gradients (fp32), W those of the weights that compute, n processes that share and r replicas, a
process sends in a step of m micro-batches

    reduce-scatter  F (n - 1) / n          (stages 2 and 3: m times as much)
    all-reduce      2 (F / n) (r - 1) / r
    all-gather      W (n - 1) / n          (stage 3: twice for a layer in each micro-batch, once a step for the rest)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from oarlock.config import Plan
from oarlock.parallel.groups import Group, Groups
from oarlock.parallel.layout import DTYPES, Layout, Part
from oarlock.parallel.tensor import split
from oarlock.parallel.unit import Unit


class Sharded(Layout):
    """The state of a data-parallel run. All processes must go through the same calls in the same order."""

    def __init__(
        self, model: nn.Module, layers: Sequence[nn.Module], plan: Plan, groups: Groups, precision: str
    ) -> None:
        """Takes the model's parameters over: each of its `layers`, in the order of the forward pass, is a unit of its
        own, and the rest is one. Every process brings a model with the same weights.
        """
        whole = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.num_parameters = sum(shape.numel() for shape in whole.values())
        self.blocks = split(model, groups.tensor) if groups.tensor.size > 1 else {}
        self._groups = groups
        self._stage = plan.shard_stage
        shard, self._replicas = (groups.shard, groups.replicate) if self._stage else (Group(), groups.data)
        in_layers = {id(parameter) for layer in layers for parameter in layer.parameters()}
        build = partial(Unit, group=shard, dtype=DTYPES[precision], frees=self._stage == 3)
        self._shard = shard
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._rest = build([(names[id(p)], p) for p in model.parameters() if id(p) not in in_layers])
        self._layers = [build([(names[id(p)], p) for p in layer.parameters()]) for layer in layers]
        self._order = [*reversed(self._layers), self._rest]  # in which gradients are complete
        self._missing: dict[Unit, int] = {}
        self._next = 0
        self._last = False
        self._arriving: list[tuple[Unit, Callable[[], Tensor]]] = []
        self._giving: list[Callable[[], None]] = []
        for unit in self._order:
            for parameter in unit.parameters:
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(partial(self._one_gradient, unit))
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(partial(self._before_layer, number))
            layer.register_forward_hook(partial(self._after_layer, number))
        segments = {name: segment for unit in self._order for name, segment in unit.segments.items()}
        self.shapes = whole | {name: parameter.shape for name, parameter in model.named_parameters()}
        self.masters = {name: segments[name].weights for name in self.shapes if name in segments}
        self.starts = {n: s.start for n, s in segments.items() if s.weights.numel() < self.shapes[n].numel()}
        self.copies = frozenset(self.masters.keys() - self.blocks.keys() if groups.tensor.rank > 0 else ())
        number, of = groups.tensor.rank * shard.size + shard.rank, groups.tensor.size * shard.size
        self.part = Part(number, of, self._replicas.rank == 0)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Within it the weights outside of layers are there; layers fetch their own."""
        self._rest.gather()
        self._rest.wait()
        yield
        self._rest.free()

    def expect_gradients(self, last: bool) -> None:
        """Be told of the gradients of a micro-batch."""
        self._settle()
        self._last, self._next = last, 0
        self._missing = {unit: sum(p.requires_grad for p in unit.parameters) for unit in self._order}

    @torch.no_grad()
    def finish_gradients(self) -> None:
        """Wait for the sums."""
        self._settle()
        for give in self._giving:
            give()
        self._giving = []

    def write_copies(self) -> None:
        """Begin to hand out this process's share of the new weights."""
        for master in self.masters.values():
            master.grad = None
        for unit in (self._rest, *self._layers):
            unit.publish()

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        self._groups.data.all_reduce(values)()
        return values

    def whole_sums(self, sums: Tensor, names: Sequence[str]) -> Tensor:
        """Added up over the processes that hold parts; each brings those of the parameters that it has a part of."""
        counted = torch.tensor([name not in self.copies for name in names], device=sums.device)
        number = {name: i for i, name in enumerate(self.shapes)}
        columns = torch.tensor([number[name] for name in names], device=sums.device)
        every = sums.new_zeros(*sums.shape[:-1], len(number)).index_copy_(-1, columns, sums * counted)
        self._over_parts(every)
        return every.index_select(-1, columns)

    def norm(self, norm: Tensor) -> Tensor:
        """The root of the sum of the squares of the processes that hold parts."""
        return self._over_parts(norm.double().square()).sqrt().to(norm.dtype)

    def _over_parts(self, values: Tensor) -> Tensor:
        self._shard.all_reduce(values)()
        self._groups.tensor.all_reduce(values)()
        return values

    @torch.no_grad()
    def _one_gradient(self, unit: Unit, _: Tensor) -> None:
        self._missing[unit] -= 1
        while self._next < len(self._order) and self._missing[self._order[self._next]] == 0:
            self._reduce(self._order[self._next])
            self._next += 1

    def _reduce(self, unit: Unit) -> None:
        if self._stage >= 2 or self._last:
            self._settle()  # the unit before: its sum had time to arrive
            self._arriving.append((unit, self._shard.reduce_scatter(unit.take_gradients())))
        if unit is not self._rest:
            unit.free()

    def _settle(self) -> None:
        for unit, arrives in self._arriving:
            unit.add_gradient(arrives())
            if self._last:
                self._giving.append(unit.hand_over_gradient(self._replicas.all_reduce))
        self._arriving = []

    def _before_layer(self, number: int, _: nn.Module, arguments: Any) -> None:
        self._fetch(number, number + 1)

    def _after_layer(self, number: int, _: nn.Module, arguments: Any, outputs: tuple[Tensor | None, ...]) -> None:
        differentiable = [out for out in outputs if isinstance(out, Tensor) and out.requires_grad]
        for out in differentiable:
            out.register_hook(lambda grad: self._fetch(number, number - 1))
        if not (differentiable and number == len(self._layers) - 1):  # whose backward pass comes at once
            self._layers[number].free()

    def _fetch(self, number: int, following: int) -> None:
        """Have a layer's weights there, and those that follow on their way."""
        self._layers[number].gather()
        if 0 <= following < len(self._layers):
            self._layers[following].gather()
        self._layers[number].wait()
