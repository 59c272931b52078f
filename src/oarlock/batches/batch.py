"""The one layout of a batch: a flat run of tokens plus the boundaries of its sequences.

Suffixes: T tokens, S sequences, S1 = S + 1, M masked targets.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One packed micro-batch. Host integers are host integers, so that no operator has to read the device.

    The last sequence may be a filler, of sample id -1, that no loss reads (`pack.add_filler`).
    """

    ids_T: Tensor
    """Input token ids after masking, int64."""
    positions_T: Tensor
    """Position of each token in its own sequence, from 0, int64."""
    segments_T: Tensor
    """Segment (token type) of each token, int64."""
    cu_seqlens_S1: Tensor
    """Start of each sequence in the run, and T at the end, int32."""
    max_seqlen: int
    """Length of the longest sequence."""
    target_positions_M: Tensor
    """Indices into the run of T tokens of the targets, ascending, int64."""
    target_ids_M: Tensor
    """What stood there before masking, int64."""
    num_targets: int
    """Targets of the whole global batch: the denominator of the loss."""
    sequence_labels_S: Tensor | None
    """Label of each sequence (next-sentence), or none, int64."""
    sample_ids_S: Tensor
    """Index of each sequence in the data set, int64."""
    dropout_key: Tensor
    """What dropout's random numbers follow from, with the sample id: a function of (seed, step), int64 [1]. A tensor,
    so that a compiled model reads it, and is not compiled anew for each step's value."""

    @property
    def num_tokens(self) -> int:
        """T, a filler included."""
        return self.ids_T.numel()

    def token_samples(self) -> Tensor:
        """Data-set index of the sequence that each token belongs to, int64 [T]."""
        lengths_S = self.cu_seqlens_S1.diff()
        return self.sample_ids_S.repeat_interleave(lengths_S, output_size=self.num_tokens)

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`; the copy is asynchronous where the memory is pinned."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory."""
        return self._map(Tensor.pin_memory)

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the batch's memory from being reused before `stream` is done with it."""
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), Tensor):
                value.record_stream(stream)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value: a batch goes from process to process through a pipe and leaves no shared memory behind."""
        values = (getattr(self, field.name) for field in fields(self))
        return _unpickle, tuple(v.numpy() if isinstance(v, Tensor) else v for v in values)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: function(v) for name, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def _unpickle(*values: Any) -> Batch:
    restored: list[Any] = [torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in values]
    return Batch(*restored)


@dataclass(frozen=True)
class GlobalBatch:
    """What one rank does in one optimizer step."""

    step: int
    """Optimizer step, from 1."""
    epoch: int
    """Epoch, from 0."""
    microbatches: tuple[Batch, ...]
    """This rank's share; every rank has the same number of micro-batches."""
    num_sequences: int
    """Sequences of the whole global batch."""
    num_tokens: int
    """Useful tokens of the whole global batch."""
    num_targets: int
    """Targets of the whole global batch."""
    imbalance: float
    """Largest over mean number of tokens of a (rank, micro-batch) cell."""

    def to(self, device: torch.device) -> "GlobalBatch":
        """The same batch on `device`; the copy is asynchronous where the memory is pinned."""
        return replace(self, microbatches=tuple(batch.to(device) for batch in self.microbatches))

    def pin_memory(self) -> "GlobalBatch":
        """The same batch in page-locked memory."""
        return replace(self, microbatches=tuple(batch.pin_memory() for batch in self.microbatches))

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the batch's memory from being reused before `stream` is done with it."""
        for batch in self.microbatches:
            batch.record_stream(stream)
