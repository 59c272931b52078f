"""Masked-LM targets, by BERT's procedure (Devlin et al., 2019, section 3.1), as a function of (key, sample, position).

A sequence's number of targets follows from its length alone, so the loss denominator of a global batch is known on
every host before anything is read or masked.

Suffixes: T tokens, S sequences, E eligible tokens, M targets, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oarlock.batches.mixing import Purpose, below, chance, hash_counters, hash_values
from oarlock.config import MaskingConfig
from oarlock.corpus import Manifest, Split

POSITION_BITS = 24  # (sample, position) is one 64-bit counter: samples below 2^40, positions below 2^24


@dataclass(frozen=True)
class MaskingRules:
    """What masking has to know of the tokenizer, and the rates."""

    config: MaskingConfig
    num_framing: int
    """Special tokens that open and close every sequence."""
    mask_id: int
    special_V: NDArray[np.bool_]
    """Whether an id is never a target and never a replacement."""
    ordinary_ids: NDArray[np.int64]
    """All other ids of the real vocabulary: the random replacements."""


def masking_rules(manifest: Manifest, config: MaskingConfig) -> MaskingRules:
    """The rules for a data set; raises ValueError where its vocabulary has special tokens only."""
    special_V = np.zeros(manifest.vocab_size, np.bool_)
    special_V[[*manifest.special.all, manifest.special.mask, *manifest.prefix, *manifest.suffix]] = True
    if special_V.all():
        raise ValueError(
            f"all {manifest.vocab_size} ids of the vocabulary are special tokens, so there is nothing to mask; "
            "prepare the data with another tokenizer"
        )
    num_framing = len(manifest.prefix) + len(manifest.suffix)
    return MaskingRules(config, num_framing, manifest.special.mask, special_V, np.flatnonzero(~special_V))


def maskable_lengths(split: Split, samples_S: NDArray[np.int64], rules: MaskingRules) -> NDArray[np.int64]:
    """Tokens of each sample that may be targets [S]."""
    if split.maskable is not None:
        return split.maskable[samples_S].astype(np.int64)
    return np.maximum(split.lengths[samples_S].astype(np.int64) - rules.num_framing, 0)


def num_targets(maskable_S: NDArray[np.int64], config: MaskingConfig) -> NDArray[np.int64]:
    """Targets of sequences with `maskable_S` maskable tokens [S]: rate * n rounded half to even, at least one of any.

    Only a sequence without a maskable token has none.
    """
    rounded = np.rint(config.rate * maskable_S).astype(np.int64)
    targets_S: NDArray[np.int64] = np.minimum(np.maximum(rounded, 1), maskable_S)
    return targets_S


def mask(
    ids_T: NDArray[np.int64],
    lengths_S: NDArray[np.int64],
    samples_S: NDArray[np.int64],
    maskable_S: NDArray[np.int64],
    key: int,
    rules: MaskingRules,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Choose targets in packed sequences: input ids [T], target positions [M] (ascending), target ids [M].

    The targets of a sequence are its eligible positions with the smallest hashes of (key, sample, position). Eligible
    is what is no special token, even where the text spelled one out. An unknown token in the text is a target like any
    other, unless the data set counts its id as special. A second hash decides what the model reads in a target's
    place: the mask token, a random ordinary token, or the token itself.

    Under one key the hashes of all positions of all samples differ, so no two samples share a stream; `key` should
    follow from the seed and the epoch.

    Raises ValueError where the arrays do not fit together, or a sequence has fewer or more eligible tokens than
    `maskable_S` says.
    """
    num_sequences = len(lengths_S)
    if len(ids_T) != lengths_S.sum() or ids_T.max(initial=0) >= len(rules.special_V):
        raise ValueError(
            "the data set holds ids beyond its vocabulary, or other lengths than its ids have: its files are damaged; "
            "run `oarlock prepare` again"
        )
    eligible_E = np.flatnonzero(~rules.special_V[ids_T])
    sequence_E = np.repeat(np.arange(num_sequences), lengths_S)[eligible_E]
    if not np.array_equal(np.bincount(sequence_E, minlength=num_sequences), maskable_S):
        raise ValueError(
            "the data set says of some sequence that it has another number of maskable tokens than it has: its files "
            "do not fit together; run `oarlock prepare` again"
        )
    starts_S = np.cumsum(lengths_S) - lengths_S
    counters_E = ((samples_S << POSITION_BITS) - starts_S)[sequence_E] + eligible_E
    by_hash_E = np.lexsort((hash_counters(key, counters_E), sequence_E))
    rank_E = np.arange(len(eligible_E)) - (np.cumsum(maskable_S) - maskable_S)[sequence_E]
    chosen = np.sort(by_hash_E[rank_E < num_targets(maskable_S, rules.config)[sequence_E]])

    targets_M = eligible_E[chosen]
    true_ids_M = ids_T[targets_M]
    input_ids_T = ids_T.copy()
    input_ids_T[targets_M] = _inputs(true_ids_M, counters_E[chosen], key, rules)
    return input_ids_T, targets_M, true_ids_M


def _inputs(
    true_ids_M: NDArray[np.int64], counters_M: NDArray[np.int64], key: int, rules: MaskingRules
) -> NDArray[np.int64]:
    """What the model reads in place of the targets [M]."""
    kinds_M = hash_counters(hash_values(key, Purpose.TARGET_KIND), counters_M)
    draws_M = below(hash_counters(hash_values(key, Purpose.REPLACEMENT), counters_M), len(rules.ordinary_ids))
    masked_M = chance(kinds_M, rules.config.mask_share)
    changed_M = chance(kinds_M, rules.config.mask_share + rules.config.random_share)
    return np.where(masked_M, rules.mask_id, np.where(changed_M, rules.ordinary_ids[draws_M], true_ids_M))
