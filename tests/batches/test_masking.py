"""Masked-LM targets."""

import numpy as np
import pytest

from oarlock.batches.masking import POSITION_BITS, mask, maskable_lengths, masking_rules, num_targets
from oarlock.batches.mixing import Purpose, hash_counters, hash_values
from oarlock.batches.synthetic import MASK, SPECIAL, synthetic_dataset
from oarlock.config import MaskingConfig
from oarlock.corpus import Dataset
from oarlock.testing.datasets import toy_dataset

KEY = hash_values(0, Purpose.TRAINING_MASKS, 0)


def masked(dataset: Dataset, samples: np.ndarray, key: int = KEY, config: MaskingConfig | None = None):
    """(ids before masking, ids after, target positions, target ids) of the samples of the training split."""
    split, rules = dataset.train, masking_rules(dataset.manifest, config or MaskingConfig())
    ids = np.concatenate([split.ids[split.offsets[i] : split.offsets[i + 1]] for i in samples]).astype(np.int64)
    lengths = split.lengths[samples].astype(np.int64)
    return ids, *mask(ids, lengths, samples, maskable_lengths(split, samples, rules), key, rules)


@pytest.fixture(scope="module")
def million():
    """1,000,000 tokens in sequences of 20, masked at the default rates."""
    dataset = synthetic_dataset(np.full(50_000, 20), [], vocab_size=105, seed=0)
    return masked(dataset, np.arange(50_000))


def within(count: int, num: int, share: float) -> bool:
    return abs(count - num * share) < 4.5 * np.sqrt(num * share * (1 - share))


def test_c10_rates_are_80_10_10(million):
    before, after, targets, true_ids = million
    assert np.array_equal(before[targets], true_ids)
    assert np.array_equal(np.delete(before, targets), np.delete(after, targets))
    assert len(targets) == 50_000 * round(0.15 * 18)
    reads = after[targets]
    replaced = (reads != MASK) & (reads != true_ids)
    # One replacement in 100 is by the token that stood there.
    assert within((reads == MASK).sum(), len(targets), 0.8)
    assert within(replaced.sum(), len(targets), 0.1 * 0.99)
    assert within((reads == true_ids).sum(), len(targets), 0.1 + 0.1 * 0.01)


def test_c10_replacements_are_uniform_and_never_special(million):
    _, after, targets, true_ids = million
    reads = after[targets]
    replacements = reads[(reads != MASK) & (reads != true_ids)]
    counts = np.bincount(replacements, minlength=105)
    assert not counts[list(SPECIAL.all)].any()
    expected = len(replacements) / 100
    assert len(counts) == 105
    assert ((counts[5:] - expected) ** 2 / expected).sum() < 99 + 4 * np.sqrt(2 * 99)


def test_positions_of_targets_are_uniform(million):
    targets = million[2]
    counts = np.bincount(targets % 20, minlength=20)
    assert counts[0] == counts[19] == 0
    expected = len(targets) / 18
    assert ((counts[1:19] - expected) ** 2 / expected).sum() < 17 + 4 * np.sqrt(2 * 17)


@pytest.mark.parametrize(
    "config, reads",
    [
        (MaskingConfig(mask_share=1.0, random_share=0.0), "mask"),
        (MaskingConfig(mask_share=0.0, random_share=0.0), "own"),
    ],
)
def test_shares_of_zero_and_one_are_exact(config, reads):
    before, after, targets, _ = masked(toy_dataset(500), np.arange(500), config=config)
    assert np.array_equal(after[targets], before[targets] if reads == "own" else np.full(len(targets), MASK))


def test_c03_number_of_targets_follows_from_the_length_alone():
    counts = num_targets(np.array([0, 1, 2, 3, 6, 7, 10, 13, 20, 510]), MaskingConfig())
    assert counts.tolist() == [0, 1, 1, 1, 1, 1, 2, 2, 3, 76]
    lengths = np.arange(1000)
    assert np.array_equal(num_targets(lengths, MaskingConfig(rate=1.0)), lengths)


def test_c03_a_sequence_too_short_for_the_rate_has_one_target():
    dataset = synthetic_dataset(np.full(1000, 3), [], vocab_size=64, seed=0)
    _, _, targets, _ = masked(dataset, np.arange(1000))
    assert np.array_equal(targets, np.arange(1000) * 3 + 1)


