"""A plan laid on a model. Knows modules and declared layouts, never our models."""

from collections.abc import Sequence

from torch import nn

from oarlock.config import Plan
from oarlock.parallel.groups import Groups, Place, connect, disconnect, place
from oarlock.parallel.layout import DTYPES, Block, Cut, Layout, Part
from oarlock.parallel.local import Local
from oarlock.parallel.recompute import recompute
from oarlock.parallel.sharded import Sharded

__all__ = [
    "DTYPES",
    "Block",
    "Cut",
    "Groups",
    "Layout",
    "Local",
    "Part",
    "Place",
    "Sharded",
    "apply",
    "connect",
    "disconnect",
    "place",
]


def apply(plan: Plan, groups: Groups, model: nn.Module, layers: Sequence[nn.Module], precision: str) -> Layout:
    """Lay a resolved plan on a model, which is on its device and in fp32; `precision` is `bf16` or `fp32`.

    `layers` are the model's repeated parts, in the order of the forward pass.
    """
    if plan.recompute:
        recompute(layers)
    if groups.world.size == 1:
        return Local(model, precision)
    return Sharded(model, layers, plan, groups, precision)
