"""Device values on their way to the host: copied without waiting, read some steps later.

torch is imported only where a CUDA value is met, so that a command that trains nothing does not wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class StepRecord:
    """What the training loop knows of one step when it has been asked for, but maybe not yet computed."""

    step: int
    """Optimizer step, from 1."""
    loss: Tensor
    """Of the whole global batch, in nats a target; a scalar on the device."""
    grad_norm: Tensor
    """Global gradient norm before clipping; a scalar on the device."""
    learning_rate: float
    num_tokens: int
    """Useful tokens of the whole global batch."""
    imbalance: float
    """Largest over mean number of tokens of a (rank, micro-batch) cell."""


@dataclass(frozen=True)
class DrainedStep:
    """The same step with its values on the host."""

    record: StepRecord
    loss: float
    grad_norm: float


class Drain:
    """A queue of steps. What lies on a CUDA device is read `lag` steps after it was asked for, the rest at once.

    By then the device has long computed it, so reading does not wait; and a host that runs ahead of its device is
    held to `lag` steps.
    """

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._waiting: deque[tuple[StepRecord, Tensor, Tensor, torch.cuda.Event | None]] = deque()

    def push(self, record: StepRecord) -> None:
        """Start the copy of a step's values to the host."""
        loss = record.loss.detach().to("cpu", non_blocking=True)
        grad_norm = record.grad_norm.detach().to("cpu", non_blocking=True)
        self._waiting.append((record, loss, grad_norm, _event() if is_asynchronous(record.loss) else None))

    def ready(self) -> Iterator[DrainedStep]:
        """The steps that can be read without waiting, oldest first."""
        while self._waiting and (self._waiting[0][-1] is None or len(self._waiting) > self._lag):
            yield self._pop()

    def rest(self) -> Iterator[DrainedStep]:
        """All steps; waits for the device."""
        while self._waiting:
            yield self._pop()

    def _pop(self) -> DrainedStep:
        record, loss, grad_norm, event = self._waiting.popleft()
        if event is not None:
            event.synchronize()
        return DrainedStep(record, float(loss), float(grad_norm))


def is_asynchronous(value: Tensor) -> bool:
    """Whether a copy of `value` to the host may still be under way when it has been asked for."""
    return value.is_cuda


def _event() -> torch.cuda.Event:
    import torch

    event = torch.cuda.Event()
    event.record()
    return event
