"""Cutting documents into windows: sequences of bounded length, framed by special tokens.

Suffixes: R rows of a block (documents or pieces of one), D documents, W windows, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from oarlock.corpus.encoding import Encoded

Ids = NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class Framing:
    """The shape of a sequence."""

    max_length: int
    """Longest sequence, special tokens included."""
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    special_V: NDArray[np.bool_]
    """For each id whether it is special: never a target, and not counted as an ordinary token."""
    min_tokens: int
    """Ordinary tokens that a sequence must have."""

    @property
    def body(self) -> int:
        """Tokens of a document that fit into a sequence."""
        return self.max_length - len(self.prefix) - len(self.suffix)


@dataclass(frozen=True)
class Windows:
    """Framed sequences, and the documents that they are from."""

    ids: Ids
    """All sequences end to end."""
    lengths_W: NDArray[np.int64]
    maskable_W: NDArray[np.int64]
    """Tokens of each sequence that are not special."""
    keys_W: NDArray[np.uint64]
    """Split key of each sequence's document."""
    special_inside: bool
    """Whether a sequence has special tokens apart from those that frame it."""
    num_dropped: int
    """Sequences dropped because they had too few ordinary tokens."""
    num_dropped_tokens: int
    keys_D: NDArray[np.uint64]
    """Split key of each document that ended here."""
    hashes_D: NDArray[np.uint64]
    """Hash of the whole of each."""
    num_tokens_D: NDArray[np.int64]
    """Tokens of each."""
    kept_D: NDArray[np.bool_]
    """Whether at least one sequence of it was kept."""


@dataclass(frozen=True)
class _Open:
    """A document of which more pieces are to come."""

    key: np.uint64
    hash: np.uint64
    num_tokens: int
    """Of all pieces so far."""
    rest: Ids
    """Its last tokens, too few for a window."""
    kept: bool


class WindowCutter:
    """Cuts blocks into windows, in their order; remembers the document that a block leaves open."""

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._open: _Open | None = None

    def cut(self, block: Encoded) -> Windows:
        """The windows that are complete with this block."""
        rows_R, starts, ids = block.num_tokens, np.flatnonzero(~block.continues), block.ids
        opened = self._open if len(rows_R) else None
        if opened:
            assert block.continues[0], "a document was left open and is not continued"
            starts = np.concatenate(([0], starts))
            ids = np.concatenate((opened.rest, ids))
            rows_R = np.concatenate(([rows_R[0] + len(opened.rest)], rows_R[1:]))
        num_tokens_D = np.add.reduceat(rows_R, starts) if len(starts) else rows_R
        keys_D = block.keys[starts]
        hashes_D = _join_hashes(block.hashes, starts)
        if opened:
            keys_D[0] = opened.key
            hashes_D[0] = _digest(opened.hash, hashes_D[0])

        windows_D = -(-num_tokens_D // self._framing.body)
        if block.unfinished:
            windows_D[-1] = num_tokens_D[-1] // self._framing.body
        document_W = np.repeat(np.arange(len(starts)), windows_D)
        number_W = np.arange(len(document_W)) - np.repeat(np.cumsum(windows_D) - windows_D, windows_D)
        lengths_W = np.minimum(self._framing.body, num_tokens_D[document_W] - number_W * self._framing.body)
        used, rest = np.split(ids, [int(lengths_W.sum())])

        maskable_W = lengths_W - _count_special(used, lengths_W, self._framing.special_V)
        keep_W = maskable_W >= self._framing.min_tokens
        kept_D = np.bincount(document_W[keep_W], minlength=len(starts)) > 0
        if opened:
            num_tokens_D[0] += opened.num_tokens - len(opened.rest)
            kept_D[0] |= opened.kept
        if not keep_W.all():
            used = used[np.repeat(keep_W, lengths_W)]

        ended = slice(None, -1 if block.unfinished else None)
        if block.unfinished:
            self._open = _Open(keys_D[-1], hashes_D[-1], int(num_tokens_D[-1]), rest.copy(), bool(kept_D[-1]))
        elif len(rows_R):
            self._open = None
        return Windows(
            ids=_frame(used, lengths_W[keep_W], self._framing),
            lengths_W=lengths_W[keep_W] + len(self._framing.prefix) + len(self._framing.suffix),
            maskable_W=maskable_W[keep_W],
            keys_W=keys_D[document_W[keep_W]],
            special_inside=bool((maskable_W < lengths_W)[keep_W].any()),
            num_dropped=int(np.count_nonzero(~keep_W)),
            num_dropped_tokens=int(lengths_W[~keep_W].sum()),
            keys_D=keys_D[ended],
            hashes_D=hashes_D[ended],
            num_tokens_D=num_tokens_D[ended],
            kept_D=kept_D[ended],
        )


def _frame(ids: Ids, lengths_W: NDArray[np.int64], framing: Framing) -> Ids:
    """The windows end to end, each with prefix and suffix."""
    num_framing = len(framing.prefix) + len(framing.suffix)
    ends = np.cumsum(lengths_W + num_framing)
    starts = ends - lengths_W - num_framing
    framed = np.empty(len(ids) + num_framing * len(lengths_W), ids.dtype)
    ordinary = np.ones(len(framed), np.bool_)
    for places, special in (
        *((starts + number, special) for number, special in enumerate(framing.prefix)),
        *((ends - number, special) for number, special in enumerate(reversed(framing.suffix), 1)),
    ):
        framed[places] = special
        ordinary[places] = False
    framed[ordinary] = ids
    return framed


def _count_special(ids: Ids, lengths_W: NDArray[np.int64], special_V: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Special ids in each window; windows are not empty."""
    special = special_V[ids]
    if not special.any():
        return np.zeros_like(lengths_W)
    return np.add.reduceat(special, np.cumsum(lengths_W) - lengths_W, dtype=np.int64)


def _join_hashes(hashes_R: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash of each document from those of its rows, which are nearly always one."""
    hashes_D = hashes_R[starts]
    ends = np.append(starts[1:], len(hashes_R))
    for document in np.flatnonzero(ends - starts > 1):
        for piece in hashes_R[starts[document] + 1 : ends[document]]:
            hashes_D[document] = _digest(hashes_D[document], piece)
    return hashes_D


def _digest(first: np.uint64, second: np.uint64) -> np.uint64:
    return np.uint64(xxhash.xxh3_64_intdigest(first.tobytes() + second.tobytes()))
