"""The figures of `oarlock bench train`."""

import time

import pytest
import torch

from oarlock.ops import attention
from oarlock.recipes import recipe
from oarlock.step.measure import OTHER, REST, batch_flops_per_token, measure_training, time_shares, wikipedia_batch

CPU = torch.device("cpu")
MODEL = recipe("bert-tiny", data="", out="", steps=1).model.model_copy(
    update={"vocab_size": 100, "num_layers": 1, "hidden_size": 32, "intermediate_size": 64}
)


def test_the_figures_agree_with_each_other() -> None:
    told = []
    figures = measure_training(
        MODEL, num_sequences=2, repeats=3, on_progress=lambda done, total: told.append((done, total))
    )
    batch = wikipedia_batch(MODEL, 2, seed=0)
    assert figures["useful_tokens"] == batch.num_tokens
    assert len(figures["step_seconds"]) == 3
    assert figures["useful_tokens_per_second"] == pytest.approx(batch.num_tokens / sorted(figures["step_seconds"])[1])
    assert figures["sequences_per_second"] * batch.num_tokens == pytest.approx(2 * figures["useful_tokens_per_second"])
    flops = figures["useful_tokens_per_second"] * batch_flops_per_token(MODEL, batch)
    assert figures["flops_per_second"] == pytest.approx(flops)
    assert figures["gemm_share"] == pytest.approx(flops / figures["gemm_rate"])
    assert told == [(done, 5) for done in range(1, 6)]


def test_a_step_is_broken_down_by_operator() -> None:
    shares = measure_training(MODEL, num_sequences=2, repeats=1)["shares"]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) >= 0
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert {"attention_forward", "attention_backward", "optimizer", OTHER, REST} <= shares.keys()


def test_what_an_operator_calls_is_counted_with_it() -> None:
    qkv = torch.randn(40, 3, 2, 8)
    bounds = torch.tensor([0, 40], dtype=torch.int32)
    shares = time_shares(lambda: attention(qkv, bounds, 40), CPU)
    assert shares.keys() <= {"attention_forward", OTHER, REST}
    assert shares["attention_forward"] > 0


def test_the_parts_are_what_they_are_called() -> None:
    matrix = torch.randn(256, 256)
    assert "matrix products" in time_shares(lambda: matrix @ matrix, CPU)
    waiting = time_shares(lambda: time.sleep(0.05) or matrix.exp(), CPU)
    assert next(iter(waiting)) == REST
    assert OTHER in waiting
    assert "matrix products" not in waiting


@pytest.mark.parametrize("wrong", ({"num_sequences": 0}, {"repeats": 0}))
def test_nothing_to_measure_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="give at least 1 of each"):
        measure_training(MODEL, **wrong)
