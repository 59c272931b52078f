"""What a plan asks of the number of processes, and of the run."""

import pytest
from pydantic import ValidationError

from oarlock.config import Plan
from oarlock.recipes import recipe


@pytest.mark.parametrize(
    ("plan", "world_size", "replicas"),
    (
        (Plan(), 1, 1),
        (Plan(), 6, 6),
        (Plan(shard=2), 6, 3),
        (Plan(shard=2, tensor=3), 12, 2),
        (Plan(replicate=2, shard=2), 4, 2),
    ),
)
def test_replicas_fill_the_processes(plan: Plan, world_size: int, replicas: int) -> None:
    assert plan.resolved(world_size) == plan.model_copy(update={"replicate": replicas})


@pytest.mark.parametrize(
    ("plan", "world_size", "told"),
    (
        (Plan(shard=2), 3, "shard 2 needs a multiple of 2 processes, but 3 run"),
        (Plan(shard=2, tensor=2), 2, "shard 2 x tensor 2 needs a multiple of 4 processes, but 2 run"),
        (Plan(replicate=1), 2, "replicate 1 needs 1 process, but 2 run"),
        (Plan(replicate=2, shard=2), 8, "replicate 2 x shard 2 needs 4 processes, but 8 run"),
    ),
)
def test_a_plan_that_does_not_fit_is_refused_with_the_numbers(plan: Plan, world_size: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        plan.resolved(world_size)


@pytest.mark.parametrize(
    ("changes", "told"),
    (
        ({"plan": {"tensor": 3}}, "plan.tensor 3 does not divide model.num_heads 4"),
        ({"plan": {"shard": 2}, "optimizer": {"name": "muon"}}, "optimizer.name muon needs whole tensors"),
        ({"plan": {"tensor": 2}, "optimizer": {"name": "stableadamw"}}, "optimizer.name stableadamw needs whole"),
        ({"plan": {"pipes": 2}}, "plan.pipes"),
        ({"plan": {"shard": 0}}, "plan.shard"),
    ),
)
def test_what_a_run_cannot_be_laid_out_by_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises((ValueError, ValidationError), match=told):
        recipe("bert-mini", data="d", out="o", steps=10, **changes)


def test_replicas_take_any_optimizer() -> None:
    recipe("bert-mini", data="d", out="o", steps=10, plan={"shard": 2, "shard_stage": 0}, optimizer={"name": "muon"})
