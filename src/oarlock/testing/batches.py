"""Comparing batches."""

from dataclasses import fields

import torch

from oarlock.batches import Batch, GlobalBatch


def equal_batches(a: Batch, b: Batch) -> bool:
    """Whether two batches are equal in every field, dtypes included."""
    pairs = [(getattr(a, field.name), getattr(b, field.name)) for field in fields(Batch)]
    return all(
        x.dtype == y.dtype and torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y and type(x) is type(y)
        for x, y in pairs
    )


def equal_global_batches(a: GlobalBatch, b: GlobalBatch) -> bool:
    """Whether two global batches are equal in every field."""
    rest = [field.name for field in fields(GlobalBatch) if field.name != "microbatches"]
    return (
        all(getattr(a, name) == getattr(b, name) for name in rest)
        and len(a.microbatches) == len(b.microbatches)
        and all(map(equal_batches, a.microbatches, b.microbatches))
    )
