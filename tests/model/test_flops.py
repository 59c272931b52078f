"""The count of a token's arithmetic, against torch's counter on `transformers`' models and against pairs counted one
by one."""

from typing import Any

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from oarlock.config import ModelConfig
from oarlock.model import flops_per_token

SHAPE = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
POST_NORM = {**SHAPE, "intermediate_size": 160}
PEERS: dict[str, tuple[Any, Any]] = {
    "bert": (transformers.BertForMaskedLM, transformers.BertConfig(**POST_NORM)),
    "roberta": (transformers.RobertaForMaskedLM, transformers.RobertaConfig(**POST_NORM, pad_token_id=1)),
    "modernbert": (
        transformers.ModernBertForMaskedLM,
        transformers.ModernBertConfig(**SHAPE, intermediate_size=160, pad_token_id=0),
    ),
}


def ours(kind: Any, **fields: Any) -> ModelConfig:
    shape = {"vocab_size": 256, "hidden_size": 64, "num_layers": 3, "num_heads": 4, "intermediate_size": 160}
    return ModelConfig(kind=kind, **{**shape, **fields})


@pytest.mark.parametrize("length", (16, 120))
@pytest.mark.parametrize("kind", PEERS)
def test_equal_to_what_torch_counts_in_transformers(kind: str, length: int) -> None:
    """One sequence, every token a target, all within the local window: what `transformers` computes then is needed."""
    peer, config = PEERS[kind]
    model = peer._from_config(config, attn_implementation="eager")
    ids = torch.randint(5, 256, (1, length))
    with FlopCounterMode(display=False) as counter:
        model(ids, labels=ids).loss.backward()
    flops = flops_per_token(ours(kind), length, length**2, target_share=1.0) * length
    assert flops == pytest.approx(counter.get_total_flops(), rel=1e-3)  # theirs has the angles of rotary positions


def test_attention_costs_every_pair_of_tokens_of_a_sequence() -> None:
    lengths = (5, 40, 100)
    pairs = sum(1 for n in lengths for _ in range(n) for _ in range(n))
    num_tokens = sum(lengths)
    config = ours("bert")
    mean, mean_square = num_tokens / 3, sum(n * n for n in lengths) / 3
    attention = flops_per_token(config, mean, mean_square, 0.15) - flops_per_token(config, mean, 0.0, 0.15)
    # A pair costs two dot products of hidden_size in each layer; each product is read once forward, twice backward.
    assert attention * num_tokens == pytest.approx(pairs * 2 * (2 * 64) * 3 * 3)


def test_local_attention_costs_the_pairs_inside_its_window() -> None:
    length, half = 1000, 8
    pairs = sum(1 for query in range(length) for key in range(length) if abs(query - key) <= half)
    config = ours("modernbert", num_layers=4, global_every=3, local_window=2 * half)
    none = flops_per_token(config, length, 0.0, 0.15)
    attention = flops_per_token(config, length, length**2, 0.15) - none
    expected = (2 * length**2 + 2 * pairs) * 2 * (2 * 64) * 3  # layers 0 and 3 are global
    assert attention * length == pytest.approx(expected, rel=1e-3)  # the first and last tokens see a little less


def test_the_output_matrix_costs_only_where_there_are_targets() -> None:
    few, all_ = (flops_per_token(ours("bert"), 100, 10**4, share) for share in (0.15, 1.0))
    assert all_ - few == pytest.approx(0.85 * 6 * (64 * 64 + 64 * 256))
