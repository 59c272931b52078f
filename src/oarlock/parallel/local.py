"""A model trained by one process: fp32 master weights behind what computes.

In bf16 the model holds copies, written once a step, so that no weight is cast again within it. A copy's gradient is
fp32 from where an operator sums it to where the optimizer reads it: autograd adds micro-batches up in that type, and
the master takes the sum over without copying it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from oarlock.parallel.layout import DTYPES, Layout, Part


class Local(Layout):
    """Everything in one place."""

    def __init__(self, model: nn.Module, precision: str) -> None:
        """Takes the model's parameters over: the masters are they themselves, or stand behind their new bf16 copies."""
        self.masters = {}
        self._pairs: list[tuple[Tensor, Tensor]] = []
        for name, parameter in model.named_parameters():
            self.masters[name] = parameter
            if DTYPES[precision] != torch.float32:
                self.masters[name] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                parameter.data = parameter.data.to(DTYPES[precision])
                self._pairs.append((parameter, self.masters[name]))
                if parameter.requires_grad:
                    parameter.grad_dtype = torch.float32
                    parameter.register_post_accumulate_grad_hook(partial(_hand_over_gradient, self.masters[name]))
        self.shapes = {name: master.shape for name, master in self.masters.items()}
        self.starts, self.blocks, self.copies, self.part = {}, {}, frozenset(), Part()
        self.num_parameters = sum(master.numel() for master in self.masters.values())

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Weights are always there."""
        yield

    def expect_gradients(self, last: bool, run: int = 0) -> None:
        """Nothing to prepare."""

    def finish_gradients(self) -> None:
        """They are where they are to be."""

    @torch.no_grad()
    def write_copies(self) -> None:
        """Bring the model's copies up to date with their masters."""
        if self._pairs:
            copies, masters = zip(*self._pairs, strict=True)
            torch._foreach_copy_(copies, masters)
            for copy in copies:
                copy.grad = None
        for master in self.masters.values():
            master.grad = None

    def total(self, values: Tensor) -> Tensor:
        """The values."""
        return values

    def whole_sums(self, sums: Tensor, names: Sequence[str]) -> Tensor:
        """The sums."""
        return sums

    def norm(self, norm: Tensor) -> Tensor:
        """The norm."""
        return norm


def _hand_over_gradient(master: nn.Parameter, copy: Tensor) -> None:
    # One tensor serves both until the step clears it, so that the next micro-batch adds to it.
    master.grad = copy.grad
