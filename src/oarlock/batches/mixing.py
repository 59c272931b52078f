"""Random numbers as a function of a counter: the only source of randomness in this room.

`hash_values` turns (seed, purpose, epoch, ...) into a key; `hash_counters` turns a key and counters into 64 random
bits each. Nothing is drawn from a stream, so any process can work out any number without the ones before it.

The mixer is the finaliser of splitmix64 (Steele, Lea and Flood, 2014; constants of Stafford's variant 13). It is a
bijection of 64-bit integers, so different counters under one key never collide.
"""

import enum

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Purpose(enum.IntEnum):
    """What a key is for: keys of different purposes are unrelated, whatever the rest of their values."""

    ORDER = 1
    TRAINING_MASKS = 2
    EVALUATION_MASKS = 3
    TARGET_KIND = 4
    REPLACEMENT = 5
    DROPOUT = 6
    SYNTHETIC = 7


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each 64-bit integer of the array x, of any shape, mapped to another; a bijection."""
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))


def hash_values(*values: int) -> int:
    """One 64-bit key from the integers `values`, each in [0, 2^64); their order and number matter."""
    state = np.full(1, len(values), np.uint64)
    for value in values:
        state = mix(mix(state + _GOLDEN) ^ np.full(1, value, np.uint64))
    return int(mix(state + _GOLDEN)[0])


def hash_counters(key: int, counters: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits for each counter (integers in [0, 2^64), any shape but a scalar): for one key a bijection.

    The key enters twice, so that two keys which differ by a small number do not give shifted copies of one stream.
    """
    keys = np.full(1, key, np.uint64)
    return mix(mix(np.asarray(counters).astype(np.uint64, copy=False) + keys) ^ mix(keys + _GOLDEN))


def below(bits: NDArray[np.uint64], bound: ArrayLike) -> NDArray[np.int64]:
    """Integers in [0, bound) from random bits, by multiplication and shift (Lemire, 2019): no modulo.

    Every value has the same probability to within bound / 2^32 of it. `bound` (one, or one each) is at most 2^32.
    """
    bounds = np.asarray(bound).astype(np.uint64)
    return (((bits >> np.uint64(32)) * bounds) >> np.uint64(32)).astype(np.int64)


def chance(bits: NDArray[np.uint64], probability: float) -> NDArray[np.bool_]:
    """True with `probability` in [0, 1], which is kept exactly to 53 bits; 0 is never and 1 is always."""
    return (bits >> np.uint64(11)) < np.uint64(int(probability * 2**53))
