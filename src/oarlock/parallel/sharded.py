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
from oarlock.parallel.pipeline import Staged, keep
from oarlock.parallel.tensor import split
from oarlock.parallel.unit import Round, Unit


class Sharded(Layout):
    """The state of a run of several processes. All must go through the same calls in the same order."""

    def __init__(self, model: Staged, plan: Plan, groups: Groups, precision: str) -> None:
        """Takes the model's parameters over: each of its layers is a unit of its own, and so is the rest; the tied
        weights that both ends of a pipeline hold are another. Every process brings a model with the same weights.
        """
        whole = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.num_parameters = sum(shape.numel() for shape in whole.values())
        self.blocks, alike = split(model, groups.tensor, plan.sequence_parallel)
        spans = plan.spans(len(model.layers))[groups.pipe.rank :: groups.pipe.size]
        tied = keep(model, spans, groups.pipe)
        self._groups = groups
        self._stage = plan.shard_stage
        self._shard, self._replicas = (groups.shard, groups.replicate) if self._stage else (Group(), groups.data)
        named = dict(model.named_parameters())
        self._alike = {id(named[name]) for name in alike & named.keys()}
        in_layers = {id(p): number for number, layer in enumerate(model.layers) if layer for p in layer.parameters()}
        sorted_: dict[int | str, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in named.items():
            where = in_layers.get(id(parameter), "tied" if name in tied else "rest")
            sorted_.setdefault(where, []).append((name, parameter))
        build = partial(Unit, group=self._shard, dtype=DTYPES[precision], frees=self._stage == 3)
        self._outside = [build(sorted_[where]) for where in ("rest", "tied") if where in sorted_]
        self._tied = self._outside[-1] if tied else None
        layers = {number: build(sorted_[number]) for span in spans for number in span}
        self._rounds = [Round([layers[number] for number in reversed(span)]) for span in spans]
        self._rounds[-1 if groups.pipe.rank > 0 else 0].order.extend(self._outside)
        self._arriving: list[tuple[Round, Unit, Callable[[], Tensor]]] = []
        self._giving: list[Callable[[], None]] = []
        for round_, span in zip(self._rounds, spans, strict=True):
            for unit in round_.order:
                for parameter in unit.parameters:
                    if parameter.requires_grad:
                        parameter.register_post_accumulate_grad_hook(partial(self._one_gradient, round_, unit))
            for number in span:
                layer = model.layers[number]
                before, after = ([layers[n] for n in (number + by,) if n in span] for by in (-1, 1))
                # The last layer's backward pass comes at once, unless other micro-batches come between.
                keeps = number == span[-1] and groups.pipe.size == 1
                layer.register_forward_pre_hook(partial(self._before_layer, layers[number], after))
                layer.register_forward_hook(partial(self._after_layer, layers[number], before, keeps))
        self._units = [unit for round_ in self._rounds for unit in round_.order]
        segments = {name: segment for unit in self._units for name, segment in unit.segments.items()}
        self.shapes = whole | {name: parameter.shape for name, parameter in named.items()}
        self.masters = {name: segments[name].weights for name in self.shapes if name in segments}
        self.starts = {n: s.start for n, s in segments.items() if s.weights.numel() < self.shapes[n].numel()}
        copies = self.masters.keys() - self.blocks.keys() if groups.tensor.rank > 0 else set()
        self.copies = frozenset(copies | (tied if groups.pipe.rank > 0 else set()) & self.masters.keys())
        number = (groups.pipe.rank * groups.tensor.size + groups.tensor.rank) * self._shard.size + self._shard.rank
        of = groups.pipe.size * groups.tensor.size * self._shard.size
        self.part = Part(number, of, self._replicas.rank == 0)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Within it the weights outside of layers are there; layers fetch their own."""
        for unit in self._outside:
            unit.gather()
        for unit in self._outside:
            unit.wait()
        yield
        for unit in self._outside:
            unit.free()

    def expect_gradients(self, last: bool, run: int = 0) -> None:
        """Be told of the gradients of a micro-batch."""
        self._settle()
        self._rounds[run].expect(last)

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
        for unit in (*self._outside, *(unit for unit in self._units if unit not in self._outside)):
            unit.publish()

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        self._groups.data.all_reduce(values)()
        self._groups.pipe.all_reduce(values)()
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
        self._groups.pipe.all_reduce(values)()
        return values

    @torch.no_grad()
    def _one_gradient(self, round_: Round, unit: Unit, _: Tensor) -> None:
        round_.missing[unit] -= 1
        for complete in round_.completed():
            self._reduce(round_, complete)

    def _reduce(self, round_: Round, unit: Unit) -> None:
        if self._stage >= 2 or round_.last:
            self._settle()  # the unit before: its sum had time to arrive
            self._sum_alike(unit)
            self._arriving.append((round_, unit, self._shard.reduce_scatter(unit.take_gradients())))
        if unit not in self._outside:
            unit.free()

    def _sum_alike(self, unit: Unit) -> None:
        """Add up the gradients of parameters that all processes of a layer have whole, each from its own tokens."""
        gradients = [p.grad for p in unit.parameters if id(p) in self._alike and p.grad is not None]
        if gradients:
            total = torch.cat([gradient.flatten() for gradient in gradients])
            self._groups.tensor.all_reduce(total)()
            parts = total.split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def _settle(self) -> None:
        for round_, unit, arrives in self._arriving:
            unit.add_gradient(arrives())
            if round_.last:
                ends = self._groups.ends if unit is self._tied else Group()
                self._giving.append(unit.hand_over_gradient((self._replicas, ends)))
        self._arriving = []

    def _before_layer(self, unit: Unit, following: list[Unit], _: nn.Module, arguments: Any) -> None:
        self._fetch(unit, following)

    def _after_layer(
        self,
        unit: Unit,
        following: list[Unit],
        keeps: bool,
        _: nn.Module,
        arguments: Any,
        outputs: tuple[Tensor | None, ...],
    ) -> None:
        differentiable = [out for out in outputs if isinstance(out, Tensor) and out.requires_grad]
        for out in differentiable:
            out.register_hook(lambda grad: self._fetch(unit, following))
        if not (differentiable and keeps):
            unit.free()

    def _fetch(self, unit: Unit, following: list[Unit]) -> None:
        """Have a layer's weights there, and those that follow on their way."""
        unit.gather()
        for other in following:
            other.gather()
        unit.wait()
