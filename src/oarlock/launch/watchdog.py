"""Noticing that a process hangs: one of several waits for the others, and no error comes."""

import faulthandler
from types import TracebackType
from typing import Self


class Watchdog:
    """While this context is open, a process that is not `alive` for so many seconds ends, with exit code 1.

    First it prints what each of its threads is at, so that the log of every process tells where all of them hang. With
    None nothing is watched.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def alive(self) -> None:
        """The time begins anew."""
        if self._seconds is not None:
            faulthandler.dump_traceback_later(self._seconds, exit=True)

    def __enter__(self) -> Self:
        self.alive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._seconds is not None:
            faulthandler.cancel_dump_traceback_later()
