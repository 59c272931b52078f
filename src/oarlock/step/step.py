"""One optimisation step, and one evaluation."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from oarlock import parallel
from oarlock.batches import Batch, GlobalBatch
from oarlock.config import OptimizerConfig, Plan
from oarlock.model import MaskedLM
from oarlock.parallel import Groups, Layout, Pipeline
from oarlock.step.optimizers import build_optimizer, limit_gradients, set_learning_rate


@dataclass(frozen=True)
class Learner:
    """A model in training: what computes, the fp32 weights behind it and where they lie, and what updates them."""

    model: MaskedLM
    layout: Layout
    pipeline: Pipeline
    optimizers: list[torch.optim.Optimizer]
    clip_norm: float | None

    @property
    def masters(self) -> dict[str, nn.Parameter]:
        """What the optimizers act on, by name."""
        return self.layout.masters


ALONE = Plan(replicate=1)


class StepResult(NamedTuple):
    """Device tensors, 0-d: nothing here has been read by the host."""

    loss: Tensor
    """Mean cross entropy over the targets of the global batch, in nats."""
    grad_norm: Tensor
    """Global norm of the gradient before clipping."""


class Evaluation(NamedTuple):
    """Sums over the whole set: equal for any batch size."""

    loss: Tensor
    """Mean cross entropy over the targets, in nats, 0-d."""
    accuracy: Tensor
    """Share of the targets whose likeliest id is right, 0-d."""


def build_learner(
    model: MaskedLM, config: OptimizerConfig, precision: str, plan: Plan | None = None, groups: Groups | None = None
) -> Learner:
    """A model, on its device and in fp32, made ready to train; `precision` is `bf16` or `fp32`.

    With a resolved plan and its groups this process trains its part of it; all of them must build theirs.
    """
    layout, pipeline = parallel.apply(plan or ALONE, groups or Groups.alone(), model.train(), precision)
    return Learner(model, layout, pipeline, build_optimizer(layout.masters.items(), config, layout), config.clip_norm)


def train_step(learner: Learner, batch: GlobalBatch, learning_rate_share: float) -> StepResult:
    """Forward and backward over the micro-batches, clip, update.

    Every micro-batch's loss is divided by the targets of the whole global batch, so the gradients simply add up: any
    split gives the same step. A global batch without targets leaves weights and optimizer as they were, and so does one
    whose gradient is not finite (`limit_gradients` tells what each optimizer does then).

    Args:
        learner: what is trained.
        batch: one rank's micro-batches of a global batch.
        learning_rate_share: share of the peak learning rates, from the schedule.
    """
    layout = learner.layout
    if batch.num_targets == 0:
        zero = torch.zeros((), device=next(iter(learner.masters.values())).device)
        return StepResult(zero, zero)
    with layout.awake():
        loss = learner.pipeline.train(batch.microbatches, layout)
    layout.finish_gradients()
    grad_norm = limit_gradients(learner.optimizers, learner.clip_norm, layout)
    set_learning_rate(learner.optimizers, learning_rate_share)
    for optimizer in learner.optimizers:
        optimizer.step()
    layout.write_copies()
    return StepResult(layout.total(loss), grad_norm)


@torch.no_grad()
def evaluate(model: MaskedLM, batches: Sequence[Batch], learner: Learner | None = None) -> Evaluation:
    """Loss and accuracy over all targets of `batches`, without dropout.

    Where a `learner` has the model, each of its processes brings batches of its own, as many as the others, and all get
    the same result.
    """
    pipeline = learner.pipeline if learner else Pipeline(model, ALONE, Groups.alone(), "fp32")
    was_training = model.training
    model.eval()
    with learner.layout.awake() if learner else nullcontext():
        loss, hits = pipeline.evaluate(batches)
    model.train(was_training)
    if learner:
        loss, hits = learner.layout.total(torch.stack((loss, hits))).unbind()
    num_targets = max([1, *(batch.num_targets for batch in batches)])
    return Evaluation(loss / num_targets, hits / num_targets)
