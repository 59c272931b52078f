"""A prepared data set on disk: token ids, lengths and a manifest, all memory-mapped.

A folder holds `manifest.json`, `report.json`, `tokenizer/` (a Hugging Face tokenizer folder) and, for each split,
`ids.npy` (all sequences end to end, in the narrowest unsigned width that holds the vocabulary), `lengths.npy`,
`offsets.npy` (N + 1 starts into ids) and, only where special tokens stand inside of sequences (unknown ones, or ones
that were parsed from the text), `maskable.npy`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from oarlock.config import Frozen
from oarlock.config.folders import fetch

FORMAT = 1
MANIFEST = "manifest.json"
REPORT = "report.json"
TOKENIZER = "tokenizer"
AGAIN = "run `oarlock prepare` again"
# A key without which a file is not what its name says.
NEEDED_KEYS = {REPORT: "unigram_baseline", f"{TOKENIZER}/tokenizer.json": "model"}


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
    maskable: bool = False
    """Whether the splits have a `maskable.npy`."""


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


def narrowest_dtype(count: int) -> np.dtype[np.unsignedinteger]:
    """The narrowest unsigned type that holds 0 to count - 1."""
    return np.dtype(next(width for width in (np.uint8, np.uint16, np.uint32) if count - 1 <= np.iinfo(width).max))


def open_dataset(folder: str) -> Dataset:
    """Open a folder (or URL) that `oarlock prepare` wrote; the arrays are memory-mapped, nothing is read yet.

    Raises ValueError where the folder is missing, not finished, of another format, or where a file of it is damaged:
    also the report and the tokenizer, which a run would otherwise miss only at its end.
    """
    path = fetch(folder)
    if not path.is_dir():
        raise ValueError(f"there is no data set at {folder}: make one with `oarlock prepare INPUT... --out {folder}`")
    manifest = read_manifest(path)
    for name, key in NEEDED_KEYS.items():
        _check_json(path / name, key)
    return Dataset(
        folder=path,
        manifest=manifest,
        train=_open_split(path / "train", manifest, manifest.train),
        validation=_open_split(path / "validation", manifest, manifest.validation),
    )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder; raises ValueError where there is none or it cannot be read."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} has no {MANIFEST}: it is no data set, or an unfinished one; {AGAIN}")
    try:
        values = json.loads(path.read_bytes())
        if values.get("format") != FORMAT:
            raise ValueError(f"it has format {values.get('format')}, and this version of Oarlock reads format {FORMAT}")
        return Manifest.model_validate(values)
    except (ValueError, AttributeError) as error:
        raise ValueError(f"cannot read {path}: {error}; {AGAIN}") from error


def _check_json(path: Path, key: str) -> None:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is missing or damaged ({error}); {AGAIN}") from error
    if not isinstance(values, dict) or key not in values:
        raise ValueError(f"{path} is damaged (it has no {key!r}); {AGAIN}")


def _open_split(folder: Path, manifest: Manifest, counts: SplitCounts) -> Split:
    length_type = narrowest_dtype(manifest.max_length + 1)
    split = Split(
        ids=_open_array(folder / "ids.npy", narrowest_dtype(manifest.vocab_size), counts.tokens),
        lengths=_open_array(folder / "lengths.npy", length_type, counts.sequences),
        offsets=_open_array(folder / "offsets.npy", np.int64, counts.sequences + 1),
        maskable=_open_array(folder / "maskable.npy", length_type, counts.sequences) if manifest.maskable else None,
    )
    if split.offsets[0] != 0 or split.offsets[-1] != counts.tokens:
        raise ValueError(f"{folder / 'offsets.npy'} does not fit ids.npy; {AGAIN}")
    return split


def _open_array(path: Path, dtype: DTypeLike, size: int) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} is missing or damaged ({error}); {AGAIN}") from error
    if array.dtype != dtype or array.shape != (size,):
        raise ValueError(
            f"{path} holds {array.shape} of {array.dtype} where the manifest says ({size},) of {np.dtype(dtype)}: "
            f"the folder was changed after it was written; {AGAIN}"
        )
    return array
