"""What a person sees while a command works: a bar on a terminal, a plain line now and then in a log file."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from oarlock.report import formats
from oarlock.report.metrics import EvaluationRow, TrainingRow

SECONDS_BETWEEN_LINES = 10.0
"""How often a log file gets a line."""


def say(console: Console, message: str) -> None:
    """Print a message above the bar, as it is: no markup, no wrapping."""
    console.print(message, markup=False, highlight=False, soft_wrap=True)


def training_text(row: TrainingRow, unigram_baseline: float | None) -> str:
    """One line for a row; the unigram baseline stands beside the loss, so that a plateau there is recognised."""
    beside = "" if unigram_baseline is None else f" (unigram baseline {formats.loss(unigram_baseline)})"
    return (
        f"loss {formats.loss(row['loss'])}{beside}, {formats.count(row['useful_tokens_per_second'])} tokens/s, "
        f"{formats.percent(row['gemm_share'])} of GEMM rate"
    )


def evaluation_text(row: EvaluationRow) -> str:
    """One line for an evaluation."""
    loss, accuracy = formats.loss(row["eval_loss"]), formats.percent(row["eval_accuracy"])
    return f"evaluation at step {row['step']:,}: loss {loss}, accuracy {accuracy}"


class TrainingProgress:
    """The display of one training run. A context manager: on a terminal the bar is there while it is open."""

    def __init__(self, console: Console, *, steps: int, done: int, unigram_baseline: float | None) -> None:
        """`steps` of the whole run, of which `done` were made before (by the run that this one resumes)."""
        self._console, self._steps, self._done, self._baseline = console, steps, done, unigram_baseline
        self._opened, self._spoke = monotonic(), -math.inf
        self._training, self._evaluation = "", ""
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=None),
            TextColumn("step {task.fields[step]}"),
            TextColumn("{task.fields[left]}"),
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task("", total=steps, completed=done, step=f"{done:,}/{steps:,}", left="")
        self._live = Live(get_renderable=self._render, console=console) if console.is_interactive else None

    def step(self, step: int) -> None:
        """`step` is done."""
        left = f"{formats.duration(self._seconds_left(step))} left"
        self._bar.update(self._task, completed=step, step=f"{step:,}/{self._steps:,}", left=left)

    def trained(self, row: TrainingRow) -> None:
        """A row of metrics is there."""
        self._training = training_text(row, self._baseline)
        last, now = row["step"] >= self._steps, monotonic()
        if self._live is None and (last or now - self._spoke >= SECONDS_BETWEEN_LINES):
            self._spoke = now
            left = "" if last else f", {formats.duration(self._seconds_left(row['step']))} left"
            say(self._console, f"step {row['step']:,}/{self._steps:,}: {self._training}{left}")

    def evaluated(self, row: EvaluationRow) -> None:
        """An evaluation is there."""
        self._evaluation = evaluation_text(row)
        if self._live is None:
            say(self._console, self._evaluation)

    def __enter__(self) -> Self:
        self._opened = monotonic()
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _seconds_left(self, step: int) -> float:
        """From the mean over this process, in which evaluations and checkpoints have their share."""
        made = step - self._done
        return (monotonic() - self._opened) / made * (self._steps - step) if made > 0 else math.nan

    def _render(self) -> RenderableType:
        lines = [Text(line) for line in (self._training, self._evaluation) if line]
        return Group(self._bar, *lines)


@contextmanager
def measuring_progress(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A callback that shows how many parts of a measurement are done, of how many: on a terminal, a bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class PrepareState(Protocol):
    """How far the preparation of a data set is."""

    @property
    def phase(self) -> str: ...
    @property
    def bytes_done(self) -> int: ...
    @property
    def bytes_total(self) -> int: ...
    @property
    def documents(self) -> int: ...
    @property
    def tokens(self) -> int: ...


@contextmanager
def prepare_progress(console: Console | None = None) -> Iterator[Callable[[PrepareState], None]]:
    """A callback that shows how far `oarlock prepare` is: a bar with rate and time left, one for each phase."""
    console = console or Console()
    if console.is_interactive:
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[counts]}"),
            console=console,
            expand=True,
        ) as bar:
            yield _PrepareBars(bar)
    else:
        yield _PrepareLines(console)


class _PrepareBars:
    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, state: PrepareState) -> None:
        if state.phase not in self._tasks:
            self._tasks[state.phase] = self._bar.add_task(state.phase, total=state.bytes_total, counts="")
        counts = f"{formats.count(state.documents)} documents" if state.documents else ""
        task = self._tasks[state.phase]
        self._bar.update(task, completed=state.bytes_done, total=state.bytes_total, counts=counts)


class _PrepareLines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = ""
        self._began = self._spoke = monotonic()

    def __call__(self, state: PrepareState) -> None:
        now = monotonic()
        if state.phase != self._phase:
            self._phase, self._began = state.phase, now
        elif now - self._spoke < SECONDS_BETWEEN_LINES:
            return
        self._spoke = now
        say(self._console, _prepare_text(state, now - self._began))


def _prepare_text(state: PrepareState, elapsed: float) -> str:
    text = f"{state.phase}: {state.bytes_done / 1e6:,.1f} of {state.bytes_total / 1e6:,.1f} MB"
    if elapsed > 0 and state.bytes_done:
        rate = state.bytes_done / elapsed
        text += f", {rate / 1e6:.1f} MB/s, {formats.duration((state.bytes_total - state.bytes_done) / rate)} left"
    if state.documents:
        text += f", {formats.count(state.documents)} documents, {formats.count(state.tokens)} tokens"
    return text
