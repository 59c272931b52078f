"""Packing."""

import numpy as np
import pytest
import torch

from oarlock.batches import pack
from oarlock.batches.masking import masking_rules
from oarlock.batches.pack import FILLER, add_filler, pack_samples
from oarlock.config import MaskingConfig
from oarlock.testing.batches import equal_batches
from oarlock.testing.datasets import toy_dataset


def test_explicit_sequences():
    batch = pack([[2, 9, 8, 3], [2, 3], [2, 7, 3]], targets=[[1, 2], [], [1]], dropout_key=5)
    assert batch.ids_T.tolist() == [2, 9, 8, 3, 2, 3, 2, 7, 3]
    assert batch.positions_T.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2]
    assert batch.segments_T.tolist() == [0] * 9
    assert batch.cu_seqlens_S1.tolist() == [0, 4, 6, 9]
    assert batch.max_seqlen == 4
    assert batch.target_positions_M.tolist() == [1, 2, 7]
    assert batch.target_ids_M.tolist() == [9, 8, 7]
    assert batch.num_targets == 3
    assert batch.sequence_labels_S is None
    assert batch.sample_ids_S.tolist() == [0, 1, 2]
    assert batch.dropout_key.tolist() == [5]


def test_types_are_those_of_the_contract():
    batch = pack([np.array([2, 9, 3], np.uint16)])
    assert batch.cu_seqlens_S1.dtype == torch.int32
    int64 = (batch.ids_T, batch.positions_T, batch.segments_T, batch.target_positions_M, batch.target_ids_M)
    assert {tensor.dtype for tensor in (*int64, batch.sample_ids_S)} == {torch.int64}
    assert type(batch.max_seqlen) is int
    assert type(batch.num_targets) is int


def test_given_target_ids_denominator_and_sample_ids():
    batch = pack(
        [torch.tensor([2, 4, 3]), [2, 4, 3]],
        targets=[[1], [1]],
        target_ids=[[7], [8]],
        num_targets=11,
        sample_ids=[40, 30],
    )
    assert batch.ids_T.tolist() == [2, 4, 3, 2, 4, 3]
    assert batch.target_ids_M.tolist() == [7, 8]
    assert batch.num_targets == 11
    assert batch.sample_ids_S.tolist() == [40, 30]


@pytest.mark.parametrize("sequences", [[], [[]]])
def test_empty(sequences):
    batch = pack(sequences)
    assert batch.num_tokens == batch.max_seqlen == batch.num_targets == 0
    assert batch.cu_seqlens_S1.tolist() == [0] * (len(sequences) + 1)
    assert batch.target_positions_M.dtype == torch.int64


def test_samples_are_packed_in_the_order_given():
    dataset = toy_dataset(20)
    split, rules = dataset.train, masking_rules(dataset.manifest, MaskingConfig())
    samples = np.array([7, 3, 19])
    batch = pack_samples(split, samples, rules, mask_key=1, num_targets=99, dropout_key=2)
    original = batch.ids_T.clone()
    original[batch.target_positions_M] = batch.target_ids_M
    assert original.tolist() == [i for s in samples for i in split.ids[split.offsets[s] : split.offsets[s + 1]]]
    assert batch.sample_ids_S.tolist() == samples.tolist()
    assert batch.cu_seqlens_S1.diff().tolist() == split.lengths[samples].tolist()
    assert (batch.target_positions_M.diff() > 0).all()
    assert (batch.num_targets, batch.dropout_key.tolist()) == (99, [2])
    empty = pack_samples(split, samples[:0], rules, mask_key=1, num_targets=99, dropout_key=2)
    assert (empty.num_tokens, empty.target_ids_M.numel(), empty.num_targets) == (0, 0, 99)


@pytest.mark.parametrize(
    ("num_tokens", "multiple"), [(0, 1), (5, 1), (63, 1), (64, 2), (1000, 16), (4097, 128), (9999, 128)]
)
def test_a_filler_makes_few_sizes(num_tokens: int, multiple: int):
    batch = pack([[2] * num_tokens], targets=[[0] if num_tokens else []], sample_ids=[3], dropout_key=5)
    filled = add_filler(batch)
    assert filled.num_tokens % multiple == 0
    assert 0 <= filled.num_tokens - num_tokens < multiple
    assert filled.num_tokens <= num_tokens * 33 / 32
    assert filled.cu_seqlens_S1[-1] == filled.num_tokens
    assert filled.max_seqlen == filled.cu_seqlens_S1.diff().max()
    assert equal_batches(add_filler(filled), filled)


def test_a_filler_changes_nothing_else():
    batch = pack([[2, 9, 8, 3] * 20, [2, 9, 3]], targets=[[1, 2], [0]], num_targets=7, sample_ids=[4, 6], dropout_key=5)
    filled = add_filler(batch)
    length = filled.num_tokens - batch.num_tokens
    assert length > 0
    assert filled.sample_ids_S.tolist() == [4, 6, FILLER]
    assert filled.cu_seqlens_S1.tolist() == [0, 80, 83, 83 + length]
    assert filled.ids_T.tolist() == batch.ids_T.tolist() + [0] * length
    assert filled.positions_T.tolist() == batch.positions_T.tolist() + [0] * length
    assert torch.equal(filled.target_positions_M, batch.target_positions_M)
    assert (filled.num_targets, filled.dropout_key.tolist()) == (7, [5])
