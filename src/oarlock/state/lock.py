"""One process at a time trains into a run folder."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "lock"
_held: set[int] = set()


def _let_go_in_child() -> None:
    """A forked worker shares its parent's lock; it must not keep it alive when the parent is killed."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


@contextmanager
def lock_run(run: Path) -> Iterator[None]:
    """Hold the run folder `run` (made where it does not exist) for this process.

    The kernel drops the lock when the process ends, however it ends. Raises ValueError that names the process which
    holds it.
    """
    run.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(run / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
            raise ValueError(
                f"{run} is in use by {holder}, which trains into it: stop that one first, or choose another --out"
            ) from None
        _held.add(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        _held.discard(descriptor)
        os.close(descriptor)
