"""How the work of a run is laid over processes."""

import math
from typing import Literal

from pydantic import Field

from oarlock.config.base import Frozen


class Plan(Frozen):
    """How many processes share a run, and what each of them holds. What is learned does not depend on it."""

    replicate: int | None = Field(default=None, ge=1)
    """Groups that each hold the whole state and train on their own sequences; by default as many as the processes
    allow."""
    shard: int = Field(default=1, ge=1)
    """Processes of a group, which share its state out among them and train on their own sequences too."""
    shard_stage: Literal[0, 1, 2, 3] = 2
    """What a group shares out: 0 nothing, 1 the optimizer's state and the master weights, 2 gradients too, 3 weights
    too."""

    tensor: int = Field(default=1, ge=1)
    """Processes that each compute a part of every layer, for the same sequences."""
    recompute: bool = False
    """Keep only the input of each layer for the backward pass, and compute the layer again there: a third more
    arithmetic, and memory for the activations of one layer instead of all."""
    patience: int = Field(default=600, ge=1)
    """Seconds without a step after which one of several processes ends, and tells where it hung."""

    def resolved(self, world_size: int) -> "Plan":
        """The plan with its number of replicas, for so many processes.

        Raises ValueError where it does not fit them.
        """
        factors = {"replicate": self.replicate, "shard": self.shard, "tensor": self.tensor}
        named = {name: size for name, size in factors.items() if size and (size > 1 or name == "replicate")}
        replicate, left = divmod(world_size, self.shard * self.tensor)
        if left or self.replicate not in (None, replicate):
            product = math.prod(named.values())
            number = f"{'' if self.replicate else 'a multiple of '}{product}"
            raise ValueError(
                f"plan: {' x '.join(f'{name} {size}' for name, size in named.items())} needs {number} "
                f"process{'es' if product > 1 else ''}, but {world_size} run; change the plan, or how many run "
                "(oarlock launch --nproc)"
            )
        return self.model_copy(update={"replicate": replicate})
