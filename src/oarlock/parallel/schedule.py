"""In which order a process of a pipeline does its work.

A pipeline of p processes, each with v runs of layers, passes m micro-batches through all p v runs and back. With equal
times of all runs, a process has nothing to do for this share of a step:

    gpipe, 1f1b   (p - 1) / (m + p - 1)               Huang et al., 2019, arXiv:1811.06965;
                                                      Narayanan et al., 2019 (PipeDream)
    interleaved   (p - 1) / (v m + p - 1)             Narayanan et al., 2021, arXiv:2104.04473
    zero-bubble   (p - 1) (f + b - w) / (m (f + b + w) + (p - 1) (f + b - w))
                                                      ZB-H1 of Qi et al., 2023, arXiv:2401.10241

where f, b and w are the times of the forward pass, of the gradients that are handed on, and of those of the weights.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple


class Action(NamedTuple):
    """One thing to do."""

    kind: Literal["forward", "backward", "weights"]
    """`weights`: what the backward pass has put off."""
    run: int
    """Which of the process's runs of layers, from 0."""
    microbatch: int


WARM_UP: dict[str, Callable[[int, int, int, int], int]] = {
    "gpipe": lambda rank, size, runs, total: total,
    "1f1b": lambda rank, size, runs, total: size - rank - 1,
    "interleaved": lambda rank, size, runs, total: 2 * (size - rank - 1) + (runs - 1) * size,
    "zero-bubble": lambda rank, size, runs, total: size - rank - 1,
}
"""Forward passes before the first backward pass follows one."""


def forward_actions(size: int, runs: int, num_microbatches: int) -> list[Action]:
    """The forward passes of every process: `size` micro-batches at a time through a run before the next run."""
    return [
        Action("forward", run, microbatch)
        for first in range(0, num_microbatches, size)
        for run in range(runs)
        for microbatch in range(first, min(first + size, num_microbatches))
    ]


def actions(schedule: str, rank: int, size: int, runs: int, num_microbatches: int) -> list[Action]:
    """What process `rank` of a pipeline of `size` does in a step, in order.

    It may begin an action when those on which it depends are done: nothing else has to be waited for.
    """
    even = -(-num_microbatches // size) * size if runs > 1 else num_microbatches  # what interleaving is defined for
    forward = forward_actions(size, runs, even)
    backward = [Action("backward", runs - 1 - run, microbatch) for _, run, microbatch in forward]
    warm_up = min(len(forward), WARM_UP[schedule](rank, size, runs, len(forward)))
    order = forward[:warm_up]
    for number, action in enumerate(backward):
        order += [*forward[warm_up + number : warm_up + number + 1], action]
        if schedule == "zero-bubble" and number >= rank:
            order.append(backward[number - rank]._replace(kind="weights"))
    if schedule == "zero-bubble":
        order += [action._replace(kind="weights") for action in backward[max(0, len(backward) - rank) :]]
    return [action for action in order if action.microbatch < num_microbatches]
