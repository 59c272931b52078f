"""`run.json` and `samples.json`: what `oarlock train` leaves in a run folder for the report."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from oarlock.config import describe

RUN_FACTS = "run.json"
SAMPLES = "samples.json"


class _Known(BaseModel):
    """A frozen value that may lack fields and that lets pass those of other versions."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ProcessFacts(_Known):
    """What one of several processes did since the run was started, or resumed."""

    busy_seconds: float
    """In which it did not wait for the others."""
    seconds: float
    """Of training."""
    bytes_sent: int
    """To the others."""
    peak_memory: int
    """Bytes: resident on a CPU, of PyTorch's tensors on a GPU."""


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
    processes: tuple[ProcessFacts, ...] = ()
    """By rank, where there are several."""


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


def write_facts(folder: Path, facts: RunFacts) -> None:
    """Write `run.json`; a reader sees the old one or the new one."""
    _replace(folder / RUN_FACTS, facts.model_dump_json(indent=1))


def read_facts(folder: Path) -> RunFacts:
    """Read `run.json`; empty facts where there is none.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / RUN_FACTS
    if not path.exists():
        return RunFacts()
    try:
        return RunFacts.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path} is damaged, remove it: {describe(error)}") from error


def write_samples(folder: Path, samples: Sequence[Sample]) -> None:
    """Write `samples.json`."""
    _replace(folder / SAMPLES, TypeAdapter(tuple[Sample, ...]).dump_json(tuple(samples), indent=1).decode())


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)
