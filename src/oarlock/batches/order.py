"""The order of an epoch: a keyed pseudo-random permutation that is worked out index by index.

A Feistel network permutes the integers of `bits` bits, as few as hold n; indices that land outside range(n) are sent
through it again until they land inside ("cycle walking", Black and Rogaway, 2002), once on average at most. No table,
no state: the memory is that of the answer. A short list is sorted by hashes of its indices instead.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oarlock.batches.mixing import hash_counters

ROUNDS = 6
SMALL = 4096  # up to here sorting hashes is as quick; a Feistel network of so few bits would need more rounds
MAX_SIZE = 2**40


def permute(indices: ArrayLike, n: int, key: int) -> NDArray[np.int64]:
    """Where the permutation of range(n) that `key` (64 bits) names sends each of `indices`, an array of any shape.

    Raises ValueError where n is not in [1, 2^40]; indices must lie in range(n).
    """
    if not 1 <= n <= MAX_SIZE:
        raise ValueError(f"cannot permute {n} items: the number must be from 1 to 2^40")
    images = np.array(indices, np.uint64, ndmin=1)
    assert images.size == 0 or int(images.max()) < n
    if n <= SMALL:
        return np.argsort(hash_counters(key, np.arange(n)))[images.astype(np.int64)]
    bits = (n - 1).bit_length()
    keys = hash_counters(key, np.arange(ROUNDS)).tolist()
    images = _feistel(images, bits, keys)
    outside = np.flatnonzero(images >= n)
    while outside.size:
        images.flat[outside] = _feistel(images.flat[outside], bits, keys)
        outside = outside[images.flat[outside] >= n]
    return images.astype(np.int64)


def _feistel(x: NDArray[np.uint64], bits: int, keys: list[int]) -> NDArray[np.uint64]:
    """Permute [0, 2^bits): the two parts of x in turn are xor-ed with a hash of the other; each round is invertible."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = x & low_mask, x >> low_bits
    for first, second in zip(keys[0::2], keys[1::2], strict=True):
        low = low ^ (hash_counters(first, high) & low_mask)
        high = high ^ (hash_counters(second, low) & high_mask)
    return (high << low_bits) | low
