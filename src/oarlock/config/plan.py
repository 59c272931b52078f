"""How the work of a run is laid over processes."""

import math
from itertools import accumulate
from typing import Literal

from pydantic import Field, model_validator

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
    sequence_parallel: bool = False
    """Between layers each of these has its share of the tokens only: less memory, and as many bytes sent."""
    pipe: int = Field(default=1, ge=1)
    """Stages of a pipeline: processes that have some of the layers each, and hand micro-batches on."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero-bubble"] = "1f1b"
    """In which order a stage works: gpipe keeps all micro-batches until the last has come through, 1f1b as many as
    there are stages; interleaved gives each process several runs of layers; zero-bubble puts the gradients of weights
    off until there is nothing else to do."""
    runs: int | None = Field(default=None, ge=1)
    """Runs of layers that each process of an interleaved pipeline has; by default 2."""
    layers: tuple[int, ...] = ()
    """How many layers each run of a pipeline has, from the first; by default as equal as can be, with fewer at the
    ends, where the embeddings and the output are."""
    microbatches: int | None = Field(default=None, ge=1)
    """At least so many micro-batches a step; by default four a stage of the pipeline, and one without."""
    recompute: bool = False
    """Keep only the input of each layer for the backward pass, and compute the layer again there: a third more
    arithmetic, and memory for the activations of one layer instead of all."""
    patience: int = Field(default=600, ge=1)
    """Seconds without a step after which one of several processes ends, and tells where it hung."""

    @model_validator(mode="after")
    def _fits_together(self) -> "Plan":
        if self.runs not in (None, 1) and self.schedule != "interleaved":
            raise ValueError(f"runs {self.runs} needs schedule interleaved, not {self.schedule}")
        if self.sequence_parallel and self.tensor == 1:
            raise ValueError("sequence_parallel shares out what several tensor processes hold alike; set tensor too")
        if self.layers and len(self.layers) != self.num_runs:
            raise ValueError(f"layers names {len(self.layers)} runs of layers, but the pipeline has {self.num_runs}")
        if any(number < 1 for number in self.layers):
            raise ValueError(f"layers {self.layers}: each run needs at least one")
        return self

    @property
    def runs_each(self) -> int:
        """Runs of layers that each process has."""
        return (self.runs or 2) if self.schedule == "interleaved" and self.pipe > 1 else 1

    @property
    def num_runs(self) -> int:
        """Runs of layers that the pipeline has in all."""
        return self.pipe * self.runs_each

    @property
    def num_microbatches(self) -> int:
        """The least number of micro-batches of a step."""
        return self.microbatches or (4 * self.pipe if self.pipe > 1 else 1)

    def spans(self, num_layers: int) -> list[range]:
        """Which of the model's layers each run has.

        Raises ValueError where they are too few, or `layers` counts others.
        """
        counts = list(self.layers) or _even(num_layers, self.num_runs)
        if min(counts) < 1 or sum(counts) != num_layers:
            has = f"layers {self.layers}" if self.layers else f"pipe {self.pipe} has {self.num_runs} runs of layers"
            raise ValueError(f"plan.{has}, which does not fit the {num_layers} layers of the model")
        ends = list(accumulate(counts))
        return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]

    def resolved(self, world_size: int) -> "Plan":
        """The plan with its number of replicas, for so many processes.

        Raises ValueError where it does not fit them.
        """
        factors = {"replicate": self.replicate, "shard": self.shard, "tensor": self.tensor, "pipe": self.pipe}
        named = {name: size for name, size in factors.items() if size and (size > 1 or name == "replicate")}
        replicate, left = divmod(world_size, self.shard * self.tensor * self.pipe)
        if left or self.replicate not in (None, replicate):
            product = math.prod(named.values())
            number = f"{'' if self.replicate else 'a multiple of '}{product}"
            raise ValueError(
                f"plan: {' x '.join(f'{name} {size}' for name, size in named.items())} needs {number} "
                f"process{'es' if product > 1 else ''}, but {world_size} run; change the plan, or how many run "
                "(oarlock launch --nproc)"
            )
        return self.model_copy(update={"replicate": replicate})


def _even(total: int, parts: int) -> list[int]:
    """Counts that differ by one at most, the larger ones in the middle."""
    least, left = divmod(total, parts)
    first = (parts - left + 1) // 2
    return [least + (first <= number < first + left) for number in range(parts)]