def test_c03_a_sequence_without_ordinary_tokens_has_none():
    dataset = synthetic_dataset([2, 2], [], vocab_size=64, seed=0)
    before, after, targets, _ = masked(dataset, np.arange(2))
    assert not targets.size
    assert np.array_equal(before, after)


@pytest.mark.parametrize("special_inside", [False, True])
def test_c11_special_tokens_are_never_targets(special_inside):
    dataset = toy_dataset(2000, special_inside=special_inside)
    samples = np.arange(2000)
    _, _, targets, true_ids = masked(dataset, samples, config=MaskingConfig(rate=1.0))
    assert not np.isin(true_ids, SPECIAL.all).any()
    # At a rate of 1 every other token is one.
    assert len(targets) == (dataset.train.ids > MASK).sum()
    _, _, targets, true_ids = masked(dataset, samples)
    assert not np.isin(true_ids, SPECIAL.all).any()


def test_c11_targets_of_a_sequence_are_as_many_as_announced():
    dataset = toy_dataset(2000, special_inside=True)
    rules = masking_rules(dataset.manifest, MaskingConfig())
    _, _, targets, _ = masked(dataset, np.arange(2000))
    sample_of_target = np.searchsorted(dataset.train.offsets, targets, side="right") - 1
    expected = num_targets(maskable_lengths(dataset.train, np.arange(2000), rules), MaskingConfig())
    assert np.array_equal(np.bincount(sample_of_target, minlength=2000), expected)


def test_files_that_do_not_fit_are_refused():
    dataset = toy_dataset(50, special_inside=True)
    dataset.train.maskable[7] += 1
    with pytest.raises(ValueError, match="do not fit together"):
        masked(dataset, np.arange(50))


def test_a_vocabulary_of_special_tokens_is_refused():
    manifest = toy_dataset(5).manifest.model_copy(update={"vocab_size": 5})
    with pytest.raises(ValueError, match="nothing to mask"):
        masking_rules(manifest, MaskingConfig())


def test_c13_a_mask_does_not_depend_on_the_company():
    dataset = toy_dataset(200)
    offsets = dataset.train.offsets
    _, whole, *_ = masked(dataset, np.arange(200))
    for samples in (np.array([17]), np.array([199, 3, 17, 50])):
        parts = [whole[offsets[i] : offsets[i + 1]] for i in samples]
        assert np.array_equal(masked(dataset, samples)[1], np.concatenate(parts))


def test_c13_masks_differ_in_the_next_epoch_and_under_another_seed():
    dataset = toy_dataset(200)
    _, first, *_ = masked(dataset, np.arange(200))
    for other in (hash_values(0, Purpose.TRAINING_MASKS, 1), hash_values(1, Purpose.TRAINING_MASKS, 0)):
        _, second, *_ = masked(dataset, np.arange(200), key=other)
        assert (first != second).mean() > 0.1


def test_c13_no_two_of_two_million_samples_share_a_stream():
    # (sample, position) is one counter, and the hash under a key is a bijection of counters: all differ, not only
    # streams as wholes. Checked here for the first four positions of each.
    counters = (np.arange(2_000_000)[:, None] << POSITION_BITS) | np.arange(4)
    hashes = np.sort(hash_counters(KEY, counters).ravel())
    assert (hashes[1:] != hashes[:-1]).all()


def test_equal_sequences_get_different_masks():
    dataset = synthetic_dataset(np.full(1000, 66), [], vocab_size=6, seed=0)
    targets = masked(dataset, np.arange(1000))[2].reshape(1000, -1) % 66
    assert len(np.unique(targets, axis=0)) == 1000


def test_ids_beyond_the_vocabulary_and_lengths_that_do_not_fit_are_refused():
    dataset = toy_dataset(4)
    rules = masking_rules(dataset.manifest, MaskingConfig())
    ids, lengths, samples = np.array([2, 9, 3]), np.array([3]), np.array([0])
    for bad_ids, bad_lengths in ((np.array([2, 40_000, 3]), lengths), (ids, np.array([0]))):
        with pytest.raises(ValueError, match="run `oarlock prepare` again"):
            mask(bad_ids, bad_lengths, samples, np.array([1]), 7, rules)
