"""Processes that work on items in parallel and answer in order.

They are plain child processes that talk over a pipe. Unlike `multiprocessing`'s, they do not import the caller's main
module again (a script of five lines needs no `if __name__ == "__main__"`), they end by themselves when this process
is killed, and one that dies is noticed at once.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, TypeAlias, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Factory = Callable[[], Callable[[Item], Result]]
Workers: TypeAlias = dict[Connection, "subprocess.Popen[bytes]"]
Answer: TypeAlias = tuple[Any, Exception | None]

# Results that may wait for an earlier one, per worker: bounds memory when one item takes long.
AHEAD = 4
TOKENIZERS_THREADS = "TOKENIZERS_PARALLELISM"


class WorkerDied(RuntimeError):
    """A worker process ended before its work did."""


def map_in_order(
    factory: Factory[Item, Result], items: Iterable[Item], num_workers: int, *, threads: bool = False
) -> Generator[Result, None, None]:
    """`map(factory(), items)`, computed by processes; results come in the order of the items.

    There are at most `num_workers` of them, and never more than items or cores.

    With 0 workers this process does the work. `factory` and the items are pickled, so they are module-level functions
    and values. `threads` lets the tokenizers library use all cores within a worker.

    Raises what `items` raises and the ValueErrors that a worker raises, at their place in the order; any other error
    of a worker as RuntimeError with its traceback, and WorkerDied where one is killed. Closing the generator ends the
    processes.
    """
    if num_workers == 0:
        with _tokenizers_threads(threads):
            yield from map(factory(), items)
        return
    workers: Workers = {}
    source = _with_error(items)
    first = list(islice(source, min(num_workers, len(os.sched_getaffinity(0)))))
    try:
        for _ in first:
            pipe, process = _start(threads)
            workers[pipe] = process
        for pipe in workers:
            pipe.send(factory)
        yield from _deal(workers, chain(first, source))
    except (EOFError, BrokenPipeError, ConnectionResetError) as error:
        raise _obituary(workers) from error
    finally:
        for pipe, process in workers.items():
            pipe.close()
            process.kill()
        for process in workers.values():
            process.wait()


def _deal(workers: Workers, source: Iterator[Answer]) -> Iterator[Any]:
    """Give each idle worker the next item; pass results on in order."""
    idle = deque(workers)
    working: dict[Connection, int] = {}
    answers: dict[int, Answer] = {}
    num_sent = num_passed = 0
    upcoming = next(source, None)
    while upcoming or working or answers:
        while upcoming and idle and num_sent - num_passed < AHEAD * len(workers):
            item, error = upcoming
            if error is not None:
                answers[num_sent] = None, error
            else:
                pipe = idle.popleft()
                pipe.send(item)
                working[pipe] = num_sent
            num_sent += 1
            upcoming = next(source, None)  # read while the workers work
        if num_passed in answers:
            result, error = answers.pop(num_passed)
            if error is not None:
                raise error
            num_passed += 1
            yield result
            continue
        for ready in wait(list(working)):
            assert isinstance(ready, Connection)
            answers[working.pop(ready)] = ready.recv()
            idle.append(ready)


def _with_error(items: Iterable[Any]) -> Iterator[Answer]:
    """The items, and last the error that ended them, which is to be raised only after all results before it."""
    try:
        for item in items:
            yield item, None
    except Exception as error:
        yield None, error


@contextmanager
def _tokenizers_threads(on: bool) -> Iterator[None]:
    """Let the tokenizers library use threads, or not: it reads the environment at every call."""
    before = os.environ.get(TOKENIZERS_THREADS)
    os.environ[TOKENIZERS_THREADS] = str(on).lower()
    try:
        yield
    finally:
        if before is None:
            del os.environ[TOKENIZERS_THREADS]
        else:
            os.environ[TOKENIZERS_THREADS] = before


def _start(threads: bool) -> tuple[Connection, "subprocess.Popen[bytes]"]:
    ours, theirs = Pipe()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        TOKENIZERS_THREADS: str(threads).lower(),
        "OPENBLAS_NUM_THREADS": "1",  # numpy would start threads that it does not need here
    }
    with theirs:
        # In a process group of its own, so that Ctrl-C reaches this process alone, which then ends the worker.
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from oarlock.corpus.workers import serve; serve({theirs.fileno()})"],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env=environment,
            process_group=0,
        )
    return ours, process


def serve(descriptor: int) -> None:
    """What a worker process does: answer items from a pipe until it is closed."""
    threading.Thread(target=_end_when_closed, args=(descriptor,), daemon=True).start()
    with Connection(descriptor) as pipe, suppress(EOFError, BrokenPipeError, ConnectionResetError):
        work = pipe.recv()()
        while True:
            pipe.send(_answer(work, pipe.recv()))


def _end_when_closed(descriptor: int) -> None:
    """End this process, also in the middle of an item, when the other end of its pipe is gone."""
    closed = select.poll()
    closed.register(descriptor, 0)  # hang-up is reported without being asked for
    closed.poll()
    os._exit(1)


def _answer(work: Callable[[Any], Any], item: Any) -> Answer:
    try:
        return work(item), None
    except ValueError as error:
        return None, ValueError(str(error))
    except BaseException:  # a panic of the tokenizers library is no Exception
        return None, RuntimeError(f"a worker process failed:\n{traceback.format_exc()}")


def _obituary(workers: Workers) -> WorkerDied:
    """What is known of the worker that died."""
    for process in workers.values():
        try:
            status = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            continue
        cause = f"exit status {status}" if status >= 0 else f"signal {-status} ({signal.Signals(-status).name})"
        advice = "; the system may have run out of memory: try fewer workers" if status == -signal.SIGKILL else ""
        return WorkerDied(f"a worker process died by {cause}{advice}")
    return WorkerDied("a worker process closed its pipe")
