"""Which samples an optimizer step takes: a pure function of (lengths, batch size, seed, step).

An epoch is the split in a keyed pseudo-random order. A batch never straddles two epochs, so the last batch of an epoch
is smaller. By tokens, batch k of an epoch (from 0) holds the sequences whose last token is one of the tokens
[k * tokens, (k + 1) * tokens) of the epoch: no batch is empty, a batch is off by less than one sequence, and every
epoch has ceil(total / tokens) of them, so that the epoch of a step is one division.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oarlock.batches.mixing import Purpose, hash_values
from oarlock.batches.order import permute
from oarlock.config import BatchConfig

CHUNK = 1 << 16  # samples at a time where a whole epoch is gone through: stays in a core's cache


@dataclass(frozen=True)
class StepSamples:
    """What one step takes."""

    epoch: int
    """Epoch, from 0."""
    samples_S: NDArray[np.int64]
    """Indices into the split, in the order of the epoch."""


class StepPlan:
    """Samples by step. Any step costs the same: an epoch's boundaries are found once, and kept until the next one's."""

    def __init__(self, lengths: NDArray[np.integer], batch: BatchConfig, seed: int) -> None:
        """Plan over a split with `lengths` [N] tokens.

        Raises ValueError where the split is empty, or `batch` cannot hold its longest sequence.
        """
        self._lengths = lengths
        self._seed = seed
        self._sequences = batch.sequences
        self._tokens = batch.tokens
        self._starts: tuple[int, NDArray[np.int64]] | None = None
        if not len(lengths):
            raise ValueError("the split has no sequences; prepare more text, or a smaller validation share")
        totals = [(int(part.sum(dtype=np.int64)), int(part.max())) for part in self._chunks()]
        self.num_tokens = sum(total for total, _ in totals)
        """Useful tokens of an epoch."""
        self.longest = max(longest for _, longest in totals)
        """Length of the longest sequence."""
        for name in ("tokens", "max_tokens_per_microbatch"):
            limit = getattr(batch, name)
            if limit is not None and limit < self.longest:
                raise ValueError(
                    f"batch.{name} {limit} cannot hold the longest sequence of the data set, which has "
                    f"{self.longest} tokens; raise it to at least {self.longest}, or prepare with a smaller max length"
                )
        self.steps_per_epoch = (
            -(-self.num_tokens // self._tokens) if self._tokens else -(-len(lengths) // self._sequences)
        )
        """Optimizer steps of an epoch, the same for every epoch."""

    def epoch(self, step: int) -> int:
        """Epoch, from 0, of a step, from 1."""
        return (step - 1) // self.steps_per_epoch

    def samples(self, step: int) -> StepSamples:
        """The samples of a step (from 1)."""
        if step < 1:
            raise ValueError(f"steps count from 1, but step {step} was asked for")
        epoch, batch = divmod(step - 1, self.steps_per_epoch)
        num_samples = len(self._lengths)
        if self._tokens:
            starts = self._token_starts(epoch)
            first, last = int(starts[batch]), int(starts[batch + 1])
        else:
            first, last = batch * self._sequences, min((batch + 1) * self._sequences, num_samples)
        return StepSamples(epoch, permute(np.arange(first, last), num_samples, self._order_key(epoch)))

    def _order_key(self, epoch: int) -> int:
        return hash_values(self._seed, Purpose.ORDER, epoch)

    def _chunks(self) -> list[NDArray[np.integer]]:
        return [self._lengths[start : start + CHUNK] for start in range(0, len(self._lengths), CHUNK)]

    def _token_starts(self, epoch: int) -> NDArray[np.int64]:
        """Where, in the order of the epoch, each batch begins [steps_per_epoch + 1]."""
        if self._starts is None or self._starts[0] != epoch:
            self._starts = (epoch, self._find_token_starts(self._order_key(epoch)))
        return self._starts[1]

    def _find_token_starts(self, key: int) -> NDArray[np.int64]:
        assert self._tokens is not None
        num_samples = len(self._lengths)
        starts = np.full(self.steps_per_epoch + 1, num_samples, np.int64)
        found, before = 0, 0
        for start in range(0, num_samples, CHUNK):
            order = permute(np.arange(start, min(start + CHUNK, num_samples)), num_samples, key)
            ends = before + np.cumsum(self._lengths[order], dtype=np.int64)
            before = int(ends[-1])
            windows = np.arange(found, -(-before // self._tokens))
            # A window's first sequence is the first that ends past the window's start.
            starts[windows] = start + np.searchsorted(ends, windows * self._tokens, side="right")
            found += len(windows)
        return starts
