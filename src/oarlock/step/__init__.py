"""One optimisation step: forward, backward, clip, update."""

from oarlock.step.device import choose_device
from oarlock.step.optimizers import build_optimizer, limit_gradients, set_learning_rate
from oarlock.step.schedule import learning_rate_share, num_warmup_steps
from oarlock.step.step import Evaluation, Learner, StepResult, build_learner, evaluate, train_step

__all__ = [
    "Evaluation",
    "Learner",
    "StepResult",
    "build_learner",
    "build_optimizer",
    "choose_device",
    "evaluate",
    "learning_rate_share",
    "limit_gradients",
    "num_warmup_steps",
    "set_learning_rate",
    "train_step",
]
