"""All that is needed to stop and resume: snapshots, crash-safe checkpoints, and the run folder that holds them."""

from oarlock.state.checkpoint import CheckpointWarning, load_newest, newest_checkpoint, read_checkpoint
from oarlock.state.digest import trajectory_digest
from oarlock.state.lock import lock_run
from oarlock.state.names import plain_name
from oarlock.state.optimizers import load_optimizer_state, optimizer_state
from oarlock.state.remote import RunFolder, open_run
from oarlock.state.resume import claim_run, resume
from oarlock.state.snapshot import Snapshot, restore, take_snapshot
from oarlock.state.trained import Trained, load_trained
from oarlock.state.use import Evaluated, evaluate_trained, export_run, fill_mask_with
from oarlock.state.writer import CheckpointWriter

__all__ = [
    "CheckpointWarning",
    "CheckpointWriter",
    "Evaluated",
    "RunFolder",
    "Snapshot",
    "Trained",
    "claim_run",
    "evaluate_trained",
    "export_run",
    "fill_mask_with",
    "load_newest",
    "load_optimizer_state",
    "load_trained",
    "lock_run",
    "newest_checkpoint",
    "open_run",
    "optimizer_state",
    "plain_name",
    "read_checkpoint",
    "restore",
    "resume",
    "take_snapshot",
    "trajectory_digest",
]
