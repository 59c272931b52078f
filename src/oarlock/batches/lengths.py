"""Sequence lengths of BERT's Wikipedia data, to measure at: what real text asks of balance and packing.

Source: the packing histogram of Krell et al., "Efficient Sequence Packing without Cross-contamination",
arXiv:2107.02027, 16,279,552 sequences of at most 512 tokens. Mean 255.8; 23.43 % are exactly 512 long.
"""

import numpy as np
from numpy.typing import NDArray

from oarlock.batches.mixing import Purpose, below, hash_counters, hash_values

WIKIPEDIA_HISTOGRAM: tuple[tuple[int, int, int], ...] = (
    (5, 32, 584_835),
    (33, 64, 2_278_244),
    (65, 96, 1_853_320),
    (97, 128, 1_297_484),
    (129, 160, 1_014_430),
    (161, 192, 841_112),
    (193, 224, 720_373),
    (225, 256, 629_192),
    (257, 288, 554_205),
    (289, 320, 496_001),
    (321, 352, 449_775),
    (353, 384, 409_734),
    (385, 416, 375_272),
    (417, 448, 347_246),
    (449, 480, 321_394),
    (481, 511, 291_891),
    (512, 512, 3_815_044),
)
"""(shortest, longest, sequences) of each bin."""


def wikipedia_lengths(n: int, seed: int) -> NDArray[np.int64]:
    """n lengths [n] drawn from the histogram: a bin by its count, then uniform inside the bin."""
    table: NDArray[np.int64] = np.array(WIKIPEDIA_HISTOGRAM)
    shortest, longest, counts = table.T
    draws = hash_counters(hash_values(seed, Purpose.SYNTHETIC), np.arange(2 * n)).reshape(2, n)
    bins = np.searchsorted(np.cumsum(counts), below(draws[0], int(counts.sum())), side="right")
    lengths: NDArray[np.int64] = shortest[bins] + below(draws[1], (longest - shortest + 1)[bins])
    return lengths
