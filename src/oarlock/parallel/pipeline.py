"""A pipeline: processes that have some of a model's layers each, and hand micro-batches on (Huang et al., 2019,
arXiv:1811.06965).

What is handed on are hidden states, and on the way back their gradients. Their shapes follow from the batch, which
every process has, so nothing but them is sent: for b bytes a number, states of [T, D] and h of them at a border (BERT
one, ModernBERT two), h b T D bytes in each direction, border and micro-batch. One process alone is a pipeline too.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from oarlock.batches import Batch
from oarlock.config import Plan
from oarlock.parallel.groups import Group, Groups
from oarlock.parallel.layout import DTYPES, Layout
from oarlock.parallel.schedule import Action, actions, forward_actions

States = tuple[Tensor, ...]
Wait = Callable[[], None]

AHEAD = 2  # actions for which a process receives before it comes to them
MOST_STATES = 2


class Staged(nn.Module, ABC):
    """A model that can be gone through run by run of its layers."""

    @property
    @abstractmethod
    def layers(self) -> nn.ModuleList:
        """In the order of the forward pass."""

    @abstractmethod
    def run(self, batch: Batch, states: States | None, layers: range) -> States:
        """Through some of the layers; from the embeddings where `states` is None."""

    @abstractmethod
    def loss(self, batch: Batch, states: States) -> Tensor:
        """What the last layer's states come to."""

    @abstractmethod
    def loss_and_hits(self, batch: Batch, states: States) -> tuple[Tensor, Tensor]:
        """The same for evaluation, and how many targets are right."""

    @abstractmethod
    def state_shapes(self, batch: Batch) -> Sequence[Sequence[int]]:
        """Of the one or two states that are handed on between layers."""

    @abstractmethod
    def keep(self, layers: Iterable[int], first: bool, last: bool) -> Iterable[str]:
        """Drop all but some layers and, in the `first` and the `last` stage of a pipeline, what comes before and after
        them; returns the names of the parameters that both have.
        """


@runtime_checkable
class PutsOff(Protocol):
    """A module whose backward pass can put work off: `put_off` is handed what would add gradients of its weights."""

    put_off: Callable[[Wait], None] | None


def keep(model: Staged, spans: Sequence[range], pipe: Group) -> set[str]:
    """Leave of a model what this process of a pipeline computes; returns the names of tied weights that it has."""
    if pipe.size == 1:
        return set()
    tied = model.keep([n for span in spans for n in span], pipe.rank == 0, pipe.rank == pipe.size - 1)
    return set(tied) & {name for name, _ in model.named_parameters()}


