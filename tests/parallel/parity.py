"""One short training run under a plan: what every process of a test calls."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from oarlock.batches import Batch, GlobalBatch, evaluation_batches, training_batches
from oarlock.config import BatchConfig, MaskingConfig, ModelConfig, OptimizerConfig, Plan
from oarlock.model import build_model
from oarlock.parallel import Groups, connect, place
from oarlock.state import CheckpointWriter, resume, take_snapshot
from oarlock.step import Learner, build_learner, evaluate, train_step
from oarlock.testing.datasets import toy_dataset

STEPS = 20
CPU = torch.device("cpu")


MAX_TOKENS = 128
Weights = dict[str, tuple[int, NDArray[np.float32]]]
"""By name: where a process's part of the flattened parameter starts, and the part."""
Case = tuple[str, str, Plan]
"""Architecture, optimizer and plan."""


class Run(NamedTuple):
    """How it went."""

    losses: list[float]
    norms: list[float]
    evaluation: tuple[float, float]
    weights: Weights
    sent: dict[str, int]
    """Bytes by collective, in the steps."""
    num_microbatches: int
    """In all steps."""


class Setting(NamedTuple):
    """A small model and its batches as one process of a plan sees them."""

    learner: Learner
    groups: Groups
    batches: Callable[[int, int], Iterator[GlobalBatch]]
    """Of the steps from one number to another."""
    held_out: list[Batch]


def setting(kind: str, optimizer: str, plan: Plan, precision: str = "fp32") -> Setting:
    """A model with dropout, 21 sequences a step, several micro-batches."""
    dataset = toy_dataset(400)
    config = ModelConfig(
        kind=kind, vocab_size=dataset.manifest.vocab_size, hidden_size=32, num_layers=3, num_heads=2,
        intermediate_size=48, max_length=64, dropout=0.1, attention_dropout=0.1, pooler=kind == "bert",
    )  # fmt: skip
    plan = plan.resolved(place().world_size)
    groups = connect(plan, CPU)
    learner = build_learner(build_model(config, seed=3), OptimizerConfig(name=optimizer), precision, plan, groups)
    mine = {"rank": groups.data.rank, "world_size": groups.data.size}
    batch = BatchConfig(sequences=21, max_tokens_per_microbatch=MAX_TOKENS)

    def batches(first: int, last: int) -> Iterator[GlobalBatch]:
        return training_batches(dataset, batch, MaskingConfig(), seed=1, first_step=first, last_step=last, **mine)

    held_out = evaluation_batches(
        dataset, MaskingConfig(), seed=1, max_tokens_per_microbatch=MAX_TOKENS, max_sequences=None, **mine
    )
    return Setting(learner, groups, batches, held_out)


def weights_of(learner: Learner) -> Weights:
    """Copies of what this process holds."""
    starts = learner.layout.starts
    return {name: (starts.get(name, 0), w.detach().flatten().numpy().copy()) for name, w in learner.masters.items()}


def train(kind: str, optimizer: str, plan: Plan) -> Run:
    """20 steps and an evaluation."""
    learner, groups, batches, held_out = setting(kind, optimizer, plan)
    for group in groups:
        group.sent.clear()
    steps = list(batches(1, STEPS))
    results = [train_step(learner, step, 1.0) for step in steps]
    sent = dict(groups.replicate.sent + groups.shard.sent + groups.data.sent)
    loss, accuracy = evaluate(learner.model, held_out, learner.layout)
    losses, norms = ([one.item() for one in column] for column in zip(*results, strict=True))
    return Run(
        losses,
        norms,
        (loss.item(), accuracy.item()),
        weights_of(learner),
        sent,
        sum(len(step.microbatches) for step in steps),
    )


def go_on(folder: Path, plan: Plan, first: int, last: int) -> tuple[list[float], Weights]:
    """The steps from `first` to `last` of a run whose checkpoints are in `folder`, then another checkpoint.

    Returns the losses, and what this process holds of the first moments.
    """
    learner, groups, batches, _ = setting("bert", "adamw", plan)
    resume(folder, learner.masters.items(), learner.optimizers, learner.layout)
    learner.layout.write_copies()
    losses = [train_step(learner, step, 1.0).loss.item() for step in batches(first, last)]
    with CheckpointWriter(folder, 1, first=groups.data.rank == 0) as saver:
        groups.wait()
        snapshot = take_snapshot(
            last,
            learner.masters.items(),
            learner.optimizers,
            progress={},
            seed=0,
            config_digest="",
            layout=learner.layout,
        )
        if learner.layout.part.kept:
            saver.save(snapshot)
    starts = learner.layout.starts
    moments = {n: (starts.get(n, 0), of["exp_avg"].flatten().numpy()) for n, of in snapshot.optimizer.items()}
    return losses, moments


def train_all(cases: list[Case]) -> list[Run]:
    """One after the other, in the same processes."""
    return [train(*case) for case in cases]


def whole(by_rank: list[Weights]) -> dict[str, NDArray[np.float32]]:
    """Flattened parameters, from what each process holds of them."""
    parts: dict[str, dict[int, NDArray[np.float32]]] = {}
    for weights in by_rank:
        for name, (start, part) in weights.items():
            parts.setdefault(name, {})[start] = part
    return {name: np.concatenate([of[start] for start in sorted(of)]) for name, of in sorted(parts.items())}
