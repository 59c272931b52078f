"""`run.json` and `samples.json`: what `oarlock train` leaves in a run folder for the report."""

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Known(BaseModel):
    """A frozen value that may lack fields and that lets pass those of other versions."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RunFacts(_Known):
    """`run.json`. Whatever is missing is left out of the report."""

    oarlock_version: str | None = None
    torch_version: str | None = None
    device: str | None = None
    gemm_rate: float | None = None
    """Measured matrix-multiply rate of the machine, FLOP/s."""
    flops_per_token: float | None = None
    """Of a training step, mean over the tokens."""
    num_parameters: int | None = None
    unigram_baseline: float | None = None
    """Loss in nats of a model that only knows token frequencies."""
    steps: int | None = None
    """Of the whole run."""
    status: Literal["running", "finished", "stopped"] | None = None
    """`running` also where the process was killed and could not say so."""
    operators: dict[str, str] = {}
    """Form that each operator got."""
    started: str | None = None
    """Date and time."""
    resumed_at: tuple[int, ...] = ()
    """Steps at which the run was resumed."""


class Guess(_Known):
    """One prediction for a masked token."""

    token: str
    probability: float = math.nan


class SampleTarget(_Known):
    """A masked token: what stood there, and the likeliest predictions, best first."""

    truth: str
    predictions: tuple[Guess, ...] = ()


class Sample(_Known):
    """A text of the validation split with `[MASK]` for each target, in the order of `targets`."""

    text: str
    targets: tuple[SampleTarget, ...] = ()
