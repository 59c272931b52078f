"""What a process sets before it computes."""

import os
import resource
import subprocess
import sys

import pytest

FREE_AND_TAKE = """
import resource, sys
from oarlock.launch import prepare_process
if "as it comes" not in sys.argv:
    prepare_process()
import torch
for _ in range(15):  # holes between blocks fill up
    torch.ones(64 << 20, dtype=torch.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(64 << 20, dtype=torch.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*arguments: str, **environment: str) -> int:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FREE_AND_TAKE, *arguments]
    ended = subprocess.run(command, env=clean | environment, check=True, capture_output=True, text=True)
    return int(ended.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_memory_is_used_again() -> None:
    pages = (64 << 20) // resource.getpagesize()
    assert page_faults() < pages
    assert page_faults("as it comes") > 10 * pages, "the system would not take memory back; this test could not fail"


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_a_users_own_setting_stays() -> None:
    pages = (64 << 20) // resource.getpagesize()
    assert page_faults(MALLOC_MMAP_THRESHOLD_="65536") > 10 * pages
