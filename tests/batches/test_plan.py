"""Which samples a step takes."""

import numpy as np
import pytest

from oarlock.batches import plan as plan_module
from oarlock.batches.lengths import wikipedia_lengths
from oarlock.batches.plan import CHUNK, StepPlan
from oarlock.config import BatchConfig

SIZES = [BatchConfig(sequences=64), BatchConfig(tokens=600, max_tokens_per_microbatch=512), BatchConfig(tokens=20_000)]


def epoch_of(plan: StepPlan, epoch: int) -> list[np.ndarray]:
    first = epoch * plan.steps_per_epoch + 1
    return [plan.samples(step).samples_S for step in range(first, first + plan.steps_per_epoch)]


@pytest.mark.parametrize("batch", SIZES)
def test_an_epoch_takes_every_sample_once_in_another_order_than_the_next(batch):
    plan = StepPlan(wikipedia_lengths(1000, seed=0), batch, seed=3)
    first, second = np.concatenate(epoch_of(plan, 0)), np.concatenate(epoch_of(plan, 1))
    assert np.array_equal(np.sort(first), np.arange(1000))
    assert np.array_equal(np.sort(second), np.arange(1000))
    assert (first == second).mean() < 0.02
    assert min(map(len, epoch_of(plan, 0))) >= 1


def test_another_seed_is_another_order():
    lengths = wikipedia_lengths(1000, seed=0)
    first, second = (np.concatenate(epoch_of(StepPlan(lengths, SIZES[0], seed), 0)) for seed in (3, 4))
    assert (first == second).mean() < 0.02


def test_batches_by_sequences_end_with_the_epoch():
    plan = StepPlan(np.full(1000, 8), BatchConfig(sequences=64), seed=3)
    assert plan.steps_per_epoch == 16
    assert [len(samples) for samples in epoch_of(plan, 1)] == [64] * 15 + [40]
    assert [plan.epoch(step) for step in (1, 16, 17)] == [0, 0, 1]


@pytest.mark.parametrize("tokens", [512, 700, 20_000])
def test_batches_by_tokens_follow_their_definition(tokens):
    lengths = wikipedia_lengths(2000, seed=1)
    plan = StepPlan(lengths, BatchConfig(tokens=tokens, max_tokens_per_microbatch=512), seed=3)
    assert plan.steps_per_epoch == -(-lengths.sum() // tokens)
    for epoch in (0, 5):
        batches = epoch_of(plan, epoch)
        last_token = np.cumsum(lengths[np.concatenate(batches)]) - 1
        assert np.array_equal(last_token // tokens, np.repeat(np.arange(len(batches)), [len(b) for b in batches]))
        sizes = np.array([lengths[batch].sum() for batch in batches])
        assert (np.abs(sizes[:-1] - tokens) < 512).all()


def test_boundaries_across_chunks(monkeypatch):
    lengths = wikipedia_lengths(3000, seed=1)
    batch = BatchConfig(tokens=5000)
    whole = epoch_of(StepPlan(lengths, batch, seed=3), 0)
    monkeypatch.setattr(plan_module, "CHUNK", 7)
    assert CHUNK > 3000
    assert all(map(np.array_equal, whole, epoch_of(StepPlan(lengths, batch, seed=3), 0)))


@pytest.mark.parametrize("batch", SIZES)
def test_c41_first_batch_costs_the_same_at_any_step(batch, monkeypatch):
    lengths = wikipedia_lengths(1000, seed=0)
    permuted = []
    permute = plan_module.permute
    monkeypatch.setattr(
        plan_module, "permute", lambda indices, *rest: permuted.append(len(indices)) or permute(indices, *rest)
    )
    work = []
    for step in (1, 2, 1000, 123_456_789):
        permuted.clear()
        taken = StepPlan(lengths, batch, seed=3).samples(step)
        work.append(sum(permuted) - len(taken.samples_S))
    assert set(work) == {0 if batch.tokens is None else 1000}


def test_c41_boundaries_are_found_once_an_epoch(monkeypatch):
    plan = StepPlan(wikipedia_lengths(1000, seed=0), BatchConfig(tokens=20_000), seed=3)
    found = []
    find = plan._find_token_starts
    monkeypatch.setattr(plan, "_find_token_starts", lambda key: found.append(key) or find(key))
    epoch_of(plan, 0)
    epoch_of(plan, 1)
    assert len(found) == 2


def test_what_does_not_fit_is_refused_with_both_numbers():
    lengths = np.array([5, 300, 40])
    with pytest.raises(ValueError, match=r"batch\.tokens 299 .* 300 tokens"):
        StepPlan(lengths, BatchConfig(tokens=299), seed=0)
    with pytest.raises(ValueError, match=r"batch\.max_tokens_per_microbatch 299 .* 300 tokens"):
        StepPlan(lengths, BatchConfig(max_tokens_per_microbatch=299), seed=0)
    with pytest.raises(ValueError, match="no sequences"):
        StepPlan(lengths[:0], BatchConfig(), seed=0)
    with pytest.raises(ValueError, match="count from 1"):
        StepPlan(lengths, BatchConfig(), seed=0).samples(0)


def test_more_sequences_than_the_split_has_is_one_batch_an_epoch():
    plan = StepPlan(np.full(5, 8), BatchConfig(sequences=64), seed=3)
    assert plan.steps_per_epoch == 1
    assert len(plan.samples(7).samples_S) == 5
