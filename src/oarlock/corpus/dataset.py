"""A prepared data set on disk: token ids, lengths and a manifest, all memory-mapped.

A folder holds `manifest.json`, `report.json`, `tokenizer/` (a Hugging Face tokenizer folder) and, for each split,
`ids.npy` (all sequences end to end, in the narrowest unsigned width that holds the vocabulary), `lengths.npy`,
`offsets.npy` (N + 1 starts into ids) and, only where special tokens were parsed from the text, `maskable.npy`.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oarlock.config import Frozen


class SplitCounts(Frozen):
    """How much a split holds."""

    documents: int
    sequences: int
    tokens: int
    """Special tokens included."""
    longest: int
    """Length of its longest sequence."""


class SpecialIds(Frozen):
    """Ids of the special tokens; `all` holds every id that is never a target and never a random replacement."""

    pad: int
    unknown: int | None
    start: int
    end: int
    mask: int
    all: tuple[int, ...]


class Manifest(Frozen):
    """What a prepared folder says of itself. It is written last, so a folder without one is not finished."""

    format: int
    fingerprint: str
    """Hash of the tokenizer, the options and the input contents."""
    vocab_size: int
    max_length: int
    prefix: tuple[int, ...]
    """Special ids that open every sequence."""
    suffix: tuple[int, ...]
    """Special ids that close every sequence."""
    special: SpecialIds
    unigram_baseline: float
    """Entropy in nats of the training split's token frequencies (special tokens aside): the loss of a model that
    knows nothing else."""
    train: SplitCounts
    validation: SplitCounts


@dataclass(frozen=True)
class Split:
    """One split. Sample i is `ids[offsets[i] : offsets[i + 1]]`, special tokens included."""

    ids: NDArray[np.unsignedinteger]
    lengths: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]
    maskable: NDArray[np.unsignedinteger] | None
    """Tokens of each sample that may be targets, where that is not its length less prefix and suffix."""

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class Dataset:
    """An opened data set."""

    folder: Path
    manifest: Manifest
    train: Split
    validation: Split
