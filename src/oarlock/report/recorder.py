"""What the training loop tells of each step, brought to the metrics file, TensorBoard and the display."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from pydantic import ConfigDict
from rich.console import Console

from oarlock.config import Frozen
from oarlock.report.drain import Drain, DrainedStep, StepRecord
from oarlock.report.metrics import EvaluationRow, MetricsFile, TrainingRow, truncate_after
from oarlock.report.progress import TrainingProgress, say

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"


class StepValues(Frozen):
    """One step of a window that has no row yet; fields as in `TrainingRow`."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    loss: float
    grad_norm: float
    learning_rate: float
    num_tokens: int
    imbalance: float
    seconds: float


class RecorderState(Frozen):
    """What a checkpoint keeps of a recorder, so that a resumed run writes the rows of a straight one."""

    step: int = 0
    """Last step made."""
    useful_tokens: int = 0
    """As in `TrainingRow`."""
    seconds: float = 0.0
    """As in `TrainingRow`."""
    window: tuple[StepValues, ...] = ()
    """The steps since the last row."""


class Recorder:
    """Takes every step of a run, reads its values when they can be had without waiting, and reports them.

    A row is written after every step that is a multiple of `log_every`, and after the last. A context manager: closing
    it reports what is still on its way.
    """

    def __init__(
        self,
        run_folder: Path,
        *,
        steps: int,
        log_every: int,
        flops_per_token: float,
        gemm_rate: float,
        unigram_baseline: float | None = None,
        start: RecorderState | None = None,
        lag: int = 4,
        console: Console | None = None,
    ) -> None:
        """`flops_per_token`: of a training step, mean over the tokens. `gemm_rate`: FLOP/s of the machine.

        `start` is the state from the checkpoint that the run resumes; rows after it are dropped. `lag`: steps between
        asking for a value on a GPU and reading it.
        """
        start = start or RecorderState()
        self.console = console or Console()
        self._steps, self._log_every = steps, log_every
        self._flops_per_token, self._gemm_rate = flops_per_token, gemm_rate
        self._step, self._useful_tokens = start.step, start.useful_tokens
        self._window = list(start.window)
        self._drain = Drain(lag)
        self._opened = self._last = monotonic()
        self._seconds_before = start.seconds
        truncate_after(run_folder / METRICS, start.step)
        self._metrics = MetricsFile(run_folder / METRICS)
        from torch.utils.tensorboard import SummaryWriter  # takes a second, which only training should cost

        self._tensorboard = SummaryWriter(run_folder / TENSORBOARD, purge_step=start.step + 1, flush_secs=30)
        self._progress = TrainingProgress(self.console, steps=steps, done=start.step, unigram_baseline=unigram_baseline)
        self._exit = ExitStack()

    def record(self, record: StepRecord) -> None:
        """Take a step. Never waits for it: on a GPU it is read `lag` steps later."""
        self._drain.push(record)
        for drained in self._drain.ready():
            self._take(drained)

    def flush(self) -> None:
        """Report all steps taken so far; waits for the device."""
        for drained in self._drain.rest():
            self._take(drained)
        self._tensorboard.flush()

    def evaluation(self, step: int, loss: float, accuracy: float) -> None:
        """Report an evaluation after `step`: loss in nats a target, accuracy as a share."""
        self.flush()
        row = EvaluationRow(step=step, eval_loss=loss, eval_accuracy=accuracy)
        self._metrics.write(row)
        self._tensorboard.add_scalar("eval/loss", loss, step)
        self._tensorboard.add_scalar("eval/accuracy", accuracy, step)
        self._progress.evaluated(row)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What happens inside (an evaluation) does not count as time of a training step."""
        self.flush()
        began = monotonic()
        yield
        self._last += monotonic() - began

    def state(self) -> RecorderState:
        """What to keep in a checkpoint; waits for the device."""
        self.flush()
        return RecorderState(
            step=self._step, useful_tokens=self._useful_tokens, seconds=self._seconds(), window=tuple(self._window)
        )

    def say(self, message: str) -> None:
        """Tell the user something without tearing the bar."""
        say(self.console, message)

    def __enter__(self) -> Self:
        self._exit.callback(self._metrics.close)
        self._exit.callback(self._tensorboard.close)
        self._exit.enter_context(self._progress)
        self._opened = self._last = monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._exit:
            if error is None:
                self.flush()

    def _seconds(self) -> float:
        return self._seconds_before + monotonic() - self._opened

    def _take(self, drained: DrainedStep) -> None:
        now = monotonic()
        record = drained.record
        self._window.append(
            StepValues(
                loss=drained.loss,
                grad_norm=drained.grad_norm,
                learning_rate=record.learning_rate,
                num_tokens=record.num_tokens,
                imbalance=record.imbalance,
                seconds=now - self._last,
            )
        )
        self._last = now
        self._step = record.step
        self._useful_tokens += record.num_tokens
        self._progress.step(record.step)
        if record.step % self._log_every == 0 or record.step == self._steps:
            self._report(self._row())
            self._window.clear()

    def _row(self) -> TrainingRow:
        window = self._window
        # A clock too coarse to see the window pass must not stop a run.
        rate = sum(step.num_tokens for step in window) / max(sum(step.seconds for step in window), 1e-9)
        return TrainingRow(
            step=self._step,
            loss=_mean(step.loss for step in window),
            learning_rate=window[-1].learning_rate,
            grad_norm=_mean(step.grad_norm for step in window),
            useful_tokens=self._useful_tokens,
            useful_tokens_per_second=rate,
            gemm_share=rate * self._flops_per_token / self._gemm_rate,
            imbalance=_mean(step.imbalance for step in window),
            seconds=self._seconds(),
        )

    def _report(self, row: TrainingRow) -> None:
        self._metrics.write(row)
        for name, value in row.items():
            if name != "step":
                self._tensorboard.add_scalar(f"train/{name}", value, row["step"])
        self._progress.trained(row)


def _mean(values: Iterable[float]) -> float:
    """Unlike `statistics.fmean`, of infinities too."""
    listed = list(values)
    return sum(listed) / len(listed)
