"""The Wikipedia length histogram."""

from itertools import pairwise

import numpy as np

from oarlock.batches.lengths import WIKIPEDIA_HISTOGRAM, wikipedia_lengths


def test_histogram_has_the_published_number_of_sequences():
    assert sum(count for *_, count in WIKIPEDIA_HISTOGRAM) == 16_279_552
    edges = [(low, high) for low, high, _ in WIKIPEDIA_HISTOGRAM]
    assert all(high + 1 == low for (_, high), (low, _) in pairwise(edges))


def test_drawn_lengths_have_the_published_moments():
    lengths = wikipedia_lengths(1_000_000, seed=0)
    assert lengths.min() == 5
    assert lengths.max() == 512
    assert abs(lengths.mean() - 255.8) < 0.8
    assert abs((lengths**2).mean() - 98_826) < 500
    assert abs(np.median(lengths) - 204) <= 2
    assert abs((lengths == 512).mean() - 0.2343) < 0.002


def test_lengths_follow_from_the_seed():
    assert np.array_equal(wikipedia_lengths(100, seed=1), wikipedia_lengths(100, seed=1))
    assert not np.array_equal(wikipedia_lengths(100, seed=1), wikipedia_lengths(100, seed=2))
