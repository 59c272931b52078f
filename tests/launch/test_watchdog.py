"""A process that hangs is ended, and says where."""

import subprocess
import sys

HANGS = """
import time
from oarlock.launch import Watchdog
with Watchdog(0.5) as watchdog:
    for _ in range(4):
        time.sleep(0.2)
        watchdog.alive()
    print("alive", flush=True)
    def in_vain(): time.sleep(60)
    in_vain()
"""
DOES_NOT = """
import time
from oarlock.launch import Watchdog
with Watchdog(0.2): pass
with Watchdog(None): time.sleep(0.5)
print("done")
"""


def test_a_hang_ends_with_where_it_was() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 1
    assert ended.stdout == "alive\n"
    assert "in in_vain" in ended.stderr


def test_who_has_done_is_left_alone() -> None:
    ended = subprocess.run([sys.executable, "-c", DOES_NOT], capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n")
