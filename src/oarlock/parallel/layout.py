"""What a step needs to know of how a model's state lies over processes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Part(NamedTuple):
    """One of the parts that together are a whole state."""

    number: int = 0
    of: int = 1
    kept: bool = True
    """Whether this process is the one that keeps it: replicas hold the same."""


class Layout(ABC):
    """A model's master weights and where they are: the training step is the same for all of them."""

    masters: dict[str, nn.Parameter]
    """The fp32 weights that this process's optimizer acts on, by the plain model's parameter names."""

    shapes: dict[str, torch.Size]
    """Of all of the model's parameters, by name. A master that is only a part of its parameter is flat."""
    starts: dict[str, int]
    """Of the masters that are parts of their parameters: the first element, of the flattened parameter."""
    part: Part
    """Which part of the state this process's masters are."""

    @abstractmethod
    def awake(self) -> AbstractContextManager[None]:
        """Within it the model may be called."""

    @abstractmethod
    def expect_gradients(self, last: bool) -> None:
        """Call it before the forward pass of each micro-batch whose gradient counts; `last` of the step."""

    @abstractmethod
    def finish_gradients(self) -> None:
        """Return when the masters have the gradient of the global batch, after the last backward pass."""

    @abstractmethod
    def write_copies(self) -> None:
        """Begin to bring the weights that compute up to date with the masters, and forget gradients."""

    @abstractmethod
    def total(self, values: Tensor) -> Tensor:
        """The sum of everybody's `values`, which come from each one's own sequences."""

    @abstractmethod
    def whole_sums(self, sums: Tensor, names: Sequence[str]) -> Tensor:
        """Sums over whole parameters, [..., P], from those over this process's parts of them, by name."""

    @abstractmethod
    def norm(self, norm: Tensor) -> Tensor:
        """The Euclidean norm over all masters, from that over this process's."""
