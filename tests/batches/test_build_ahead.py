"""Worker processes: order, death of either side, signals, what is left behind."""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from oarlock.batches.workers import build_ahead

HERE = os.getpid()


def worker_pids() -> list[int]:
    return [process.pid for process in multiprocessing.active_children()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def all_end(pids: list[int]) -> bool:
    """Whether the processes end within 10 s; those that do not are killed, so that a failed test leaves none."""
    ended = wait_until(lambda: not any(map(is_running, pids)))
    for pid in filter(is_running, pids):
        os.kill(pid, signal.SIGKILL)
    return ended


def square(step: int) -> tuple[int, bool]:
    return step * step, os.getpid() == HERE


def large(step: int) -> bytes:
    return bytes(10_000_000)


@pytest.mark.parametrize("num_workers", [0, 1, 2, 5])
def test_results_come_in_order_from_processes_that_end(num_workers):
    results = list(build_ahead(square, range(3, 14), num_workers))
    assert results == [(step * step, num_workers == 0) for step in range(3, 14)]
    assert not worker_pids()


def test_more_workers_than_steps_and_no_steps():
    assert [value for value, _ in build_ahead(square, range(2, 4), 4)] == [4, 9]
    assert list(build_ahead(square, range(2, 2), 4)) == []


def test_workers_build_ahead_and_are_held_back(tmp_path):
    def build(step: int) -> bytes:
        (tmp_path / str(step)).touch()
        return large(step)

    with closing(build_ahead(build, range(100), 2)) as results:
        next(results)
        built = functools.partial(lambda: {int(path.name) for path in tmp_path.iterdir()})
        # Step 0 is taken, so its worker builds 2; the other still holds 1.
        assert wait_until(lambda: built() == {0, 1, 2})
        time.sleep(0.1)
        assert built() == {0, 1, 2}


def test_a_worker_computes_on_one_thread():
    with closing(build_ahead(lambda step: torch.get_num_threads(), range(1), 1)) as results:
        assert next(results) == 1


def test_c57_closing_early_ends_the_workers_at_once():
    results = build_ahead(large, range(1000), 3)
    next(results)
    pids = worker_pids()
    assert len(pids) == 3
    results.close()
    assert not any(map(is_running, pids))


def test_c57_an_interrupted_consumer_ends_the_workers():
    pids = []

    def consume() -> None:
        # So many that no worker can be done with its share before it is looked for.
        with closing(build_ahead(square, range(10**7), 2)) as results:
            next(results)
            pids.extend(worker_pids())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert len(pids) == 2
    assert not any(map(is_running, pids))


def test_c57_an_interrupt_while_waiting_ends_the_workers():
    results = build_ahead(lambda step: time.sleep(60), range(4), 2)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            next(results)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert not worker_pids()


def test_c57_workers_leave_ctrl_c_to_the_parent():
    with closing(build_ahead(large, range(1000), 2)) as results:
        next(results)
        pids = worker_pids()
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        assert [len(next(results)) for _ in range(6)] == [10_000_000] * 6
        assert worker_pids() == pids


PARENT = textwrap.dedent("""
    import multiprocessing, sys, time
    from oarlock.batches.workers import build_ahead
    first, second = (build_ahead(lambda step: bytes(1_000_000), range(10**6), 2) for _ in range(2))
    next(first), next(second)
    print(*(process.pid for process in multiprocessing.active_children()), flush=True)
    if sys.argv[1] == "work":
        for _ in first:
            next(second)
    elif sys.argv[1] == "wait":
        time.sleep(600)
""")


def start_parent(what: str) -> tuple[subprocess.Popen[str], list[int]]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, what], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 4
    return parent, pids


@pytest.mark.parametrize("what", ["wait", "work"])
def test_c57_nothing_is_left_after_the_parent_was_killed(what):
    parent, pids = start_parent(what)
    with parent:
        assert all(map(is_running, pids))
        # Nothing can be left in shared memory, for nobody has any.
        for pid in [parent.pid, *pids]:
            assert "/dev/shm" not in Path(f"/proc/{pid}/maps").read_text()
        parent.kill()
    assert all_end(pids)


def test_c57_nothing_is_left_when_the_parent_ends_without_closing():
    parent, pids = start_parent("end")
    with parent:
        assert parent.wait(10) == 0
    assert all_end(pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_c59_a_killed_worker_is_reported_with_its_cause(number):
    previous = signal.signal(signal.SIGTERM, lambda *_: None)  # what a parent does with a signal is not inherited
    try:
        with closing(build_ahead(large, range(1000), 2)) as results:
            next(results)
            victim, other = worker_pids()
            os.kill(victim, number)
            with pytest.raises(RuntimeError, match=rf"{victim}.*step \d+.*killed by {number.name}.*batch\.workers"):
                list(results)
            assert not is_running(other)
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_c59_a_worker_that_exits_is_reported_with_its_status():
    def build(step: int) -> int:
        return os._exit(3) if step == 4 else step

    results = build_ahead(build, range(10), 2)
    assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match=r"step 4, exited with status 3.*batch\.workers \(now 2\)"):
        next(results)
    assert not worker_pids()


def test_c59_an_exception_in_a_worker_is_raised_with_its_traceback():
    def build(step: int) -> int:
        return {0: 1}[step]

    results = build_ahead(build, range(3), 1)
    next(results)
    with pytest.raises(RuntimeError, match=r"(?s)step 1 failed.*\{0: 1\}\[step\].*KeyError: 1"):
        next(results)
    assert not worker_pids()


def test_c59_what_a_user_did_stays_a_value_error():
    def build(step: int) -> int:
        raise ValueError("the files do not fit")

    with pytest.raises(ValueError, match=r"^the files do not fit$"):
        next(build_ahead(build, range(3), 1))
