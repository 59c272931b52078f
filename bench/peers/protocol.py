"""How a contestant and the driver talk: lines of JSON, one answer a command. Imports nothing that must be installed.

A contestant first says that it is ready; then each line `step` makes it do one optimizer step, and `memory` makes it
tell what that took. It ends when its input does.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEARNING_RATE = 1e-5


def serve(about: dict[str, Any], step: Callable[[], float]) -> None:
    """Answer commands; `about` goes out with the first answer, `step` does one step and returns its loss."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer

    def answer(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=answers, flush=True)

    forget_peak_memory()
    before = memory("VmRSS")
    answer(about)
    for line in sys.stdin:
        if line.strip() == "memory":
            answer({"before": before, "peak": memory("VmHWM")})
        else:
            start = time.perf_counter()
            loss = step()
            answer({"seconds": time.perf_counter() - start, "loss": loss})


def forget_peak_memory() -> None:
    """From now on `VmHWM` is the largest resident memory since now."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(name: str) -> int:
    """A figure of this process in bytes: `VmRSS` is its resident memory, `VmHWM` the peak of it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
