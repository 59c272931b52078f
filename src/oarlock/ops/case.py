"""What a case of an operator is: inputs for its tests and for its benchmark alike."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oarlock.ops.random_bits import row_keys

Inputs = dict[str, Any]
"""Arguments of an operator's public function, by name."""


class Tolerance(NamedTuple):
    """How far an element may lie from the expected: `absolute * largest expected + relative * expected`."""

    relative: float
    absolute: float


TOLERANCES = {torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(1e-2, 1e-2)}
"""For results of one operator: a few roundings of fp32, two or three of bf16 (2^-8 each)."""


@dataclass(frozen=True)
class Case:
    """One set of inputs."""

    name: str
    inputs: Callable[[torch.device, torch.dtype], Inputs]
    """Makes the inputs anew, the same each time."""
    benchmark: bool = False
    """Whether it is timed too; sizes are then those of a BERT-base layer at Wikipedia lengths, or told by the name."""


@dataclass(frozen=True)
class OperatorCases:
    """All that tests and benchmarks know of an operator."""

    function: Callable[..., Any]
    """The public function; takes a case's inputs and `form`; returns one tensor or several, or changes inputs."""
    plain: Callable[..., Any]
    """The same work as users would write it in plain torch, of the same inputs; dropout's decisions may differ."""
    cases: tuple[Case, ...]
    differentiable: tuple[str, ...] = ()
    """Inputs that get a gradient (a list of tensors: each of them)."""
    changed: tuple[str, ...] = ()
    """Inputs that are changed in place, in place of a result."""
    tolerances: dict[torch.dtype, Tolerance] | None = None
    """Where they differ from TOLERANCES."""


def random(*shape: int, seed: int, device: torch.device, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(device=device, dtype=dtype)


def bounds(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Starts of sequences of these lengths, and the total at the end: int32 [S + 1]."""
    return torch.tensor([0, *lengths]).cumsum(0).to(device=device, dtype=torch.int32)


def positions(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Position of each token in its sequence, int64 [T]."""
    return torch.cat([torch.arange(0), *(torch.arange(length) for length in lengths)]).to(device)


def keys(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Dropout keys of the tokens of sequences of these lengths, int64 [T]."""
    samples = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.int64))
    return row_keys(torch.tensor([11]), 5, samples, positions(lengths, torch.device("cpu"))).to(device)


def rows_keys(num_rows: int, device: torch.device) -> Tensor:
    """Dropout keys of the rows of one sequence, int64 [T]."""
    return keys((num_rows,), device)
