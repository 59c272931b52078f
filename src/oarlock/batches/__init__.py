"""From a data set to packed, masked, balanced batches: a global batch is a pure function of (data set, seed, step)."""

from oarlock.batches.balance import assign, quadratic_length
from oarlock.batches.batch import Batch, GlobalBatch
from oarlock.batches.global_batches import GlobalBatches, evaluation_batches
from oarlock.batches.loader import training_batches
from oarlock.batches.pack import pack

__all__ = [
    "Batch",
    "GlobalBatch",
    "GlobalBatches",
    "assign",
    "evaluation_batches",
    "pack",
    "quadratic_length",
    "training_batches",
]
