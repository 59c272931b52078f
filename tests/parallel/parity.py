"""One short training run under a plan: what every process of a test calls."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from oarlock.batches import evaluation_batches, training_batches
from oarlock.config import BatchConfig, MaskingConfig, ModelConfig, OptimizerConfig, Plan
from oarlock.model import build_model
from oarlock.parallel import connect, place
from oarlock.step import build_learner, evaluate, train_step
from oarlock.testing.datasets import toy_dataset

STEPS = 20
CPU = torch.device("cpu")


class Run(NamedTuple):
    """How it went."""

    losses: list[float]
    norms: list[float]
    evaluation: tuple[float, float]
    weights: dict[str, tuple[int, NDArray[np.float32]]]
    """By name: where this process's part of the flattened parameter starts, and the part."""
    sent: dict[str, int]
    """Bytes by collective, in the steps."""


def train(
    kind: str, optimizer: str, plan: Plan, precision: str = "fp32", sequences: int = 21, max_tokens: int = 128
) -> Run:
    """20 steps of a small model with dropout and several micro-batches a step, whose number of sequences is odd."""
    dataset = toy_dataset(400)
    config = ModelConfig(
        kind=kind, vocab_size=dataset.manifest.vocab_size, hidden_size=32, num_layers=3, num_heads=2,
        intermediate_size=48, max_length=64, dropout=0.1, attention_dropout=0.1, pooler=kind == "bert",
    )  # fmt: skip
    plan = plan.resolved(place().world_size)
    groups = connect(plan, CPU)
    batch = BatchConfig(sequences=sequences, max_tokens_per_microbatch=max_tokens)
    mine = {"rank": groups.data.rank, "world_size": groups.data.size}
    learner = build_learner(build_model(config, seed=3), OptimizerConfig(name=optimizer), precision, plan, groups)
    batches = training_batches(dataset, batch, MaskingConfig(), seed=1, first_step=1, last_step=STEPS, **mine)
    for group in groups:
        group.sent.clear()
    results = [train_step(learner, step, 1.0) for step in batches]
    sent = groups.replicate.sent + groups.shard.sent + groups.data.sent
    held_out = evaluation_batches(
        dataset, MaskingConfig(), seed=1, max_tokens_per_microbatch=max_tokens, max_sequences=None, **mine
    )
    loss, accuracy = evaluate(learner.model, held_out, learner.layout)
    return Run(
        [result.loss.item() for result in results],
        [result.grad_norm.item() for result in results],
        (loss.item(), accuracy.item()),
        {n: (learner.layout.starts.get(n, 0), w.detach().flatten().numpy().copy()) for n, w in learner.masters.items()},
        dict(sent),
    )


def train_all(cases: list[tuple[str, str, Plan]]) -> list[Run]:
    """One after the other, in the same processes."""
    return [train(*case) for case in cases]
