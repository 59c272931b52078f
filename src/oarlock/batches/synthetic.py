"""Data sets made of random tokens, in memory: to measure and test on, where only the lengths matter."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oarlock.batches.mixing import Purpose, below, chance, hash_counters, hash_values, mix
from oarlock.corpus import Dataset, Manifest, SpecialIds, Split, SplitCounts
from oarlock.corpus.dataset import FORMAT, narrowest_dtype

PAD, UNKNOWN, START, END, MASK = range(5)
SPECIAL = SpecialIds(pad=PAD, unknown=UNKNOWN, start=START, end=END, mask=MASK, all=(PAD, UNKNOWN, START, END, MASK))
JUMP_SHARE = 0.1


def synthetic_dataset(train_lengths: ArrayLike, validation_lengths: ArrayLike, vocab_size: int, seed: int) -> Dataset:
    """A data set whose samples have the given lengths [N], special tokens included, each at least 2.

    Ids 0 to 4 are special. Nine out of ten ordinary tokens are followed by the next id, so there is something to learn.
    `vocab_size` is at least 6.
    """
    train = _split(train_lengths, vocab_size, hash_values(seed, Purpose.SYNTHETIC, 0))
    validation = _split(validation_lengths, vocab_size, hash_values(seed, Purpose.SYNTHETIC, 1))
    counts = _counts(train), _counts(validation)
    manifest = Manifest(
        format=FORMAT,
        fingerprint=f"{hash_values(seed, vocab_size, counts[0].tokens, counts[1].tokens):016x}",
        vocab_size=vocab_size,
        max_length=max(2, counts[0].longest, counts[1].longest),
        prefix=(START,),
        suffix=(END,),
        special=SPECIAL,
        unigram_baseline=_entropy(train.ids[train.ids > MASK]),
        train=counts[0],
        validation=counts[1],
    )
    return Dataset(folder=Path("synthetic"), manifest=manifest, train=train, validation=validation)


def _split(lengths: ArrayLike, vocab_size: int, key: int) -> Split:
    sizes = np.asarray(lengths, np.int64)
    assert int(sizes.min(initial=2)) >= 2
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    ids = _walk(int(offsets[-1]), vocab_size, key)
    ids[offsets[:-1]] = START
    ids[offsets[1:] - 1] = END
    widest = narrowest_dtype(max(2, int(sizes.max(initial=2))) + 1)
    return Split(ids=ids, lengths=sizes.astype(widest), offsets=offsets, maskable=None)


def _walk(num_tokens: int, vocab_size: int, key: int) -> NDArray[np.unsignedinteger]:
    """Ordinary ids, most of them one more than the one before."""
    num_ordinary = vocab_size - len(SPECIAL.all)
    bits = hash_counters(key, np.arange(num_tokens))
    strides = np.where(chance(mix(bits), JUMP_SHARE), below(bits, num_ordinary), 1)
    return (len(SPECIAL.all) + np.cumsum(strides) % num_ordinary).astype(narrowest_dtype(vocab_size))


def _counts(split: Split) -> SplitCounts:
    num = len(split)
    return SplitCounts(
        documents=num, sequences=num, tokens=int(split.offsets[-1]), longest=int(split.lengths.max(initial=0))
    )


def _entropy(ids: NDArray[np.unsignedinteger]) -> float:
    """Entropy in nats of the frequencies of `ids`."""
    shares = np.bincount(ids)[np.unique(ids)] / max(1, len(ids))
    return float(-(shares * np.log(shares)).sum())
