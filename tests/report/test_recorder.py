import io
import json
import math
from itertools import count

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from oarlock.report import progress, recorder
from oarlock.report.drain import StepRecord
from oarlock.report.metrics import read_metrics
from oarlock.report.recorder import Recorder, RecorderState

LEARNING_RATE = 1e-3


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves by hand."""
    now = [0.0]
    monkeypatch.setattr(recorder, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def new_recorder(folder, *, steps=20, start=None, output=None, **options):
    console = Console(file=output or io.StringIO(), width=80)
    return Recorder(
        folder,
        steps=steps,
        log_every=options.pop("log_every", 5),
        flops_per_token=2e6,
        gemm_rate=1e9,
        unigram_baseline=6.5,
        start=start,
        console=console,
        **options,
    )


def step_record(step):
    return StepRecord(
        step=step,
        loss=torch.tensor(1.0 / step, dtype=torch.float32),
        grad_norm=torch.tensor(float(step)),
        learning_rate=LEARNING_RATE * step,
        num_tokens=100 + step,
        imbalance=1.0 + step / 1000,
    )


def run(written_by, steps, clock, seconds_a_step=1.0):
    for step in steps:
        clock[0] += seconds_a_step
        written_by.record(step_record(step))


def test_a_row_is_the_mean_over_its_window(tmp_path, clock):
    with new_recorder(tmp_path) as written_by:
        run(written_by, range(1, 21), clock, seconds_a_step=2.0)
    rows, _ = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [5, 10, 15, 20]
    second = rows[1]
    steps = range(6, 11)
    assert second["loss"] == sum(float(step_record(step).loss) for step in steps) / 5
    assert second["grad_norm"] == 8.0
    assert second["learning_rate"] == LEARNING_RATE * 10
    assert second["useful_tokens"] == sum(100 + step for step in range(1, 11))
    assert second["useful_tokens_per_second"] == pytest.approx(sum(100 + step for step in steps) / 10.0)
    assert second["gemm_share"] == pytest.approx(second["useful_tokens_per_second"] * 2e6 / 1e9)
    assert second["imbalance"] == pytest.approx(1.008)
    assert second["seconds"] == 20.0


def test_the_last_step_has_a_row_though_its_window_is_short(tmp_path, clock):
    with new_recorder(tmp_path, steps=7) as written_by:
        run(written_by, range(1, 8), clock)
    rows, _ = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [5, 7]
    assert rows[1]["loss"] == pytest.approx((1 / 6 + 1 / 7) / 2)


@pytest.mark.parametrize("stop", [3, 5, 7, 19])
def test_a_resumed_run_writes_the_rows_of_a_straight_one(tmp_path, clock, stop):
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    straight.mkdir()
    resumed.mkdir()
    with new_recorder(straight) as written_by:
        run(written_by, range(1, 21), clock)
    with new_recorder(resumed) as written_by:
        run(written_by, range(1, stop + 1), clock)
        progress: dict[str, float] = {name: float(value) for name, value in written_by.state().model_dump().items()}
        run(written_by, range(stop + 1, 21), clock, seconds_a_step=9.0)  # lost: the run was killed after them
    clock[0] += 1000.0
    with new_recorder(resumed, start=RecorderState(**json.loads(json.dumps(progress)))) as written_by:
        run(written_by, range(stop + 1, 21), clock)
    assert (resumed / "metrics.jsonl").read_text() == (straight / "metrics.jsonl").read_text()


def test_state_survives_values_that_are_not_finite(tmp_path, clock):
    with new_recorder(tmp_path) as written_by:
        written_by.record(StepRecord(1, torch.tensor(4.0), torch.tensor(math.inf), 1e-3, 100, 1.0))
        state = RecorderState.model_validate_json(written_by.state().model_dump_json())
    assert state.window_grad_norm == math.inf


@pytest.mark.parametrize("loss", (math.inf, -math.inf, math.nan))
def test_a_loss_that_is_not_finite_is_written_and_stops_the_run(tmp_path, clock, loss):
    with new_recorder(tmp_path, log_every=2) as written_by:
        written_by.record(StepRecord(1, torch.tensor(4.0), torch.tensor(1.0), 1e-3, 100, 1.0))
        with pytest.raises(RuntimeError, match=r"not finite any more at step 2 .*Lower optimizer\.learning_rate"):
            written_by.record(StepRecord(2, torch.tensor(loss), torch.tensor(1.0), 1e-3, 100, 1.0))
    assert '"loss": null' in (tmp_path / "metrics.jsonl").read_text()


def test_a_new_run_in_an_old_folder_drops_the_old_rows(tmp_path, clock):
    for steps in (20, 5):
        with new_recorder(tmp_path, steps=steps) as written_by:
            run(written_by, range(1, steps + 1), clock)
    rows, _ = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [5]


def test_evaluation_time_counts_as_time_but_not_against_throughput(tmp_path, clock):
    with new_recorder(tmp_path, steps=5) as written_by:
        run(written_by, range(1, 3), clock)
        with written_by.pause():
            clock[0] += 100.0
            written_by.evaluation(2, loss=4.5, accuracy=0.25)
        run(written_by, range(3, 6), clock)
    (row,), (evaluation,) = read_metrics(tmp_path / "metrics.jsonl")
    assert evaluation == {"step": 2, "eval_loss": 4.5, "eval_accuracy": 0.25}
    assert row["useful_tokens_per_second"] == pytest.approx(sum(100 + step for step in range(1, 6)) / 5.0)
    assert row["seconds"] == 105.0


def test_tensorboard_has_each_value_once_after_a_resume(tmp_path, clock):
    with new_recorder(tmp_path) as written_by:
        run(written_by, range(1, 11), clock)
        state = written_by.state()
        run(written_by, range(11, 16), clock)
    with new_recorder(tmp_path, start=state) as written_by:
        run(written_by, range(11, 21), clock)
        written_by.evaluation(20, loss=4.5, accuracy=0.25)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    names = "loss learning_rate grad_norm useful_tokens useful_tokens_per_second gemm_share imbalance seconds"
    expected = {f"train/{name}" for name in names.split()} | {"eval/loss", "eval/accuracy"}
    assert set(events.Tags()["scalars"]) == expected
    assert [event.step for event in events.Scalars("train/loss")] == [5, 10, 15, 20]
    assert events.Scalars("eval/accuracy")[0].value == 0.25


def test_values_on_a_slow_device_are_read_lag_steps_later(tmp_path, clock, monkeypatch):
    """Stands in for a GPU: an event that says when it is waited for."""
    waited_for = []
    numbers = count(1)

    class Event:
        def __init__(self):
            self.step = next(numbers)

        def synchronize(self):
            waited_for.append(self.step)

    monkeypatch.setattr("oarlock.report.drain._event", Event)
    monkeypatch.setattr("oarlock.report.drain.is_asynchronous", lambda tensor: True)
    with new_recorder(tmp_path, log_every=1, lag=3) as written_by:
        run(written_by, range(1, 4), clock)
        assert waited_for == []
        run(written_by, range(4, 7), clock)
        assert waited_for == [1, 2, 3]
        assert written_by.state().step == 6
        assert waited_for == [1, 2, 3, 4, 5, 6]
        run(written_by, range(7, 9), clock)
    assert waited_for == [1, 2, 3, 4, 5, 6, 7, 8]
    rows, _ = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["loss"] for row in rows] == [float(step_record(step).loss) for step in range(1, 9)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recording_never_waits_for_a_gpu(tmp_path):
    with new_recorder(tmp_path, log_every=1) as written_by:
        weights = torch.ones(64, 64, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(1, 21):
                loss = (weights @ weights).mean() * step
                written_by.record(StepRecord(step, loss, loss * 2, 1e-3, 100, 1.0))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    rows, _ = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["loss"] for row in rows] == [64.0 * step for step in range(1, 21)]


def test_an_error_in_the_loop_leaves_what_was_reported(tmp_path, clock):
    def failing():
        with new_recorder(tmp_path) as written_by:
            run(written_by, range(1, 8), clock)
            raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        failing()
    rows, _ = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [5]


def test_a_message_reaches_the_console_as_it_is(tmp_path, clock):
    output = io.StringIO()
    with new_recorder(tmp_path, output=output) as written_by:
        written_by.say("checkpoint [bold]saved[/bold]: " + "x" * 100)
    assert output.getvalue() == "checkpoint [bold]saved[/bold]: " + "x" * 100 + "\n"
