"""The batch as a value."""

import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch

from oarlock.batches import GlobalBatch, pack
from oarlock.testing.batches import equal_batches, equal_global_batches


def test_pickled_by_value_without_shared_memory():
    batch = pack([[2, 9, 8, 3], [2, 3]], targets=[[1, 2], []], dropout_key=2**64 - 1)
    whole = GlobalBatch(1, 0, (batch, pack([])), 2, 6, 2, 1.0)
    shared = set(Path("/proc/self/fd").iterdir())
    copy = pickle.loads(ForkingPickler.dumps(whole))  # noqa: S301 (its own bytes)
    assert equal_global_batches(copy, whole)
    assert set(Path("/proc/self/fd").iterdir()) == shared
    assert not copy.microbatches[0].ids_T.is_shared()
    copy.microbatches[0].ids_T[0] = 1
    assert batch.ids_T[0] == 2


def test_equality_sees_a_difference():
    batch = pack([[2, 9, 8, 3]], targets=[[1, 2]])
    assert equal_batches(batch, pack([[2, 9, 8, 3]], targets=[[1, 2]]))
    assert not equal_batches(batch, pack([[2, 9, 8, 4]], targets=[[1, 2]]))
    assert not equal_batches(batch, pack([[2, 9, 8, 3]], targets=[[1, 2]], num_targets=3))


def test_sample_of_each_token():
    batch = pack([[2, 9, 3], [2, 3]], sample_ids=[7, 5])
    assert batch.token_samples().tolist() == [7, 7, 7, 5, 5]


def test_to_moves_every_tensor():
    moved = pack([[2, 9, 3]], targets=[[1]]).to(torch.device("meta"))
    assert moved.ids_T.is_meta
    assert moved.cu_seqlens_S1.is_meta
    assert moved.sequence_labels_S is None
