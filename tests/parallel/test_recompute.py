"""Recomputing changes what is kept, and no bit of what comes out."""

import pytest
import torch
from tests.parallel.parity import Case, Run, setting, train, train_all
from torch import Tensor

from oarlock.config import Plan
from oarlock.testing.distributed import run_distributed


@pytest.mark.parametrize("kind", ("bert", "modernbert"))
def test_equals_keeping_bit_for_bit(kind: str) -> None:
    kept, again = (train(kind, "adamw", Plan(recompute=recompute)) for recompute in (False, True))
    assert _told(kept) == _told(again)


def test_weights_that_were_freed_are_there_again() -> None:
    cases: list[Case] = [("bert", "adamw", Plan(shard=2, shard_stage=3, recompute=r)) for r in (False, True)]
    for kept, again in run_distributed(train_all, 2, cases):
        assert _told(kept) == _told(again)
        assert kept.sent == again.sent


def _told(run: Run) -> tuple[object, ...]:
    return run.losses, run.norms, run.evaluation, {name: part.tolist() for name, (_, part) in run.weights.items()}


def test_keeps_less_for_the_backward_pass() -> None:
    def kept_bytes(recompute: bool) -> int:
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.nbytes
            return tensor

        learner, _, batches, _ = setting("bert", "adamw", Plan(recompute=recompute))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            learner.model(next(batches(1, 1)).microbatches[0])
        weights = {parameter.data_ptr() for parameter in learner.model.parameters()}
        return sum(size for place, size in sizes.items() if place not in weights)

    assert kept_bytes(True) < 0.5 * kept_bytes(False)
