"""Global batches of training and evaluation."""

import numpy as np
import pytest

from oarlock.batches import Batch, GlobalBatches, evaluation_batches
from oarlock.batches.lengths import wikipedia_lengths
from oarlock.batches.pack import FILLER
from oarlock.batches.synthetic import synthetic_dataset
from oarlock.config import BatchConfig, MaskingConfig
from oarlock.testing.batches import equal_batches, equal_global_batches
from oarlock.testing.datasets import toy_dataset


def build(dataset, step, batch=None, seed=0, rank=0, world_size=1):
    batch = batch or BatchConfig(sequences=48, max_tokens_per_microbatch=256)
    return GlobalBatches(
        dataset, batch, MaskingConfig(), seed=seed, quadratic=1000, rank=rank, world_size=world_size
    ).build(step)


def useful_tokens(batch: Batch) -> int:
    return int((batch.token_samples() != FILLER).sum())


def by_sample(batches: list[Batch]) -> dict[int, tuple[list[int], list[int], list[int]]]:
    """(input ids, targets counted from the sequence's start, target ids) of each sample, fillers aside."""
    found = {}
    for batch in batches:
        bounds, targets = batch.cu_seqlens_S1.tolist(), batch.target_positions_M
        for sample, start, end in zip(batch.sample_ids_S.tolist(), bounds, bounds[1:], strict=False):
            inside = (targets >= start) & (targets < end)
            if sample == FILLER:
                assert not inside.any()
                continue
            found[sample] = (
                batch.ids_T[start:end].tolist(),
                (targets[inside] - start).tolist(),
                batch.target_ids_M[inside].tolist(),
            )
    return found


def test_a_batch_is_a_pure_function_of_data_seed_and_step():
    dataset = toy_dataset(300)
    batches = GlobalBatches(dataset, BatchConfig(sequences=48), MaskingConfig(), seed=0, quadratic=1000)
    later = [batches.build(step) for step in (1, 9, 30)]
    assert all(equal_global_batches(build(dataset, b.step, BatchConfig(sequences=48)), b) for b in later)
    assert by_sample(build(dataset, 1).microbatches) != by_sample(build(dataset, 1, seed=1).microbatches)


@pytest.mark.parametrize("step", [1, 7])
@pytest.mark.parametrize("bound", [60, 256, 8192])
@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_c13_masks_do_not_depend_on_microbatches_or_ranks(step, bound, world_size):
    dataset = toy_dataset(300, special_inside=True)
    whole = build(dataset, step)
    batch = BatchConfig(sequences=48, max_tokens_per_microbatch=bound)
    shares = [build(dataset, step, batch, rank=rank, world_size=world_size) for rank in range(world_size)]
    cells = [cell for share in shares for cell in share.microbatches]
    assert by_sample(cells) == by_sample(whole.microbatches)
    assert max(cell.num_tokens for cell in cells) <= bound
    assert len({len(share.microbatches) for share in shares}) == 1
    for share in shares:
        assert share.num_targets == whole.num_targets == sum(cell.target_ids_M.numel() for cell in cells)
        assert share.num_tokens == whole.num_tokens == sum(map(useful_tokens, cells))
        assert share.num_sequences == whole.num_sequences == len(by_sample(cells))
        tokens = [useful_tokens(cell) for cell in cells]
        assert share.imbalance == pytest.approx(max(tokens) / np.mean(tokens))
        assert {cell.num_targets for cell in share.microbatches} == {whole.num_targets}
        assert {cell.dropout_key.item() for cell in share.microbatches} == {whole.microbatches[0].dropout_key.item()}


def test_c13_masks_differ_in_epoch_two():
    dataset = toy_dataset(48)
    first, second = (by_sample(build(dataset, step).microbatches) for step in (1, 2))
    assert first.keys() == second.keys()
    assert sum(first[sample] == second[sample] for sample in first) < 12


def test_c04_last_batch_of_an_epoch_counts_its_own_targets():
    dataset = toy_dataset(100)
    sizes = [(build(dataset, step).epoch, build(dataset, step).num_sequences) for step in range(1, 5)]
    assert sizes == [(0, 48), (0, 48), (0, 4), (1, 48)]
    last = build(dataset, 3)
    assert last.num_targets == sum(batch.target_ids_M.numel() for batch in last.microbatches)
    assert 0 < last.num_targets < build(dataset, 1).num_targets / 4


