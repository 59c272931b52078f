"""The keyed permutation."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.batches.order import MAX_SIZE, SMALL, permute


def z_of_chi_square(counts: np.ndarray, expected: float, freedom: int) -> float:
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("n", [*range(1, 70), 1023, 1024, 1025, 4095, 4096, 4097, 100_003])
def test_bijection(n):
    assert np.array_equal(np.sort(permute(np.arange(n), n, key=n)), np.arange(n))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, MAX_SIZE), st.integers(0, 2**64 - 1), st.data())
def test_large_sizes_stay_in_range_and_do_not_collide(n, key, data):
    indices = data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=50))
    images = permute(np.array(indices, np.int64), n, key)
    assert images.dtype == np.int64
    assert ((images >= 0) & (images < n)).all()
    assert len(set(images.tolist())) == len(indices)


def test_an_index_alone_goes_where_it_goes_among_others():
    whole = permute(np.arange(1000), 1000, key=9)
    assert [int(permute([i], 1000, key=9)[0]) for i in range(0, 1000, 37)] == whole[::37].tolist()


@pytest.mark.parametrize("n", [3, 5])
def test_every_order_of_a_few_is_as_likely(n):
    orders = {order: i for i, order in enumerate(permutations(range(n)))}
    num = 3000
    seen = np.bincount([orders[tuple(permute(np.arange(n), n, key).tolist())] for key in range(num)])
    assert len(seen) == len(orders)
    assert z_of_chi_square(seen, num / len(orders), len(orders) - 1) < 4


@pytest.mark.parametrize("n", [40, 300])
def test_positions_are_uniform(n):
    num = 1000
    counts = np.zeros((n, n))
    for key in range(num):
        counts[np.arange(n), permute(np.arange(n), n, key)] += 1
    assert abs(z_of_chi_square(counts, num / n, (n - 1) ** 2)) < 4


@pytest.mark.parametrize("n", [SMALL + 1, 10_007])
def test_positions_of_a_feistel_network_are_uniform(n):
    num, where = 3000, np.array([0, 1, 2, n // 2, n - 2, n - 1])
    images = np.array([permute(where, n, key) for key in range(num)])
    for column in [*images.T, *(np.diff(images).T % n)]:
        counts = np.bincount(column * 50 // n, minlength=50)
        assert abs(z_of_chi_square(counts, num / 50, 49)) < 4


@pytest.mark.parametrize("n", [SMALL, 5000, 1_000_000])
def test_neighbours_are_unrelated(n):
    first, second = permute(np.arange(n), n, key=1), permute(np.arange(n), n, key=2)
    for a, b in [(first[:-1], first[1:]), (first, np.arange(n)), (first, second)]:
        assert abs(np.corrcoef(a, b)[0, 1]) < 4.5 / np.sqrt(n)
    gaps = np.bincount((np.diff(first) % n) * 100 // n, minlength=100)
    assert z_of_chi_square(gaps, n / 100, 99) < 4


@pytest.mark.parametrize("n", [0, MAX_SIZE + 1])
def test_sizes_out_of_bounds_are_refused(n):
    with pytest.raises(ValueError, match=f"cannot permute {n} items"):
        permute([0], n, key=0)
