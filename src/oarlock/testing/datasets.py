"""Small data sets, in memory and as folders."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oarlock.batches.mixing import below, hash_counters, hash_values
from oarlock.batches.synthetic import END, MASK, START, UNKNOWN, synthetic_dataset
from oarlock.corpus import Dataset, Split
from oarlock.corpus.dataset import MANIFEST, NEEDED_KEYS

SPELLED_OUT = (UNKNOWN, START, END, MASK)


def toy_dataset(
    num_samples: int,
    *,
    num_validation: int = 16,
    shortest: int = 3,
    longest: int = 60,
    vocab_size: int = 64,
    seed: int = 0,
    special_inside: bool = False,
) -> Dataset:
    """A data set of `num_samples` training samples whose lengths are uniform in [shortest, longest].

    Ids 0 to 4 are special (pad, unknown, start, end, mask); most other ids are followed by the next one, so a model
    can learn. With `special_inside` an eighth of the tokens inside the sequences are special ones, as where special
    tokens were parsed from the text, and the splits say how many tokens of each sample are maskable.
    """
    dataset = synthetic_dataset(
        _lengths(num_samples, shortest, longest, hash_values(seed, 0)),
        _lengths(num_validation, shortest, longest, hash_values(seed, 1)),
        vocab_size,
        seed,
    )
    if not special_inside:
        return dataset
    return replace(
        dataset,
        manifest=dataset.manifest.model_copy(update={"maskable": True}),
        train=_with_special_inside(dataset.train),
        validation=_with_special_inside(dataset.validation),
    )


def write_toy_dataset(folder: Path, dataset: Dataset) -> Dataset:
    """Write a data set as `oarlock prepare` would, with stand-ins for report and tokenizer; returns it there."""
    for name, split in (("train", dataset.train), ("validation", dataset.validation)):
        (folder / name).mkdir(parents=True)
        for array in ("ids", "lengths", "offsets", "maskable"):
            values = getattr(split, array)
            if values is not None:
                np.save(folder / name / f"{array}.npy", values)
    for name, key in NEEDED_KEYS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps({key: None}))
    (folder / MANIFEST).write_text(dataset.manifest.model_dump_json(indent=1))
    return replace(dataset, folder=folder)


def _lengths(num: int, shortest: int, longest: int, key: int) -> NDArray[np.int64]:
    return shortest + below(hash_counters(key, np.arange(num)), longest - shortest + 1)


def _with_special_inside(split: Split) -> Split:
    ids = split.ids.copy()
    inside = ids > MASK
    positions = np.flatnonzero(inside)[::8]
    ids[positions] = np.resize(SPELLED_OUT, len(positions))
    before = np.concatenate([[0], np.cumsum(ids > MASK)])
    maskable = before[split.offsets[1:]] - before[split.offsets[:-1]]
    return replace(split, ids=ids, maskable=maskable.astype(split.lengths.dtype))
