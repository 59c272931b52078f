"""Sequences of a global batch -> (rank, micro-batch) cells of equal cost.

Every rank knows all lengths and works out the same assignment by itself: balance costs no communication.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from oarlock.config import ModelConfig

GROWTH = 50  # a cell that overflows asks for 1/50 more cells: few tries, and at most 2 % more than needed


BERT_BASE_QUADRATIC = 4608


def quadratic_length(model: ModelConfig) -> int:
    """Length at which a layer's attention costs as many multiplications as its linear parts.

    With width D and feed-forward width I, a token costs 4 D^2 + 2 D I in the linear parts (with GeGLU 4 D^2 + 3 D I)
    and 2 D L in attention over L tokens, so L = 2 D + I (or 2 D + 1.5 I). A local layer's attention does not grow with
    L: where one layer in g is global, the length is g times that.
    """
    if model.kind == "modernbert":
        return (2 * model.hidden_size + 3 * model.intermediate_size // 2) * model.global_every
    return 2 * model.hidden_size + model.intermediate_size


def assign(
    lengths: NDArray[np.integer],
    num_ranks: int,
    max_tokens_per_microbatch: int,
    quadratic: int,
    num_microbatches: int = 1,
) -> list[list[NDArray[np.int64]]]:
    """For each rank, for each of its micro-batches, indices into `lengths` [S], longest sequence first.

    A sequence is estimated to cost length * (1 + length / quadratic), where `quadratic` is the length at which
    attention costs as much as the linear layers. The costliest sequence left goes to the cell that has least so far
    (Graham, 1969). There are as few micro-batches as keep each within `max_tokens_per_microbatch`, but at least
    `num_microbatches`, and as many for every rank; a cell may be empty. The costliest cells come first, so
    that a run out of memory shows at once, and are dealt to the ranks back and forth, so that the ranks' sums are
    closer still.

    Raises ValueError where one sequence alone is longer than `max_tokens_per_microbatch`.
    """
    longest = int(lengths.max(initial=0))
    if longest > max_tokens_per_microbatch:
        raise ValueError(
            f"max_tokens_per_microbatch {max_tokens_per_microbatch} cannot hold a sequence of {longest} tokens; "
            f"raise it to at least {longest}"
        )
    sizes = lengths.astype(np.int64)
    num_microbatches = max(num_microbatches, -(-int(sizes.sum()) // (num_ranks * max_tokens_per_microbatch)))
    while True:
        cells = _fill(sizes, num_ranks * num_microbatches, quadratic)
        if max(int(sizes[cell].sum()) for cell in cells) <= max_tokens_per_microbatch:
            return _deal(cells, num_ranks)
        num_microbatches += max(1, num_microbatches // GROWTH)


def _fill(lengths: NDArray[np.int64], num_cells: int, quadratic: int) -> list[list[int]]:
    """The cells, costliest first. Costs are integers (scaled by `quadratic`): equal on every machine."""
    costs = (lengths * (lengths + quadratic)).tolist()
    heap = [(0, cell) for cell in range(num_cells)]
    members: list[list[int]] = [[] for _ in range(num_cells)]
    for index in np.argsort(-lengths, kind="stable").tolist():
        cost, cell = heap[0]
        heapq.heapreplace(heap, (cost + costs[index], cell))
        members[cell].append(index)
    return [members[cell] for _, cell in sorted(heap, key=lambda entry: (-entry[0], entry[1]))]


def _deal(cells: list[list[int]], num_ranks: int) -> list[list[NDArray[np.int64]]]:
    rounds = [cells[start : start + num_ranks] for start in range(0, len(cells), num_ranks)]
    dealt = [round_[::-1] if number % 2 else round_ for number, round_ in enumerate(rounds)]
    return [[np.array(round_[rank], np.int64) for round_ in dealt] for rank in range(num_ranks)]
