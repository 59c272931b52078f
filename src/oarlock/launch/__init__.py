"""Starting, watching and stopping a job."""

from oarlock.launch.interrupt import Interrupt
from oarlock.launch.process import prepare_process

__all__ = ["Interrupt", "prepare_process"]
