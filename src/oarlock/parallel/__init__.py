"""A plan laid on a model. Knows modules and declared layouts, never our models."""

from oarlock.config import Plan
from oarlock.parallel.groups import Groups, Place, connect, disconnect, place
from oarlock.parallel.layout import DTYPES, Block, Cut, Layout, Part
from oarlock.parallel.local import Local
from oarlock.parallel.pipeline import Pipeline, Staged
from oarlock.parallel.recompute import recompute
from oarlock.parallel.sharded import Sharded
from oarlock.parallel.tensor import Tokens
from oarlock.parallel.vocabulary import Vocabulary

__all__ = [
    "DTYPES",
    "Block",
    "Cut",
    "Groups",
    "Layout",
    "Local",
    "Part",
    "Pipeline",
    "Place",
    "Sharded",
    "Staged",
    "Tokens",
    "Vocabulary",
    "apply",
    "connect",
    "disconnect",
    "place",
]


def apply(plan: Plan, groups: Groups, model: Staged, precision: str) -> tuple[Layout, Pipeline]:
    """Lay a resolved plan on a model, which is on its device and in fp32; `precision` is `bf16` or `fp32`."""
    if plan.recompute:
        recompute(model.layers)
    layout = Local(model, precision) if groups.world.size == 1 else Sharded(model, plan, groups, precision)
    return layout, Pipeline(model, plan, groups, precision)