def test_d56_fewer_sequences_than_ranks():
    dataset = toy_dataset(5, special_inside=True)
    for step in (1, 2):
        shares = [build(dataset, step, BatchConfig(), rank=rank, world_size=8) for rank in range(8)]
        assert {len(share.microbatches) for share in shares} == {1}
        sizes = sorted(len(share.microbatches[0].sample_ids_S) for share in shares)
        assert sizes == [0, 0, 0, 1, 1, 1, 1, 1]
        assert {share.num_targets for share in shares} == {shares[0].num_targets}


def test_dropout_key_follows_from_seed_and_step():
    dataset = toy_dataset(100)
    runs = [(1, 0), (2, 0), (1, 1)]
    keys = [build(dataset, step, seed=seed).microbatches[0].dropout_key.item() for step, seed in runs]
    assert len(set(keys)) == 3


def test_wikipedia_batches_balance_within_half_a_percent():
    dataset = synthetic_dataset(wikipedia_lengths(2000, seed=0), [], vocab_size=64, seed=0)
    batch = BatchConfig(sequences=448, max_tokens_per_microbatch=16_384)
    assert all(build(dataset, step, batch, world_size=8).imbalance <= 1.005 for step in (1, 2, 3))


def evaluation(dataset, seed=0, bound=256, max_sequences=None, **rank):
    return evaluation_batches(
        dataset, MaskingConfig(), seed=seed, max_tokens_per_microbatch=bound, max_sequences=max_sequences, **rank
    )


def test_evaluation_is_the_same_for_any_batch_size_and_number_of_ranks():
    dataset = toy_dataset(10, num_validation=50)
    whole = evaluation(dataset, bound=10_000)
    assert len(whole) == 1
    for bound, world_size in [(60, 1), (256, 3), (256, 64)]:
        shares = [evaluation(dataset, bound=bound, rank=rank, world_size=world_size) for rank in range(world_size)]
        batches = [batch for share in shares for batch in share]
        assert by_sample(batches) == by_sample(whole)
        assert {batch.num_targets for batch in batches} == {sum(batch.target_ids_M.numel() for batch in batches)}
        assert len({len(share) for share in shares}) == 1
        assert max(batch.num_tokens for batch in batches) <= bound


def test_evaluation_takes_the_first_sequences():
    dataset = toy_dataset(10, num_validation=50)
    first, whole = (by_sample(evaluation(dataset, max_sequences=number)) for number in (20, 1000))
    assert sorted(first) == list(range(20))
    assert first == {sample: whole[sample] for sample in range(20)}
    assert len(whole) == 50


def test_evaluation_masks_are_fixed_and_unlike_those_of_training():
    dataset = toy_dataset(50, num_validation=50)
    assert all(map(equal_batches, evaluation(dataset), evaluation(dataset)))
    assert by_sample(evaluation(dataset)) != by_sample(evaluation(dataset, seed=1))
    twin = type(dataset)(dataset.folder, dataset.manifest, train=dataset.validation, validation=dataset.validation)
    trained = by_sample(build(twin, 1, BatchConfig(sequences=50)).microbatches)
    assert sum(trained[sample] == masked for sample, masked in by_sample(evaluation(dataset)).items()) < 12


def test_an_empty_validation_split_is_refused():
    with pytest.raises(ValueError, match="validation split has no sequences"):
        evaluation(toy_dataset(10, num_validation=0))


def test_c58_batches_have_few_sizes():
    """torch keeps a product for each size: with sizes that vary freely memory grows with every step."""
    dataset = synthetic_dataset(wikipedia_lengths(4000, seed=0), [], vocab_size=64, seed=0)
    batch = BatchConfig(sequences=48, max_tokens_per_microbatch=16_384)
    steps = [build(dataset, step, batch) for step in range(1, 81)]
    useful = {step.num_tokens for step in steps}
    sizes = {cell.num_tokens for step in steps for cell in step.microbatches}
    assert len(useful) > 70
    assert len(sizes) <= 1 + (max(useful) - min(useful)) // 128 + 1
