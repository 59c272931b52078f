"""One short training run under a plan: what every process of a test calls."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oarlock.batches import Batch, GlobalBatch, evaluation_batches, training_batches
from oarlock.config import BatchConfig, MaskingConfig, ModelConfig, OptimizerConfig, Plan
from oarlock.model import build_model
from oarlock.parallel import Block, Groups, connect, place
from oarlock.state import CheckpointWriter, resume, take_snapshot
from oarlock.step import Learner, build_learner, evaluate, train_step
from oarlock.testing.datasets import toy_dataset

STEPS = 20
CPU = torch.device("cpu")


MAX_TOKENS = 128
ALL = Block(0, 1, 0, 1)
Weights = dict[str, tuple[tuple[int, tuple[int, ...], Block | None], NDArray[np.float32]]]
"""By name: which part of which block of the parameter a process holds, and that part."""
Case = tuple[str, str, Plan] | tuple[str, str, Plan, str] | tuple[str, str, Plan, str, int, int]
"""Architecture, optimizer, plan and, where they are not fp32, 400 and 21, precision, samples and sequences a step."""


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
    num_tokens: int
    """That this process computed with in all steps, fillers included."""
    num_targets: int
    """Among those."""


class Setting(NamedTuple):
    """A small model and its batches as one process of a plan sees them."""

    learner: Learner
    groups: Groups
    batches: Callable[[int, int], Iterator[GlobalBatch]]
    """Of the steps from one number to another."""
    held_out: list[Batch]


def setting(
    kind: str, optimizer: str, plan: Plan, precision: str = "fp32", samples: int = 400, sequences: int = 21
) -> Setting:
    """A model with dropout, by default 21 sequences a step and several micro-batches."""
    dataset = toy_dataset(samples)
    config = ModelConfig(
        kind=kind, vocab_size=dataset.manifest.vocab_size, hidden_size=32, num_layers=4, num_heads=2,
        intermediate_size=48, max_length=64, dropout=0.1, attention_dropout=0.1, pooler=kind == "bert",
    )  # fmt: skip
    plan = plan.resolved(place().world_size)
    groups = connect(plan, CPU)
    learner = build_learner(build_model(config, seed=3), OptimizerConfig(name=optimizer), precision, plan, groups)
    mine = groups.share_of_batches(plan)
    batch = BatchConfig(sequences=sequences, max_tokens_per_microbatch=MAX_TOKENS)

    def batches(first: int, last: int) -> Iterator[GlobalBatch]:
        return training_batches(dataset, batch, MaskingConfig(), seed=1, first_step=first, last_step=last, **mine)

    held_out = evaluation_batches(
        dataset, MaskingConfig(), seed=1, max_tokens_per_microbatch=MAX_TOKENS, max_sequences=None, **mine
    )
    return Setting(learner, groups, batches, held_out)


def held(learner: Learner, tensors: Mapping[str, Tensor]) -> Weights:
    """Copies of what this process holds of tensors of the parameters' shapes."""
    layout, found = learner.layout, {}
    for name in tensors.keys() - layout.copies:
        place = layout.starts.get(name, 0), tuple(layout.shapes[name]), layout.blocks.get(name)
        found[name] = place, tensors[name].flatten().numpy().copy()
    return found


def train(
    kind: str, optimizer: str, plan: Plan, precision: str = "fp32", samples: int = 400, sequences: int = 21
) -> Run:
    """20 steps and an evaluation."""
    learner, groups, batches, held_out = setting(kind, optimizer, plan, precision, samples, sequences)
    for group in groups:
        group.sent.clear()
    steps = list(batches(1, STEPS))
    results = [train_step(learner, step, 1.0) for step in steps]
    sent = dict(sum((group.sent for group in groups), Counter()))
    loss, accuracy = evaluate(learner.model, held_out, learner)
    losses, norms = ([one.item() for one in column] for column in zip(*results, strict=True))
    microbatches = [microbatch for step in steps for microbatch in step.microbatches]
    num_tokens = sum(microbatch.num_tokens for microbatch in microbatches)
    num_targets = sum(microbatch.target_ids_M.numel() for microbatch in microbatches)
    weights = held(learner, {name: master.detach() for name, master in learner.masters.items()})
    counts = len(microbatches), num_tokens, num_targets
    return Run(losses, norms, (loss.item(), accuracy.item()), weights, sent, *counts)


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
    return losses, held(learner, {name: of["exp_avg"] for name, of in snapshot.optimizer.items()})


def train_all(cases: list[Case]) -> list[Run]:
    """One after the other, in the same processes."""
    return [train(*case) for case in cases]


def whole(by_rank: list[Weights]) -> dict[str, NDArray[np.float32]]:
    """Flattened parameters, from what each process holds of them."""
    parts: dict[str, dict[Block, dict[int, NDArray[np.float32]]]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for weights in by_rank:
        for name, ((start, shapes[name], block), part) in weights.items():
            parts.setdefault(name, {}).setdefault(block or ALL, {})[start] = part
    found = {}
    for name, blocks in sorted(parts.items()):
        flat = [np.concatenate([of[start] for start in sorted(of)]) for _, of in sorted(blocks.items())]
        tensors = [torch.from_numpy(block).view(shapes[name]) for block in flat]
        found[name] = next(iter(blocks)).join(tensors).flatten().numpy() if shapes[name] else flat[0]
    return found
