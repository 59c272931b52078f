"""Counting what was seen before, in bounded memory."""

import numpy as np
from numpy.typing import NDArray

# Distinct hashes that are remembered at most (16 bytes each); beyond, a sample of the hash range is.
MOST_REMEMBERED = 1 << 21
MERGED_AT_ONCE = 1 << 18


class DuplicateCounter:
    """Share of hashes that were seen before: 1 - distinct / all.

    Exact as long as there are few. Beyond, only hashes below a falling limit are counted: each halving of the limit
    keeps a random half of the distinct values with all of their occurrences, so the share stays unbiased.
    """

    def __init__(self, most_remembered: int = MOST_REMEMBERED) -> None:
        self._most = most_remembered
        self._bits = 64
        self._hashes = np.empty(0, np.uint64)
        self._counts = np.empty(0, np.int64)
        self._new: list[NDArray[np.uint64]] = []
        self._num_new = 0

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Count these hashes."""
        counted = self._below(hashes)
        self._new.append(counted)
        self._num_new += len(counted)
        if self._num_new >= max(MERGED_AT_ONCE, len(self._hashes) // 2):
            self._merge()

    @property
    def exact(self) -> bool:
        """Whether every hash was counted."""
        self._merge()
        return self._bits == 64

    def share(self) -> float:
        """Share of the hashes that were seen before, 0 where there are none."""
        self._merge()
        total = int(self._counts.sum())
        return 1.0 - len(self._hashes) / total if total else 0.0

    def _merge(self) -> None:
        new = np.concatenate((np.empty(0, np.uint64), *self._new))
        self._new, self._num_new = [], 0
        hashes, inverse = np.unique(np.concatenate((self._hashes, new)), return_inverse=True)
        weights = np.concatenate((self._counts, np.ones(len(new), np.int64)))
        counts = np.bincount(inverse, weights, minlength=len(hashes)).astype(np.int64)
        while len(hashes) > self._most:
            self._bits -= 1
            kept = len(self._below(hashes))
            hashes, counts = hashes[:kept], counts[:kept]
        self._hashes, self._counts = hashes, counts

    def _below(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return hashes if self._bits == 64 else hashes[hashes < np.uint64(1 << self._bits)]
