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


class Cut(NamedTuple):
    """How a parameter is cut into equal blocks."""

    dim: int
    groups: int = 1
    """Along the dimension lie so many matrices side by side, each of which is cut: queries, keys and values, say."""


class Block(NamedTuple):
    """One of the blocks that a parameter was cut into."""

    dim: int
    groups: int
    number: int
    parts: int

    def of(self, whole: Tensor) -> Tensor:
        """This block of a parameter, or of a tensor of its shape."""
        blocks: Tensor = whole.unflatten(self.dim, (self.groups, self.parts, -1))
        return blocks.select(self.dim + 1, self.number).flatten(self.dim, self.dim + 1)

    def join(self, blocks: Sequence[Tensor]) -> Tensor:
        """The whole, from all blocks in their order."""
        pieces = [block.unflatten(self.dim, (self.groups, -1)) for block in blocks]
        return torch.stack(pieces, dim=self.dim + 1).flatten(self.dim, self.dim + 2)


class Layout(ABC):
    """A model's master weights and where they are: the training step is the same for all of them."""

    masters: dict[str, nn.Parameter]
    """The fp32 weights that this process's optimizer acts on, by the plain model's parameter names."""

    shapes: dict[str, torch.Size]
    """Of all of the model's parameters, or of the blocks that this process computes with, by name. A master that is
    only a part of that is flat."""
    blocks: dict[str, Block]
    """Which block of a parameter that is, where it was cut."""
    copies: frozenset[str]
    """The masters that another process holds too, and counts and saves."""
    num_parameters: int
    """Of the whole model."""
    starts: dict[str, int]
    """Of the masters that are parts of their parameters: the first element, of the flattened parameter."""
    part: Part
    """Which part of the state this process's masters are."""

    @abstractmethod
    def awake(self) -> AbstractContextManager[None]:
        """Within it the model may be called."""

    @abstractmethod
    def expect_gradients(self, last: bool, run: int = 0) -> None:
        """Call it before the backward pass of each micro-batch through one of this process's runs of layers; `last` of
        the step.
        """

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
