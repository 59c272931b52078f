"""What the training loop tells of each step, brought to the metrics file, TensorBoard and the display."""

import math
from collections.abc import Iterator
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


class RecorderState(Frozen):
    """What a checkpoint keeps of a recorder, so that a resumed run writes the rows of a straight one.

    All of it numbers: `state.model_dump()` is the checkpoint's `progress`, and `RecorderState(**progress)` is the state
    again.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")

    step: int = 0
    """Last step made."""
    useful_tokens: int = 0
    """As in `TrainingRow`."""
    seconds: float = 0.0
    """As in `TrainingRow`."""
    window_steps: int = 0
    """Steps since the last row; the fields below are sums over them."""
    window_loss: float = 0.0
    window_grad_norm: float = 0.0
    window_imbalance: float = 0.0
    window_tokens: int = 0
    window_seconds: float = 0.0


class Bystander:
    """A recorder of a process beside which another one records: it takes everything, and does nothing."""

    def record(self, record: StepRecord) -> None:
        """Take a step."""

    def evaluation(self, step: int, loss: float, accuracy: float) -> None:
        """Take an evaluation."""

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Time passes."""
        yield

    def state(self) -> RecorderState:
        """There is none."""
        return RecorderState()

    def say(self, message: str) -> None:
        """Be quiet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


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
        self._state = start = start or RecorderState()
        self.console = console or Console()
        self._steps, self._log_every = steps, log_every
        self._flops_per_token, self._gemm_rate = flops_per_token, gemm_rate
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
        return self._state.model_copy(update={"seconds": self._seconds()})

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
        record, state = drained.record, self._state
        self._state = RecorderState(
            step=record.step,
            useful_tokens=state.useful_tokens + record.num_tokens,
            seconds=self._seconds(),
            window_steps=state.window_steps + 1,
            window_loss=state.window_loss + drained.loss,
            window_grad_norm=state.window_grad_norm + drained.grad_norm,
            window_imbalance=state.window_imbalance + record.imbalance,
            window_tokens=state.window_tokens + record.num_tokens,
            window_seconds=state.window_seconds + now - self._last,
        )
        self._last = now
        self._progress.step(record.step)
        if record.step % self._log_every == 0 or record.step == self._steps:
            self._report(self._row(record.learning_rate))
            kept = self._state.model_dump(include={"step", "useful_tokens", "seconds"})
            self._state = RecorderState(**kept)
        if not math.isfinite(drained.loss):
            raise RuntimeError(
                f"the loss is not finite any more at step {record.step} (learning rate {record.learning_rate:.3g}): "
                "nothing was saved since it was. Lower optimizer.learning_rate, or raise schedule.warmup_steps"
            )

    def _row(self, learning_rate: float) -> TrainingRow:
        state = self._state
        # A clock too coarse to see the window pass must not stop a run.
        rate = state.window_tokens / max(state.window_seconds, 1e-9)
        return TrainingRow(
            step=state.step,
            loss=state.window_loss / state.window_steps,
            learning_rate=learning_rate,
            grad_norm=state.window_grad_norm / state.window_steps,
            useful_tokens=state.useful_tokens,
            useful_tokens_per_second=rate,
            gemm_share=rate * self._flops_per_token / self._gemm_rate,
            imbalance=state.window_imbalance / state.window_steps,
            seconds=state.seconds,
        )

    def _report(self, row: TrainingRow) -> None:
        self._metrics.write(row)
        for name, value in row.items():
            if name != "step":
                self._tensorboard.add_scalar(f"train/{name}", value, row["step"])
        self._progress.trained(row)
