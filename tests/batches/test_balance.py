"""Balanced assignment."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.batches import assign, quadratic_length
from oarlock.batches.balance import BERT_BASE_QUADRATIC
from oarlock.batches.lengths import wikipedia_lengths
from oarlock.config import ModelConfig


def tokens(lengths, ranks):
    return np.array([[lengths[cell].sum() for cell in rank] for rank in ranks])


@pytest.mark.parametrize("quadratic", [1024, BERT_BASE_QUADRATIC, 2**31])
@pytest.mark.parametrize("seed", range(5))
def test_wikipedia_lengths_balance_within_half_a_percent(seed, quadratic):
    lengths = wikipedia_lengths(8 * 56, seed)
    cells = tokens(lengths, assign(lengths, 8, 2**20, quadratic))
    assert cells.shape == (8, 1)
    assert cells.max() / cells.mean() <= 1.005
    cells = tokens(lengths, assign(lengths, 8, 8192, quadratic))
    assert cells.sum(1).max() / cells.sum(1).mean() <= 1.005
    assert cells.max() / cells.mean() <= 1.005


def test_cost_counts_attention():
    # By tokens the long sequence would get half of the short ones' company; its attention alone weighs as much.
    lengths = np.array([100] + [10] * 30)
    few = assign(lengths, 2, 10_000, quadratic=100)[0][0]
    many = assign(lengths, 2, 10_000, quadratic=10**9)[0][0]
    assert len(few) < len(many)
    cost = [(lengths[cell] * (1 + lengths[cell] / 100)).sum() for (cell,) in assign(lengths, 2, 10_000, 100)]
    assert max(cost) / np.mean(cost) < 1.02


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 64), max_size=60), st.integers(1, 9), st.integers(64, 300), st.integers(1, 10**6))
def test_every_sequence_once_no_cell_above_the_bound_as_many_for_each_rank(lengths, num_ranks, bound, quadratic):
    sizes = np.array(lengths, np.uint16)
    ranks = assign(sizes, num_ranks, bound, quadratic)
    assert len(ranks) == num_ranks
    assert len({len(rank) for rank in ranks}) == 1
    assert len(ranks[0]) >= 1
    assert sorted(np.concatenate([cell for rank in ranks for cell in rank]).tolist()) == list(range(len(lengths)))
    assert tokens(sizes, ranks).max() <= bound
    assert all((np.diff(sizes[cell].astype(int)) <= 0).all() for rank in ranks for cell in rank)


@pytest.mark.parametrize("bound", [512, 600, 2048])
def test_few_more_cells_than_tokens_need(bound):
    lengths = wikipedia_lengths(4000, seed=2)
    needed = lengths.sum() / bound
    assert len(assign(lengths, 1, bound, BERT_BASE_QUADRATIC)[0]) <= 1.1 * needed + 1


def test_fewer_sequences_than_ranks_leaves_empty_cells():
    ranks = assign(np.array([7, 5]), 4, 100, 1000)
    assert [[cell.tolist() for cell in rank] for rank in ranks] == [[[0]], [[1]], [[]], [[]]]
    assert [[cell.tolist() for cell in rank] for rank in assign(np.zeros(0, np.int64), 2, 100, 1000)] == [[[]], [[]]]


def test_a_sequence_above_the_bound_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match="511 cannot hold a sequence of 512"):
        assign(np.array([3, 512]), 2, 511, 1000)


def test_quadratic_length_of_a_model():
    base = ModelConfig(hidden_size=768, num_heads=12, intermediate_size=3072)
    assert quadratic_length(base) == BERT_BASE_QUADRATIC
    # ModernBERT-base: width 768, GeGLU of 1152, every third layer global
    assert quadratic_length(ModelConfig(kind="modernbert", hidden_size=768, num_heads=12, intermediate_size=1152)) == (
        (1536 + 1728) * 3
    )
