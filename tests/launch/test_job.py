"""Runs of several processes, in which processes are killed, hung and interrupted."""

import os
import signal
import time
from pathlib import Path

import pytest

from oarlock.state import load_newest, newest_checkpoint
from oarlock.testing.jobs import gone, job

STEPS = 60
FLAGS = ("--steps", STEPS, "--checkpoint.every", 5, "--evaluation.every", STEPS)


def weights(run: Path) -> dict[str, bytes]:
    snapshot = load_newest(run)
    assert snapshot is not None
    assert snapshot.step == STEPS
    return {name: tensor.numpy().tobytes() for name, tensor in snapshot.weights.items()}


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The weights that a run ends with which nobody disturbs."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    with job(data, run, *FLAGS) as whole:
        assert whole.end() == 0, whole.said()
    return weights(run)


def test_a_killed_process_costs_no_bit(data: Path, tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    """Each rank once, rank 0 among them."""
    with job(data, tmp_path / "run", *FLAGS) as run:
        for rank, step in ((1, 12), (0, 30)):
            run.reach(step)
            os.kill(run.workers()[rank], signal.SIGKILL)
            killed = run.workers()
            run.until(lambda before=killed: len(run.workers()) == 2 and not set(before) & set(run.workers()))
        assert run.end() == 0, run.said()
    assert weights(tmp_path / "run") == undisturbed


def test_a_hung_process_is_noticed_and_started_anew(data: Path, tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    with job(data, tmp_path / "run", *FLAGS, "--plan.patience", "8") as run:
        run.reach(12)
        stopped = run.workers()[1]
        os.kill(stopped, signal.SIGSTOP)
        run.until(lambda: gone(stopped))
        assert run.end() == 0, run.said()
        assert "Timeout" in run.said()
        assert "train_step" in run.said()
    assert weights(tmp_path / "run") == undisturbed


def test_c57_an_interrupt_saves_and_the_command_goes_on(
    data: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    with job(data, tmp_path / "run", *FLAGS) as run:
        run.reach(12)
        workers = run.workers()
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 0, run.said()
        assert all(map(gone, workers))
        assert f"To go on: oarlock launch --nproc 2 train {tmp_path / 'run' / 'config.yaml'}" in run.said()
    assert newest_checkpoint(tmp_path / "run") is not None
    with job(data, tmp_path / "run", *FLAGS) as run:
        assert run.end() == 0, run.said()
    assert weights(tmp_path / "run") == undisturbed


def test_no_process_outlives_the_launcher(data: Path, tmp_path: Path) -> None:
    with job(data, tmp_path / "run", *FLAGS) as run:
        run.reach(3)
        workers = run.workers()
        run.process.kill()
        run.process.wait()
        end = time.monotonic() + 10
        while not all(map(gone, workers)) and time.monotonic() < end:
            time.sleep(0.05)
        assert all(map(gone, workers))


def test_what_every_process_would_refuse_is_told_once(data: Path, tmp_path: Path) -> None:
    with job(data, tmp_path / "run", *FLAGS, "--init-from", str(tmp_path)) as run:
        assert run.end() == 1
        assert run.said().count("oarlock: ") == 1
        assert "Traceback" not in run.said()
