"""Starting, watching and stopping a job."""

from oarlock.launch.interrupt import Interrupt
from oarlock.launch.job import run_job
from oarlock.launch.process import end_with_parent, prepare_process
from oarlock.launch.watchdog import Watchdog

__all__ = ["Interrupt", "Watchdog", "end_with_parent", "prepare_process", "run_job"]
