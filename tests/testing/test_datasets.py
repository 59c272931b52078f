"""The toy data sets of the other tests."""

import numpy as np
import pytest

from oarlock.corpus import open_dataset
from oarlock.testing.datasets import toy_dataset, write_toy_dataset


@pytest.mark.parametrize("special_inside", [False, True])
def test_written_and_opened_again(tmp_path, special_inside):
    dataset = toy_dataset(50, num_validation=7, special_inside=special_inside)
    opened = open_dataset(str(write_toy_dataset(tmp_path / "data", dataset).folder))
    assert opened.manifest == dataset.manifest
    assert (len(opened.train), len(opened.validation)) == (50, 7)
    for ours, theirs in ((opened.train, dataset.train), (opened.validation, dataset.validation)):
        assert all(np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in ("ids", "lengths", "offsets"))
        assert (ours.maskable is not None) == special_inside
        assert not special_inside or np.array_equal(ours.maskable, theirs.maskable)


def test_lengths_and_framing():
    dataset = toy_dataset(500, shortest=3, longest=60)
    split, manifest = dataset.train, dataset.manifest
    assert (split.lengths.min(), split.lengths.max()) == (3, 60)
    assert (split.ids[split.offsets[:-1]] == manifest.prefix[0]).all()
    assert (split.ids[split.offsets[1:] - 1] == manifest.suffix[0]).all()
    assert manifest.train.tokens == split.lengths.sum() == len(split.ids)


def test_there_is_something_to_learn():
    ids = toy_dataset(500, vocab_size=64).train.ids.astype(int)
    ordinary = (ids[:-1] > 4) & (ids[1:] > 4)
    follows = (ids[1:] - ids[:-1]) % (64 - 5) == 1
    assert follows[ordinary].mean() > 0.88
