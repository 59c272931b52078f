"""Settings of a process that computes, made before torch is loaded."""

import ctypes
import os
import signal
import sys

_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1  # of mallopt(3)
_PR_SET_PDEATHSIG = 1  # of prctl(2)
_KEEP_UP_TO = 1 << 30  # bytes


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends, however that ends: nobody else would stop it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def prepare_process() -> None:
    """Have OpenMP's threads wait without spinning for long, and glibc keep what is freed for the next step.

    Beside another program, threads that spin for long make a step 30 times as long. And memory of more than 32 MB goes
    back to the system as soon as it is freed, so that each step gets its activations anew, zeroed page by page: a
    product of 8,192 tokens takes twice the time. What a user has set in the environment stays.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    if sys.platform == "linux" and not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _KEEP_UP_TO)
            mallopt(_M_TRIM_THRESHOLD, _KEEP_UP_TO)
