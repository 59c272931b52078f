"""Worker processes that build values ahead of their use.

Worker w of n builds every n-th step and writes each result into its own pipe; the parent reads the pipes in turn. That
order is fixed, so the number of workers changes nothing. A pipe that is full holds its worker back, one finished
result ahead. A worker that dies closes its pipe, which the reader notices at once, and so does a parent that dies,
however it was killed. Nothing lies in shared memory and no lock is shared, so a killed process leaves nothing behind.
(torch's DataLoader shares one queue, one lock and shared memory among its workers, and reports a dead one by raising
from a signal handler, in the midst of whatever the program is doing.)
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

import torch

Built = TypeVar("Built")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class _Worker:
    process: ForkProcess
    pipe: Connection


@dataclass(frozen=True)
class _Failure:
    """What a worker sends in place of a result that it could not build."""

    is_users: bool
    """Whether it was a ValueError: what a user did."""
    message: str


def build_ahead(build: Callable[[int], Built], steps: range, num_workers: int) -> Generator[Built, None, None]:
    """build(step) for each of `steps`, in order, by `num_workers` processes; by 0, here and as it is asked for.

    The processes start when the first result is asked for, and end when the generator is closed. They are forked:
    `build` and what it holds are shared with them, not copied.

    Raises:
        ValueError: `build` raised it.
        RuntimeError: a worker died, or something else was raised there; the message says what.
    """
    if num_workers == 0:
        yield from map(build, steps)
        return
    workers: list[_Worker] = []
    try:
        for number in range(num_workers):
            workers.append(_start(build, steps[number::num_workers], [worker.pipe for worker in workers]))
        for index, step in enumerate(steps):
            yield _receive(workers[index % num_workers], step, num_workers)
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()


def _start(build: Callable[[int], Built], steps: range, others: list[Connection]) -> _Worker:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_work, args=(build, steps, sender, [receiver, *others]), name="oarlock-batches", daemon=True
    )
    # A Ctrl-C reaches all processes of a terminal. It is the parent's to handle, from before a worker's first line on.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    # The worker now has the only sending end, so that its death ends the pipe.
    sender.close()
    return _Worker(process, receiver)


def _work(build: Callable[[int], Built], steps: Iterable[int], pipe: Connection, receivers: list[Connection]) -> None:
    """What a worker does. It must not hold a receiving end: the parent's death has to break its pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    for receiver in receivers:
        receiver.close()
    torch.set_num_threads(1)
    try:
        for step in steps:
            pipe.send(_attempt(build, step))
    except BrokenPipeError:
        os._exit(1)  # nobody is left to tell


def _attempt(build: Callable[[int], Built], step: int) -> Built | _Failure:
    try:
        return build(step)
    except ValueError as error:
        return _Failure(True, str(error))
    except Exception:
        return _Failure(False, traceback.format_exc())


def _receive(worker: _Worker, step: int, num_workers: int) -> Any:
    try:
        result = worker.pipe.recv()
    except (EOFError, OSError) as error:
        worker.process.join()
        raise RuntimeError(
            f"worker process {worker.process.pid}, which was to build the batch of step {step}, "
            f"{_ending(worker.process.exitcode)}; free some memory or lower batch.workers (now {num_workers}): with 0 "
            "the training process builds its batches itself"
        ) from error
    if isinstance(result, _Failure):
        if result.is_users:
            raise ValueError(result.message)
        raise RuntimeError(f"building the batch of step {step} failed in a worker process:\n{result.message}")
    return result


def _ending(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        name = signal.Signals(-exit_code).name
        return f"was killed by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")
    return f"exited with status {exit_code}"
