"""Counter-based random numbers."""

import warnings

import numpy as np
import pytest

from oarlock.batches.mixing import Purpose, below, chance, hash_counters, hash_values, mix

MASK = 2**64 - 1


def unmix(x: int) -> int:
    """Inverse of `mix`, in plain integers."""
    x ^= (x >> 31) ^ (x >> 62)
    x = x * pow(0x94D049BB133111EB, -1, 2**64) & MASK
    x ^= (x >> 27) ^ (x >> 54)
    x = x * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
    return x ^ (x >> 30) ^ (x >> 60)


def test_mix_is_a_bijection():
    values = np.array([*range(1000), *(2**i for i in range(64)), MASK], np.uint64)
    assert [unmix(int(y)) for y in mix(values)] == values.tolist()


def test_wraparound_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hash_counters(hash_values(MASK, MASK), np.array([0, MASK], np.uint64))


def test_hash_values_tells_order_number_and_purpose():
    keys = [hash_values(), hash_values(0), hash_values(0, 0), hash_values(0, 1), hash_values(1, 0), hash_values(1)]
    keys += [hash_values(3, purpose, 7) for purpose in Purpose]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key <= MASK for key in keys)


def test_numbers_are_the_same_on_every_machine():
    assert hash_values(1, 2, 3) == 14104883506243124986
    assert hash_counters(42, [0, 1]).tolist() == [12019577486480145929, 1040892314080441391]


def test_streams_of_neighbouring_keys_do_not_overlap():
    a, b = hash_counters(1000, np.arange(100_000)), hash_counters(1001, np.arange(100_000))
    assert not np.intersect1d(a, b).size


def test_every_bit_is_a_fair_coin_and_pairs_are_unrelated():
    bits = (hash_counters(5, np.arange(100_000))[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(0) - 0.5).max() < 4.5 * 0.5 / np.sqrt(100_000)
    assert np.abs(np.corrcoef(bits.T) - np.eye(64)).max() < 5.5 / np.sqrt(100_000)


@pytest.mark.parametrize("bound", [1, 3, 25, 30_522])
def test_below_is_uniform(bound):
    num = max(100_000, 20 * bound)
    counts = np.bincount(below(hash_counters(bound, np.arange(num)), bound), minlength=bound)
    assert len(counts) == bound
    chi_square = ((counts - num / bound) ** 2 / (num / bound)).sum()
    assert abs(chi_square - (bound - 1)) <= 4.5 * np.sqrt(2 * max(1, bound - 1))


def test_below_takes_a_bound_for_each():
    assert (below(np.full(3, MASK, np.uint64), [1, 2, 30_522]) == [0, 1, 30_521]).all()


def test_chance_is_exact_at_its_ends():
    bits = np.array([0, MASK // 2, MASK], np.uint64)
    assert chance(bits, 0.0).tolist() == [False] * 3
    assert chance(bits, 1.0).tolist() == [True] * 3
    assert chance(bits, 0.5).tolist() == [True, True, False]
