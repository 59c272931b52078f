"""`metrics.jsonl`: what a run measured, one JSON object a line.

A training line has exactly the fields of `TrainingRow`, an evaluation line those of `EvaluationRow`; steps never go
down. A value that is not finite is written as `null` (JSON knows no NaN) and read back as NaN.
"""

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict


class TrainingRow(TypedDict):
    """What was measured over the steps since the row before, up to and including `step`."""

    step: int
    loss: float
    """Mean over the steps, in nats a target."""
    learning_rate: float
    """Of the last step."""
    grad_norm: float
    """Global gradient norm before clipping, mean over the steps."""
    useful_tokens: int
    """Tokens trained on since the run began, resumes included."""
    useful_tokens_per_second: float
    """Over the steps, time spent on evaluations left out."""
    gemm_share: float
    """Arithmetic of the model a second, as a share of the machine's measured matrix-multiply rate."""
    imbalance: float
    """Largest over mean number of tokens of a (rank, micro-batch) cell, mean over the steps."""
    seconds: float
    """Since the run began, resumes and evaluations included, pauses between them not."""


class EvaluationRow(TypedDict):
    """One evaluation on the validation split."""

    step: int
    eval_loss: float
    """Nats a target."""
    eval_accuracy: float
    """Share of the targets whose likeliest token is the right one."""


class MetricsFile:
    """Appends rows to a file; each row is on its way to the disk when `write` returns, so a killed run loses none."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: TrainingRow | EvaluationRow) -> None:
        """Append one row."""
        self._file.write(json.dumps({name: _finite_or_none(value) for name, value in row.items()}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def truncate_after(path: Path, step: int) -> None:
    """Drop the rows after `step`, and a line cut off in the middle. Reads only what it drops, whatever the file's size.

    Cutting a file's end off is one operation of the file system, so a crash leaves the old end or the new one.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            end = text.rfind(b"\n") + 1
            while end:
                start = text.rfind(b"\n", 0, end - 1) + 1
                row = _parse(text[start:end])
                if row is not None and row["step"] <= step:
                    break
                end = start
        file.truncate(end)


def read_metrics(path: Path) -> tuple[list[TrainingRow], list[EvaluationRow]]:
    """The training rows and the evaluation rows of a file; none where there is no file.

    A last line cut off in the middle (the run was killed, or is writing it) is left out. Raises ValueError naming
    the line for any other that is no row.
    """
    training: list[TrainingRow] = []
    evaluations: list[EvaluationRow] = []
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for number, line in enumerate(lines[:-1], start=1):
        row = _parse(line)
        if row is None and number == len(lines) - 1:
            break
        if row is None:
            raise ValueError(f"{path}, line {number} is not a row of metrics: {line[:80]!r}; remove that line")
        if "eval_loss" in row:
            evaluations.append(EvaluationRow(**row))  # type: ignore[typeddict-item]
        else:
            training.append(TrainingRow(**row))  # type: ignore[typeddict-item]
    return training, evaluations


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    known = isinstance(row, Mapping) and set(row) in (
        set(TrainingRow.__annotations__),
        set(EvaluationRow.__annotations__),
    )
    return {name: math.nan if value is None else value for name, value in row.items()} if known else None


def _finite_or_none(value: Any) -> Any:
    return value if math.isfinite(value) else None
