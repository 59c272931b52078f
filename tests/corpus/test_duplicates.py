"""Counting what was seen before."""

import numpy as np
import pytest
import xxhash

from oarlock.corpus.duplicates import DuplicateCounter


def hashes(values: range | list[int]) -> np.ndarray:
    return np.asarray([xxhash.xxh3_64_intdigest(str(value).encode()) for value in values], np.uint64)


def test_exact_while_few() -> None:
    counter = DuplicateCounter()
    assert counter.share() == 0.0
    counter.add(hashes([1, 2, 3, 2]))
    counter.add(hashes([2, 9]))
    assert counter.share() == pytest.approx(1 - 4 / 6)
    assert counter.exact


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_an_unbiased_sample_beyond(copies: int) -> None:
    counter = DuplicateCounter(most_remembered=1000)
    for _ in range(copies):
        for start in range(0, 40_000, 10_000):
            counter.add(hashes(range(start, start + 10_000)))
    assert not counter.exact
    assert len(counter._hashes) <= 1000
    assert counter.share() == pytest.approx(1 - 1 / copies)


def test_a_sample_of_a_corpus_in_part_duplicated() -> None:
    counter = DuplicateCounter(most_remembered=4000)
    counter.add(hashes([*range(30_000), *range(10_000)]))
    assert not counter.exact
    assert counter.share() == pytest.approx(0.25, abs=0.02)
