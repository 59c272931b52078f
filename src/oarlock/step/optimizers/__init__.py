"""Optimizers: which parameter gets which update, and the updates that torch does not have."""

from oarlock.step.optimizers.build import build_optimizer, set_learning_rate
from oarlock.step.optimizers.clip import limit_gradients
from oarlock.step.optimizers.lamb import Lamb
from oarlock.step.optimizers.stable_adamw import StableAdamW

__all__ = ["Lamb", "StableAdamW", "build_optimizer", "limit_gradients", "set_learning_rate"]
