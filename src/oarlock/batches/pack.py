"""Sequences -> one packed `Batch`.

Suffixes: T tokens, S sequences, M targets.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.nn.functional import pad

from oarlock.batches.batch import Batch
from oarlock.batches.masking import MaskingRules, mask, maskable_lengths
from oarlock.corpus import Split

FILLER = -1  # its sample id
LARGEST_MULTIPLE = 128


def pack(
    sequences: Sequence[ArrayLike],
    *,
    targets: Sequence[ArrayLike] = (),
    target_ids: Sequence[ArrayLike] | None = None,
    num_targets: int | None = None,
    sample_ids: ArrayLike | None = None,
    dropout_key: int = 0,
) -> Batch:
    """A batch of explicit sequences of token ids, in their order.

    `targets` holds, for each sequence, the positions in it that are targets, ascending; by default there are none.
    `target_ids` holds what is to be predicted there, by default what stands there. `num_targets` is the loss
    denominator, by default the targets of this batch. `sample_ids` are 0, 1, 2, ... by default.
    """
    ids_T = _flat(sequences)
    lengths_S = _sizes(sequences)
    targets = targets or [()] * len(sequences)
    targets_M = _flat(targets) + np.repeat(np.cumsum(lengths_S) - lengths_S, _sizes(targets))
    return _batch(
        ids_T,
        lengths_S,
        targets_M,
        ids_T[targets_M] if target_ids is None else _flat(target_ids),
        len(targets_M) if num_targets is None else num_targets,
        np.arange(len(sequences)) if sample_ids is None else np.asarray(sample_ids, np.int64),
        dropout_key,
    )


def pack_samples(
    split: Split, samples_S: NDArray[np.int64], rules: MaskingRules, mask_key: int, num_targets: int, dropout_key: int
) -> Batch:
    """A masked batch of samples of a split, in the order of `samples_S` [S]; `num_targets` is of the global batch."""
    starts_S, ends_S = split.offsets[samples_S].tolist(), split.offsets[samples_S + 1].tolist()
    ids = np.asarray(split.ids)  # slices of a plain array cost a third of those of a memory map
    ids_T = _flat([ids[start:end] for start, end in zip(starts_S, ends_S, strict=True)])
    lengths_S = split.lengths[samples_S].astype(np.int64)
    maskable_S = maskable_lengths(split, samples_S, rules)
    input_ids_T, targets_M, true_ids_M = mask(ids_T, lengths_S, samples_S, maskable_S, mask_key, rules)
    return _batch(input_ids_T, lengths_S, targets_M, true_ids_M, num_targets, samples_S, dropout_key)


def add_filler(batch: Batch, divisor: int = 1) -> Batch:
    """The batch with one more sequence, which brings T up to a multiple of a power of two; no loss reads it.

    Matrix products are built for each T anew, on a CPU in some milliseconds and megabytes each: a T that varies freely
    would cost a small model a good part of its time, and ever more memory. The power is at most 128 and at most T / 32;
    what it comes to is rounded up to a multiple of `divisor`. A batch without tokens stays so.
    """
    multiple = min(LARGEST_MULTIPLE, 1 << max(0, (batch.num_tokens // 32).bit_length() - 1))
    multiple = -(-multiple // divisor) * divisor
    length = -batch.num_tokens % multiple
    if length == 0:
        return batch
    end = batch.cu_seqlens_S1[-1:] + length
    return replace(
        batch,
        ids_T=pad(batch.ids_T, (0, length)),
        positions_T=pad(batch.positions_T, (0, length)),  # all 0, for the filler may be longer than any position table
        segments_T=pad(batch.segments_T, (0, length)),
        cu_seqlens_S1=torch.cat([batch.cu_seqlens_S1, end]),
        max_seqlen=max(batch.max_seqlen, length),
        sample_ids_S=pad(batch.sample_ids_S, (0, 1), value=FILLER),
    )


def _sizes(parts: Sequence[ArrayLike]) -> NDArray[np.int64]:
    return np.array([np.asarray(part).size for part in parts], np.int64)


def _flat(parts: Sequence[ArrayLike]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *parts], dtype=np.int64, casting="unsafe")


def _batch(
    ids_T: NDArray[np.int64],
    lengths_S: NDArray[np.int64],
    targets_M: NDArray[np.int64],
    target_ids_M: NDArray[np.int64],
    num_targets: int,
    samples_S: NDArray[np.int64],
    dropout_key: int,
) -> Batch:
    ends_S = np.cumsum(lengths_S)
    return Batch(
        ids_T=torch.from_numpy(ids_T),
        positions_T=torch.from_numpy(np.arange(len(ids_T)) - np.repeat(ends_S - lengths_S, lengths_S)),
        segments_T=torch.zeros(len(ids_T), dtype=torch.int64),
        cu_seqlens_S1=torch.from_numpy(np.concatenate([[0], ends_S]).astype(np.int32)),
        max_seqlen=int(lengths_S.max(initial=0)),
        target_positions_M=torch.from_numpy(targets_M),
        target_ids_M=torch.from_numpy(target_ids_M),
        num_targets=num_targets,
        sequence_labels_S=None,
        sample_ids_S=torch.from_numpy(samples_S),
        dropout_key=torch.from_numpy(np.array([dropout_key], np.uint64).view(np.int64)),
    )
