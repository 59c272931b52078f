"""Starting, watching and stopping a job."""

from oarlock.launch.interrupt import Interrupt

__all__ = ["Interrupt"]
