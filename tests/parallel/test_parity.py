"""Every plan trains as one process does."""

from functools import cache

import numpy as np
import pytest
from tests.parallel.parity import Case, Run, train, train_all, whole

from oarlock.config import Plan
from oarlock.testing.distributed import run_distributed

CLOSE = 1e-5  # relative, fp32, over 20 steps

STAGES = (1, 2, 3)
SEQUENCES = {"tensor": 2, "sequence_parallel": True}
PLANS = {
    2: (
        Plan(),
        *(Plan(shard=2, shard_stage=stage) for stage in (0, *STAGES)),
        Plan(tensor=2),
        Plan(**SEQUENCES),
        *(Plan(pipe=2, schedule=schedule) for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble")),
        Plan(pipe=2, layers=(1, 3), microbatches=3),
    ),
    4: (
        *(Plan(shard=4, shard_stage=stage) for stage in STAGES),
        *(Plan(shard=2, shard_stage=stage) for stage in STAGES),
        Plan(tensor=2),
        Plan(**SEQUENCES),
        *(Plan(shard=2, shard_stage=stage, tensor=2) for stage in STAGES),
        Plan(shard=2, shard_stage=3, **SEQUENCES),
        Plan(pipe=2),
        *(Plan(pipe=2, shard=2, shard_stage=stage) for stage in STAGES),
        Plan(pipe=2, tensor=2),
        Plan(pipe=2, **SEQUENCES),
        Plan(pipe=4),
        Plan(pipe=2, shard=2, shard_stage=2, schedule="interleaved"),
        Plan(pipe=2, shard=2, shard_stage=3, schedule="zero-bubble", recompute=True),
    ),
    8: (
        Plan(shard=2, shard_stage=1, tensor=2),
        Plan(shard=2, shard_stage=3, tensor=2, recompute=True),
        Plan(pipe=2, shard=2, shard_stage=2, **SEQUENCES),
        Plan(pipe=2, shard=2, shard_stage=3, tensor=2),
        Plan(pipe=4, shard=2, shard_stage=1),
    ),
    16: (Plan(pipe=2, replicate=2, shard=2, shard_stage=3, **SEQUENCES),),
}
CASES: dict[int, list[Case]] = {
    size: [(kind, "adamw", plan) for plan in plans for kind in ("bert", "modernbert")] for size, plans in PLANS.items()
}
# Not Muon: it makes matrices orthogonal in bf16, which turns the last digits of a gradient into the third of a weight.
CASES[2] += [("bert", "lamb", Plan(shard=2, shard_stage=3))]
CASES[4] += [("modernbert", "lamb", Plan(shard=2, shard_stage=1)), ("bert", "lamb", Plan(shard=2, tensor=2))]
CASES[4] += [("bert", "lamb", Plan(pipe=2, **SEQUENCES))]
CASES[2] += [("bert", name, Plan()) for name in ("lamb", "stableadamw")]
CASES[2] += [("roberta", "adamw", Plan(pipe=2)), ("roberta", "adamw", Plan(**SEQUENCES))]


@cache
def alone(kind: str, optimizer: str) -> Run:
    return train(kind, optimizer, Plan())


@pytest.mark.parametrize("world_size", CASES)
def test_d07_equals_one_process(world_size: int) -> None:
    """Loss, gradient norm, evaluation and weights, of 21 sequences a step: no number of ranks divides them."""
    by_rank = run_distributed(train_all, world_size, CASES[world_size])
    for case, *runs in zip(CASES[world_size], *by_rank, strict=True):
        expected = alone(*case[:2])
        for run in runs:
            for ours, theirs in zip(run[:3], expected[:3], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=CLOSE, err_msg=str(case))
        weights, plain = whole([run.weights for run in runs]), whole([expected.weights])
        assert weights.keys() == plain.keys()
        ours, theirs = (np.concatenate(list(of.values())).astype(float) for of in (weights, plain))
        assert np.linalg.norm(ours - theirs) <= CLOSE * np.linalg.norm(theirs), case


def test_bf16_follows_one_process() -> None:
    """As far as roundings allow, which fall otherwise where sums are cut: the losses of 20 steps to a thousandth."""
    plans = (
        Plan(),
        *(Plan(shard=2, shard_stage=stage) for stage in STAGES),
        Plan(tensor=2),
        Plan(**SEQUENCES),
        Plan(pipe=2),
    )
    cases: list[Case] = [(kind, "adamw", plan, "bf16") for plan in plans for kind in ("bert", "modernbert")]
    expected = {kind: train(kind, "adamw", Plan(), "bf16") for kind in ("bert", "modernbert")}
    for case, *runs in zip(cases, *run_distributed(train_all, 2, cases), strict=True):
        assert runs[0][:3] == runs[1][:3]
        np.testing.assert_allclose(runs[0].losses, expected[case[0]].losses, rtol=1e-3, err_msg=str(case))


def test_d56_processes_without_sequences_keep_step() -> None:
    """5 documents, 3 a step, on 4 processes: one of them never has any, an epoch does not divide, and nobody waits."""
    cases: list[Case] = [
        ("bert", "adamw", plan, "fp32", 5, 3)
        for plan in (
            Plan(),
            *(Plan(shard=4, shard_stage=stage) for stage in STAGES),
            Plan(**SEQUENCES),
            Plan(pipe=2, shard=2, shard_stage=3, schedule="interleaved"),
        )
    ]
    expected = train("bert", "adamw", Plan(), "fp32", 5, 3)
    for case, *runs in zip(cases, *run_distributed(train_all, 4, cases), strict=True):
        for run in runs:
            for ours, theirs in zip(run[:3], expected[:3], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=CLOSE, err_msg=str(case))
