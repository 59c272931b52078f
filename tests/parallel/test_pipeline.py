"""Pipelines: orders of work that cannot hang, what they cost, and what is kept meanwhile."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oarlock import parallel
from oarlock.batches import Batch, pack
from oarlock.config import Plan
from oarlock.parallel import Staged, connect
from oarlock.parallel.pipeline import States
from oarlock.parallel.schedule import WARM_UP, Action, actions
from oarlock.testing.distributed import run_distributed

SIZE, MICROBATCHES = 4, 8
NAP = 0.03  # seconds
TRIES = 3
BUBBLES = {
    "gpipe": (3 / 11, 0.04),
    "1f1b": (3 / 11, 0.04),
    "interleaved": (3 / 19, 0.08),
    "zero-bubble": (3 / 27, 0.08),
}


def simulated_bubble(schedule: str, size: int, runs: int, num_microbatches: int) -> float:
    """The share of a step in which a process waits, where all runs take equally long. Fails where it hangs."""
    todo = [actions(schedule, rank, size, runs, num_microbatches) for rank in range(size)]
    costs = {"forward": 1, "backward": 1 if schedule == "zero-bubble" else 2, "weights": 1}
    ends: dict[Action, int] = {}  # with the run's number among all
    clocks, busy = [0] * size, sum(costs[action.kind] for action in todo[0])
    while any(todo):
        left = sum(map(len, todo))
        for rank in range(size):
            while todo[rank]:
                action = todo[rank][0]._replace(run=todo[rank][0].run * size + rank)
                needed = dependency(action, size * runs - 1)
                if needed is not None and needed not in ends:
                    break
                clocks[rank] = max(clocks[rank], ends[needed] if needed else 0) + costs[action.kind]
                ends[action] = clocks[rank]
                todo[rank].pop(0)
        assert sum(map(len, todo)) < left, "nobody can go on"
    return 1 - busy / max(clocks)


def dependency(action: Action, last: int) -> Action | None:
    kind, run, _ = action
    if kind == "forward":
        return action._replace(run=run - 1) if run > 0 else None
    if kind == "weights" or run == last:
        return action._replace(kind="backward" if kind == "weights" else "forward")
    return action._replace(run=run + 1)


@pytest.mark.parametrize("schedule", WARM_UP)
def test_no_schedule_hangs_or_forgets(schedule: str) -> None:
    for size in range(1, 7):
        for runs in (2, 3) if schedule == "interleaved" else (1,):
            for total in range(1, 14):
                simulated_bubble(schedule, size, runs, total)
                for rank in range(size):
                    todo = actions(schedule, rank, size, runs, total)
                    kinds = ("forward", "backward", "weights") if schedule == "zero-bubble" else ("forward", "backward")
                    everything = {Action(k, run, m) for k in kinds for run in range(runs) for m in range(total)}  # type: ignore[arg-type]
                    assert len(todo) == len(everything)
                    assert set(todo) == everything


@pytest.mark.parametrize("schedule", WARM_UP)
def test_formulas_of_bubbles(schedule: str) -> None:
    runs = 2 if schedule == "interleaved" else 1
    assert simulated_bubble(schedule, SIZE, runs, MICROBATCHES) == pytest.approx(BUBBLES[schedule][0])


@pytest.mark.parametrize("schedule", ("1f1b", "zero-bubble"))
def test_a_stage_keeps_as_many_microbatches_as_stages_follow(schedule: str) -> None:
    for rank in range(SIZE):
        kept, most = 0, 0
        for action in actions(schedule, rank, SIZE, 1, 20):
            kept += {"forward": 1, "backward": -1, "weights": 0}[action.kind]
            most = max(most, kept)
        assert most == SIZE - rank


class Nap(torch.autograd.Function):
    """Sleeps once on the way forward, and twice on the way back: for its input and for its weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, later: tuple[Any, Tensor] | None) -> Tensor:
        ctx.later = later
        time.sleep(NAP)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(NAP)
        if ctx.later:
            put_off, weight = ctx.later
            put_off(lambda: torch.autograd.backward([weight], [sleepy_gradient()]))
            return grads[0], None, None
        return grads[0], sleepy_gradient(), None


def sleepy_gradient() -> Tensor:
    time.sleep(NAP)
    return torch.ones(1)


class Sleeper(nn.Module):
    put_off: Callable[[Callable[[], None]], None] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        weight, later = (self.weight.detach(), (self.put_off, self.weight)) if self.put_off else (self.weight, None)
        return (Nap.apply(x, weight, later),)  # type: ignore[no-untyped-call]


class Sleepers(Staged):
    """Layers that sleep, and nothing else."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._layers = nn.ModuleList(Sleeper() for _ in range(count))

    @property
    def layers(self) -> nn.ModuleList:
        return self._layers

    def run(self, batch: Batch, states: States | None, layers: range) -> States:
        states = states or (torch.zeros(batch.num_tokens, 1, requires_grad=True),)
        for number in layers:
            states = self._layers[number](*states)
        return states

    def loss(self, batch: Batch, states: States) -> Tensor:
        return states[0].sum()

    def loss_and_hits(self, batch: Batch, states: States) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def state_shapes(self, batch: Batch) -> list[tuple[int, int]]:
        return [(batch.num_tokens, 1)]

    def keep(self, layers: Iterable[int], first: bool, last: bool) -> list[str]:
        for number in set(range(len(self._layers))) - set(layers):
            self._layers[number] = None  # type: ignore[assignment]
        return []


def measured_bubbles() -> dict[str, float]:
    """The share of a step in which a process waits, by schedule, and the gradients checked."""
    found = {}
    for schedule in WARM_UP:
        plan = Plan(pipe=SIZE, schedule=schedule).resolved(SIZE)  # type: ignore[arg-type]
        groups = connect(plan, torch.device("cpu"))
        model = Sleepers(plan.num_runs)
        layout, pipeline = parallel.apply(plan, groups, model, "fp32")
        batches = [pack([[1, 2, 3]]) for _ in range(MICROBATCHES)]
        seconds = []
        for _ in range(TRIES):  # the fastest counts: what else the machine does can only add
            groups.wait()
            start = time.perf_counter()
            pipeline.train(batches, layout)
            groups.wait()
            seconds.append(time.perf_counter() - start)
            layout.finish_gradients()
            for master in layout.masters.values():
                assert master.grad is not None
                assert master.grad.item() == MICROBATCHES
        found[schedule] = 1 - 3 * NAP * MICROBATCHES * plan.runs_each / min(seconds)
    return found


def test_bubbles_are_those_of_the_formulas() -> None:
    by_rank = run_distributed(measured_bubbles, SIZE)
    bubbles = {schedule: sum(found[schedule] for found in by_rank) / SIZE for schedule in WARM_UP}
    for schedule, (formula, tolerance) in BUBBLES.items():
        assert bubbles[schedule] == pytest.approx(formula, abs=tolerance)
    assert bubbles["zero-bubble"] <= bubbles["1f1b"] - 0.12
