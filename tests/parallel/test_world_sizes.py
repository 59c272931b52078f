"""A run goes on with another number of processes, and under another plan."""

from pathlib import Path

import numpy as np
from tests.parallel.parity import go_on, whole

from oarlock.config import Plan
from oarlock.state import load_newest
from oarlock.testing.distributed import run_distributed

CLOSE = 1e-5
LEGS = (
    (1, Plan()),
    (2, Plan(shard=2, shard_stage=1)),
    (4, Plan(shard=2, shard_stage=3)),
    (4, Plan(shard=2, tensor=2)),
    (4, Plan(pipe=2, shard=2, shard_stage=3, schedule="interleaved")),
    (2, Plan(tensor=2, sequence_parallel=True)),
    (1, Plan()),
)


def test_d46_the_world_size_may_change_at_each_resume(tmp_path: Path) -> None:
    """1, 2, 4, 4 otherwise, 2 and again 1 process, three steps each: the losses of a straight run, on every process."""
    straight, _ = go_on(tmp_path / "straight", Plan(), 1, 3 * len(LEGS))
    losses = []
    for leg, (size, plan) in enumerate(LEGS):
        by_rank = run_distributed(go_on, size, tmp_path / "changing", plan, 3 * leg + 1, 3 * leg + 3)
        assert all(of_rank == by_rank[0][0] for of_rank, _ in by_rank)
        losses += by_rank[0][0]
    np.testing.assert_allclose(losses, straight, rtol=CLOSE)


def test_d47_moments_saved_by_four_are_those_of_any_other_number(tmp_path: Path) -> None:
    """Saved in four parts; loaded by two, two stages, eight and one, and read whole."""
    saved = whole([moments for _, moments in run_distributed(go_on, 4, tmp_path, Plan(shard=4, shard_stage=3), 1, 2)])
    for size, plan in ((2, Plan(tensor=2)), (2, Plan(pipe=2)), (8, Plan(shard=4, shard_stage=1)), (1, Plan())):
        found = whole([moments for _, moments in run_distributed(go_on, size, tmp_path, plan, 3, 2)])
        assert found.keys() == saved.keys()
        assert all(np.array_equal(found[name], saved[name]) for name in saved)
    snapshot = load_newest(tmp_path)
    assert snapshot is not None
    assert all(np.array_equal(snapshot.optimizer[n]["exp_avg"].flatten().numpy(), saved[n]) for n in saved)
