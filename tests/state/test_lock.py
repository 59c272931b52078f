"""Two processes never train into one folder, and a killed one leaves no lock."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oarlock.state import lock_run

# Holds the lock, with a forked child that outlives it (as a worker process does for a moment), until it is killed.
HOLDER = """
import os, sys, time
from pathlib import Path
from oarlock.state import lock_run
with lock_run(Path(sys.argv[1])):
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(300)
"""


@contextmanager
def holder(run: Path) -> Iterator[tuple[int, int]]:
    """Ids of a process that holds the lock and of its child; both are gone at the end."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        yield process.pid, child
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.kill(child, signal.SIGKILL)


def test_a_second_process_is_refused_with_the_id_of_the_first_and_a_kill_frees_the_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with holder(run) as (process, child):
        with (
            pytest.raises(ValueError, match=rf"run is in use by process {process} on .*choose another --out"),
            lock_run(run),
        ):
            pass
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.kill(child, 0)  # still there, and it does not hold the lock
        with lock_run(run):
            assert (run / "lock").read_text().startswith(f"process {os.getpid()} on ")


def test_the_folder_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_run(tmp_path), pytest.raises(ValueError, match=f"process {os.getpid()} "), lock_run(tmp_path):
            pass
