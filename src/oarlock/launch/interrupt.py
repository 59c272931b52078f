"""Ctrl-C: once to stop after the step, twice to stop at once."""

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self


class Interrupt:
    """While this context is open, the first SIGINT or SIGTERM only sets `requested`; a second ends the process at once.

    `announce` is called with the signal's name at the first. Outside the main thread, where Python allows no signal
    handlers, nothing is changed.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.requested = False
        self._announce = announce
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        for number in self.SIGNALS:
            try:
                self._before[number] = signal.signal(number, self._handle)
            except ValueError:
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            os._exit(128 + number)
        self.requested = True
        self._announce(signal.Signals(number).name)
