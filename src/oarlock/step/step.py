"""One optimisation step, and one evaluation."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from oarlock.batches import Batch, GlobalBatch
from oarlock.config import OptimizerConfig
from oarlock.model import MaskedLM
from oarlock.step.optimizers import build_optimizer, limit_gradients, set_learning_rate
from oarlock.step.precision import master_weights, write_copies


@dataclass(frozen=True)
class Learner:
    """A model in training: what computes, the fp32 weights behind it, and what updates them."""

    model: MaskedLM
    masters: dict[str, nn.Parameter]
    optimizers: list[torch.optim.Optimizer]
    clip_norm: float | None


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


def build_learner(model: MaskedLM, config: OptimizerConfig, precision: str) -> Learner:
    """A model, on its device and in fp32, made ready to train; `precision` is `bf16` or `fp32`."""
    masters = master_weights(model, precision)
    return Learner(model.train(), masters, build_optimizer(masters.items(), config), config.clip_norm)


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
    device = learner.model.output_weight.device
    loss = torch.zeros((), device=device)
    if batch.num_targets == 0:
        return StepResult(loss, torch.zeros((), device=device))
    for microbatch in batch.microbatches:
        if microbatch.num_tokens:
            partial_loss = learner.model(microbatch)
            partial_loss.backward()
            loss += partial_loss.detach()
    grad_norm = limit_gradients(learner.optimizers, learner.clip_norm)
    set_learning_rate(learner.optimizers, learning_rate_share)
    for optimizer in learner.optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    learner.model.zero_grad(set_to_none=True)
    write_copies(learner.model, learner.masters.values())
    return StepResult(loss, grad_norm)


@torch.no_grad()
def evaluate(model: MaskedLM, batches: Iterable[Batch]) -> Evaluation:
    """Loss and accuracy over all targets of `batches`, without dropout."""
    device = model.output_weight.device
    loss, hits, num_targets = torch.zeros((), device=device), torch.zeros((), device=device), 0
    was_training = model.training
    model.eval()
    for batch in batches:
        batch_loss, batch_hits = model.loss_and_hits(batch.to(device))
        loss += batch_loss
        hits += batch_hits
        num_targets += batch.target_ids_M.numel()
    model.train(was_training)
    return Evaluation(loss / max(1, num_targets), hits / max(1, num_targets))