class Pipeline:
    """Takes micro-batches forward and backward through the runs of layers that this process has, in a plan's order."""

    def __init__(self, model: Staged, plan: Plan, groups: Groups, precision: str) -> None:
        self._model, self._schedule = model, plan.schedule
        self._down, self._up = groups.pipe, groups.upwards
        self._rank, self._size = groups.pipe.rank, groups.pipe.size
        self._spans = plan.spans(len(model.layers))[self._rank :: self._size]
        self._dtype = DTYPES[precision]
        self._device = next(iter(model.named_parameters()))[1].device
        self._put_off: list[Wait] = []
        self._sending: deque[tuple[Tensor, Wait]] = deque()
        if plan.schedule == "zero-bubble" and self._size > 1:
            for module in model.modules():
                if isinstance(module, PutsOff):
                    module.put_off = self._put_off.append

    def train(self, microbatches: Sequence[Batch], layout: Layout) -> Tensor:
        """Leave the gradients of micro-batches in a layout; returns the losses that came out here, summed, 0-d."""
        todo = actions(self._schedule, self._rank, self._size, len(self._spans), len(microbatches))
        kept: dict[tuple[int, int], tuple[States, States]] = {}
        later: dict[tuple[int, int], list[Wait]] = {}
        loss = torch.zeros((), device=self._device)
        for action, arrived in zip(todo, self._arrivals(todo, microbatches), strict=True):
            kind, key, batch = action.kind, action[1:], microbatches[action.microbatch]
            if kind == "forward":
                made = self._model.run(batch, arrived or None, self._spans[action.run])
                if self._number(action) == self._last:
                    made = (self._model.loss(batch, made),)
                    loss += made[0].detach()
                self._send(action, made)
                kept[key] = arrived, made
            elif kind == "backward":
                given, made = kept.pop(key)
                layout.expect_gradients(action.microbatch == len(microbatches) - 1, action.run)
                torch.autograd.backward(made, arrived or None)
                self._send(action, tuple(state.grad for state in given if state.grad is not None))
                later[key] = self._put_off.copy()
                self._put_off.clear()
            else:
                for add in later.pop(key):
                    add()
        self._wait_for_sends(0)
        return loss

    def evaluate(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """The losses and hits that came out here, summed, 0-d."""
        loss, hits = torch.zeros((), device=self._device), torch.zeros((), device=self._device)
        todo = forward_actions(self._size, len(self._spans), len(batches))
        for action, arrived in zip(todo, self._arrivals(todo, batches), strict=True):
            batch = batches[action.microbatch].to(self._device)
            made = self._model.run(batch, arrived or None, self._spans[action.run])
            if self._number(action) == self._last:
                batch_loss, batch_hits = self._model.loss_and_hits(batch, made)
                loss += batch_loss
                hits += batch_hits
            self._send(action, made)
        self._wait_for_sends(0)
        return loss, hits

    @property
    def _last(self) -> int:
        return self._size * len(self._spans) - 1

    def _number(self, action: Action) -> int:
        """Of the action's run of layers, among all of the model's."""
        return action.run * self._size + self._rank

    def _arrivals(self, todo: Sequence[Action], batches: Sequence[Batch]) -> Iterator[States]:
        """What each action needs from another process, when it has come; the next ones' is on its way by then."""
        coming: deque[tuple[States, list[Wait]]] = deque()
        for number in range(-AHEAD, len(todo)):
            if number + AHEAD < len(todo):
                action = todo[number + AHEAD]
                coming.append(self._receive(action, batches[action.microbatch]))
            if number >= 0:
                states, waits = coming.popleft()
                for wait in waits:
                    wait()
                yield states

    def _receive(self, action: Action, batch: Batch) -> tuple[States, list[Wait]]:
        number, kind = self._number(action), action.kind
        if kind == "weights" or number == (0 if kind == "forward" else self._last):
            return (), []
        group, by, border = (self._down, -1, number - 1) if kind == "forward" else (self._up, 1, number)
        shapes = self._model.state_shapes(batch)
        states = tuple(torch.empty(*shape, dtype=self._dtype, device=self._device) for shape in shapes)
        origin, tag = (self._rank + by) % self._size, self._tag(border, action)
        waits = [group.receive(state, origin, tag + i) for i, state in enumerate(states)]
        return tuple(state.requires_grad_(kind == "forward") for state in states), waits

    def _send(self, action: Action, states: States) -> None:
        number, kind = self._number(action), action.kind
        if number == (self._last if kind == "forward" else 0):
            return
        group, by, border = (self._down, 1, number) if kind == "forward" else (self._up, -1, number - 1)
        for i, state in enumerate(states):
            assert state.dtype == self._dtype
            sent = state.detach().contiguous()
            wait = group.send(sent, (self._rank + by) % self._size, self._tag(border, action) + i)
            self._sending.append((sent, wait))
        # No process is further ahead of its neighbours than this.
        self._wait_for_sends(4 * (self._last + 1))

    def _wait_for_sends(self, left: int) -> None:
        while len(self._sending) > left:
            self._sending.popleft()[1]()

    def _tag(self, border: int, action: Action) -> int:
        return MOST_STATES * (action.microbatch * (self._last + 1) + border)
