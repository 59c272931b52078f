"""A launched run that tests interrupt, kill and stop."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from oarlock.report import read_metrics

PATIENCE = 120.0  # seconds that a machine with other work may take


class Job:
    """A run of two processes that is under way."""

    def __init__(self, data: Path, run: Path, *flags: object) -> None:
        self.run = run
        training = (
            "train", "bert-tiny", "--data", data, "--out", run, "--precision", "fp32", "--plan.shard", 2,
            "--batch.sequences", 16, "--log-every", 1, *flags,
        )  # fmt: skip
        command = [sys.executable, "-m", "oarlock", "launch", "--nproc", 2, "--restarts", 99, *training]
        self.output = (run.parent / f"{run.name}.txt").open("wb")
        self.process = subprocess.Popen(
            list(map(str, command)), stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True
        )

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

    def until(self, there: Callable[[], bool]) -> None:
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
def job(data: Path, run: Path, *flags: object) -> Iterator[Job]:
    """It ends with the context."""
    started = Job(data, run, *flags)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()
        started.output.close()


def gone(pid: int) -> bool:
    """Whether a process has ended; nobody may have asked for its exit code yet."""
    path = Path(f"/proc/{pid}/stat")
    return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"
