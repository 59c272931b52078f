"""Processes that answer in order, and what happens when one of them, or this one, dies."""

import operator
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from oarlock.corpus import workers
from oarlock.corpus.workers import WorkerDied, map_in_order

DOUBLE = partial(partial, operator.mul, 2)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_results_in_order(num_workers: int) -> None:
    items = [range(1_000_000 if number % 3 == 0 else 10 + number) for number in range(20)]  # some take long
    assert list(map_in_order(partial(partial, sum), items, num_workers)) == list(map(sum, items))
    assert list(map_in_order(DOUBLE, [], num_workers)) == []


@pytest.mark.parametrize(("num_items", "cores", "expected"), [(3, 64, 3), (8, 2, 2), (0, 64, 0)])
def test_no_more_processes_than_items_or_cores(
    monkeypatch: pytest.MonkeyPatch, num_items: int, cores: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    started: list[object] = []
    start = workers._start
    monkeypatch.setattr(workers, "_start", lambda threads: started.append(threads) or start(threads))
    assert list(map_in_order(DOUBLE, range(num_items), 100_000)) == [2 * number for number in range(num_items)]
    assert len(started) == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_large_items_and_results(num_workers: int) -> None:
    """Larger than what a pipe holds, in both directions."""
    items = [bytes([number]) * 3_000_000 for number in range(8)]
    for item, result in zip(items, map_in_order(DOUBLE, items, num_workers), strict=True):
        assert result == item * 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_come_in_their_place(num_workers: int) -> None:
    results = map_in_order(partial(partial, int), ["1", "2", "x", "4", "y"], num_workers)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="'x'"):
        next(results)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_the_items_comes_after_the_results_before_it(num_workers: int) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise ValueError("broken input")

    results = map_in_order(DOUBLE, items(), num_workers)
    assert [next(results) for _ in range(5)] == [0, 2, 4, 6, 8]
    with pytest.raises(ValueError, match="broken input"):
        next(results)


def test_any_other_error_comes_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"Traceback(?s:.)*KeyError"):
        list(map_in_order(partial(partial, {}.__getitem__), [1], 1))


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(
    ("death", "cause"),
    [
        (partial(partial, signal.raise_signal), r"signal 9 \(SIGKILL\); .*fewer workers"),
        (partial(partial, os._exit), "exit status 9"),
    ],
)
def test_c59_a_worker_that_dies_is_an_error(death: partial, cause: str, num_workers: int) -> None:
    with pytest.raises(WorkerDied, match=cause):
        list(map_in_order(death, [9, 9, 9], num_workers))


def test_a_worker_killed_from_outside(tmp_path: Path) -> None:
    results = map_in_order(partial(partial, operator.call), [os.getpid, partial(time.sleep, 60)], 1)
    os.kill(next(results), signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        next(results)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that waits for its parent to ask counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pids: list[int]) -> bool:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if all(map(gone, pids)):
            return True
        time.sleep(0.05)
    return False


def test_closing_ends_the_processes() -> None:
    results = map_in_order(partial(partial, operator.call), [os.getpid] * 50, 2)
    pids = [next(results) for _ in range(10)]
    assert not gone(pids[0])
    results.close()
    assert wait_until_gone(pids)


def run_script(body: str) -> "subprocess.Popen[str]":
    """A script without `if __name__ == "__main__"`."""
    head = "import operator, os, time; from functools import partial; from oarlock.corpus.workers import map_in_order\n"
    return subprocess.Popen([sys.executable, "-c", head + textwrap.dedent(body)], stdout=subprocess.PIPE, text=True)


def test_c57_no_process_is_left_when_this_one_is_killed() -> None:
    process = run_script(
        """
        results = map_in_order(partial(partial, operator.call), [os.getpid] * 8 + [partial(time.sleep, 1)] * 99, 2)
        print(*[next(results) for _ in range(8)], flush=True)
        next(results)
        time.sleep(60)
        """
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert pids
    process.kill()
    process.wait()
    assert wait_until_gone(pids)


def test_a_script_needs_no_guard_and_path_changes_reach_the_workers(tmp_path: Path) -> None:
    (tmp_path / "own_module.py").write_text("def make():\n    return str\n")
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.append({str(tmp_path)!r})\nimport own_module\n"
        "from oarlock.corpus.workers import map_in_order\n"
        "print(list(map_in_order(own_module.make, [1, 2], 2)))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "['1', '2']\n", done.stderr


def test_the_environment_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = partial(partial, os.getenv)
    for before in (None, "true"):
        if before is None:
            monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
        else:
            monkeypatch.setenv("TOKENIZERS_PARALLELISM", before)
        for num in (0, 1):
            assert list(map_in_order(seen, ["TOKENIZERS_PARALLELISM"], num)) == ["false"]
            assert list(map_in_order(seen, ["TOKENIZERS_PARALLELISM"], num, threads=True)) == ["true"]
        assert os.environ.get("TOKENIZERS_PARALLELISM") == before


def test_workers_import_only_what_they_need() -> None:
    """Starting one takes 0.15 s of processor time; with configuration and remote files it would take twice that."""
    check = (
        "import sys, oarlock.corpus.encoding; print({'pydantic', 'fsspec', 'pyarrow', 'torch'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr
