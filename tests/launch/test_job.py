"""Runs of several processes, in which processes are killed, hung and interrupted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oarlock.report import read_metrics
from oarlock.state import load_newest, newest_checkpoint

STEPS = 60
PATIENCE = 120.0  # seconds that a machine with other work may take


class Job:
    """A run of two processes that is under way."""

    def __init__(self, data: Path, run: Path, *flags: str) -> None:
        self.run = run
        training = (
            "train", "bert-tiny", "--data", data, "--out", run, "--steps", STEPS, "--precision", "fp32", "--plan.shard", 2,
            "--batch.sequences", 16, "--checkpoint.every", 5, "--evaluation.every", STEPS, "--log-every", 1, *flags,
        )  # fmt: skip
        command = [sys.executable, "-m", "oarlock", "launch", "--nproc", "2", "--restarts", "9", *map(str, training)]
        self.output = (run.parent / f"{run.name}.txt").open("wb")
        self.process = subprocess.Popen(command, stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True)

    def workers(self) -> list[int]:
        """Process ids, by rank."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children]

    def step(self) -> int:
        """The last that was logged."""
        path = self.run / "metrics.jsonl"
        rows = read_metrics(path)[0] if path.exists() else []
        return rows[-1]["step"] if rows else 0

    def reach(self, step: int) -> None:
        """Return when so many steps are done."""
        self.until(lambda: self.step() >= step)

    def until(self, there) -> None:
        """Return when something is so."""
        end = time.monotonic() + PATIENCE
        while not there():
            assert time.monotonic() < end, self.said()
            assert self.process.poll() is None, self.said()
            time.sleep(0.02)

    def said(self) -> str:
        """All that was printed."""
        return Path(self.output.name).read_text()

    def end(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE)


@contextmanager
def job(data: Path, run: Path, *flags: str) -> Iterator[Job]:
    started = Job(data, run, *flags)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()
        started.output.close()


def weights(run: Path) -> dict[str, bytes]:
    snapshot = load_newest(run)
    assert snapshot is not None
    assert snapshot.step == STEPS
    return {name: tensor.numpy().tobytes() for name, tensor in snapshot.weights.items()}


def gone(pid: int) -> bool:
    """Whether a process has ended; nobody may have asked for its exit code yet."""
    path = Path(f"/proc/{pid}/stat")
    return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The weights that a run ends with which nobody disturbs."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    with job(data, run) as whole:
        assert whole.end() == 0, whole.said()
    return weights(run)


def test_a_killed_process_costs_no_bit(data: Path, tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    """Each rank once, rank 0 among them."""
    with job(data, tmp_path / "run") as run:
        for rank, step in ((1, 12), (0, 30)):
            run.reach(step)
            os.kill(run.workers()[rank], signal.SIGKILL)
            killed = run.workers()
            run.until(lambda before=killed: len(run.workers()) == 2 and not set(before) & set(run.workers()))
        assert run.end() == 0, run.said()
    assert weights(tmp_path / "run") == undisturbed


def test_a_hung_process_is_noticed_and_started_anew(data: Path, tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    with job(data, tmp_path / "run", "--plan.patience", "8") as run:
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
    with job(data, tmp_path / "run") as run:
        run.reach(12)
        workers = run.workers()
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 0, run.said()
        assert all(map(gone, workers))
        assert f"To go on: oarlock launch --nproc 2 train {tmp_path / 'run' / 'config.yaml'}" in run.said()
    assert newest_checkpoint(tmp_path / "run") is not None
    with job(data, tmp_path / "run") as run:
        assert run.end() == 0, run.said()
    assert weights(tmp_path / "run") == undisturbed


def test_no_process_outlives_the_launcher(data: Path, tmp_path: Path) -> None:
    with job(data, tmp_path / "run") as run:
        run.reach(3)
        workers = run.workers()
        run.process.kill()
        run.process.wait()
        end = time.monotonic() + 10
        while not all(map(gone, workers)) and time.monotonic() < end:
            time.sleep(0.05)
        assert all(map(gone, workers))


def test_what_every_process_would_refuse_is_told_once(data: Path, tmp_path: Path) -> None:
    with job(data, tmp_path / "run", "--init-from", str(tmp_path)) as run:
        assert run.end() == 1
        assert run.said().count("oarlock: ") == 1
        assert "Traceback" not in run.said()
