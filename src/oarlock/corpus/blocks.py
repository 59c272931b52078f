"""Bytes of input files on their way to be tokenized."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oarlock.corpus.records import Place

Rule = Literal["line", "blank", "file", "json", "records", "piece", "skipped"]


@dataclass(frozen=True)
class Segment:
    """Some bytes of a file, and how documents are found in them.

    `records` are divided by `ends`; a `piece` is (a part of) one document; `skipped` stands for a document that was
    left out.
    """

    source: int
    """Index of the file."""
    place: Place
    """Of its first byte (of a parquet file: its first row, from 1)."""
    rule: Rule
    data: bytes
    bytes_read: int
    """Bytes on disk that were read when it was made, of all files together."""
    ends: NDArray[np.int64] | None = None
    """For `records`: where each document ends in data."""
    continues: bool = False
    """A piece that is not the first of its document."""
    unfinished: bool = False
    """A piece that is not the last of its document."""
    num_flaws: int = 0
    """Places at which the text was not valid, as far as they were found while reading."""


@dataclass(frozen=True)
class Block:
    """What is tokenized at once."""

    index: int
    segments: tuple[Segment, ...]
