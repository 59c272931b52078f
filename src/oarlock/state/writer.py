"""Checkpoints written while the training goes on."""

import errno
import os
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from oarlock.state.checkpoint import (
    CHECKPOINTS,
    COMPLETE,
    CheckpointWarning,
    clean_up,
    complete_checkpoints,
    newest_checkpoint,
    step_of,
    write_checkpoint,
)
from oarlock.state.files import remove
from oarlock.state.snapshot import Snapshot

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def _nothing() -> None:
    pass


class CheckpointWriter:
    """Writes checkpoints into the run folder `run` in a background thread, and keeps the `keep` newest complete ones.

    To open it cleans up after killed saves, so hold the run's lock; not where it is not the `first` of its run's
    processes, which all write their parts. Leaving its context waits for the last save.
    `after` is called in the background after each completed save (to publish it, say).

    A full disk (ENOSPC, EDQUOT, EFBIG) and an `after` that fails are a `CheckpointWarning` at the next call, and the
    run may go on; what else goes wrong in the background is raised there.
    """

    def __init__(self, run: Path, keep: int, after: Callable[[], None] = _nothing, first: bool = True) -> None:
        self._run, self._keep, self._after = run, keep, after
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self.last_saved: int | None = None
        """Step of the last snapshot that was saved completely."""
        if first:
            clean_up(run)

    def save(self, snapshot: Snapshot) -> None:
        """Start to write `snapshot` and return; waits only while an earlier one is still being written."""
        self.wait()
        self._pending = self._pool.submit(self._write, snapshot)

    def wait(self) -> None:
        """Return when nothing is being written any more. Raises what went wrong in the background."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except _Postponed as postponed:
            warnings.warn(str(postponed), CheckpointWarning, stacklevel=2)

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    def _write(self, snapshot: Snapshot) -> None:
        try:
            write_checkpoint(self._run, snapshot)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise _Postponed(self._no_room(snapshot, error)) from error
        self.last_saved = snapshot.step
        if snapshot.part.number > 0:
            return
        older = [path for path in complete_checkpoints(self._run) if step_of(path) <= snapshot.step]
        for path in older[: -self._keep]:
            remove(path, COMPLETE)
        try:
            self._after()
        except Exception as error:
            message = f"the checkpoint of step {snapshot.step} is saved in {self._run}, but not published: {error!r}"
            raise _Postponed(f"{message}. The next save tries again.") from error

    def _no_room(self, snapshot: Snapshot, error: OSError) -> str:
        newest = newest_checkpoint(self._run)
        kept = f"the newest one stays {newest.name}" if newest else "there is none yet"
        free = shutil.disk_usage(self._run).free
        return (
            f"the checkpoint of step {snapshot.step} was not saved ({os.strerror(error.errno or 0)}): it needs "
            f"{snapshot.num_bytes:,} bytes in {self._run / CHECKPOINTS}, {free:,} are free; {kept}. Make room or lower "
            "checkpoint.keep; the training goes on, and the next save tries again."
        )


class _Postponed(Exception):
    """A save that failed in a way that the next one may not."""
