"""C42: SIGKILL at any moment of a save."""

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch

from oarlock.state import CheckpointWarning, CheckpointWriter, Snapshot, load_newest, newest_checkpoint
from oarlock.state.checkpoint import CHECKPOINTS, COMPLETE, complete_checkpoints, step_of

KILLS = 50
LONGEST_WAIT = 0.02  # seconds from the start of a save
KEEP = 2


def snapshot(step: int) -> Snapshot:
    """Every value follows from the step, so that a mixture of two checkpoints is noticed."""
    weights = {f"layers.{i}.weight": torch.full((64, 64), float(step * 10 + i)) for i in range(6)}
    optimizer = {name: {"step": torch.tensor(float(step)), "exp_avg": -weight} for name, weight in weights.items()}
    return Snapshot(step, weights, optimizer, {"seconds": float(step)}, 0, "digest")


def save_for_ever(run: Path, pipe: int) -> None:
    """Save step after step, and say of each one that is complete, just before the next is begun."""
    newest = newest_checkpoint(run)
    first = step_of(newest) + 1 if newest else 1
    with CheckpointWriter(run, KEEP) as writer:
        for step in range(first, first + 1_000_000):
            writer.wait()
            if writer.last_saved is not None:
                os.write(pipe, b"%d\n" % writer.last_saved)
            writer.save(snapshot(step))


def start_child(run: Path) -> tuple[int, int]:
    """Fork a process that saves; its id, and the pipe from which to hear of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save_for_ever(run, writing)
        finally:
            os._exit(1)
    os.close(writing)
    return child, reading


def kill_saves(run: Path) -> None:
    """Kill a saving process 50 times, each going on where the one before was killed; look at the folder after each."""
    torch.set_num_threads(1)
    warnings.simplefilter("error", CheckpointWarning)  # a damaged checkpoint among the complete ones is a failure
    moments = random.Random(42)
    half_written = 0
    for _ in range(KILLS):
        child, reading = start_child(run)
        heard = os.read(reading, 100)  # a first save is complete, the next one starts now
        time.sleep(moments.uniform(0.0, LONGEST_WAIT))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(reading, 1000):
            heard += more
        os.close(reading)
        acknowledged = int(heard.split()[-1])

        folders = {path for path in (run / CHECKPOINTS).iterdir() if path.is_dir()}
        half_written += any(not (path / COMPLETE).is_file() for path in folders)
        loaded = load_newest(run)
        assert loaded is not None
        assert loaded.step >= acknowledged
        expected = snapshot(loaded.step)
        assert loaded.weights.keys() == expected.weights.keys()
        for name, weight in expected.weights.items():
            assert torch.equal(loaded.weights[name], weight)
            assert torch.equal(loaded.optimizer[name]["exp_avg"], expected.optimizer[name]["exp_avg"])
            assert torch.equal(loaded.optimizer[name]["step"], expected.optimizer[name]["step"])

    with CheckpointWriter(run, KEEP):
        left = {path.name for path in (run / CHECKPOINTS).iterdir()}
    assert left == {path.name for path in complete_checkpoints(run)}
    assert half_written >= KILLS // 5, f"only {half_written} of {KILLS} kills fell into a save"
    print(f"{half_written} of {KILLS} kills left something half-written")


def test_c42_killed_at_fifty_random_moments_of_a_save(tmp_path: Path) -> None:
    """In a process of its own, which forks: pytest's has threads."""
    done = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "kills left something half-written" in done.stdout


if __name__ == "__main__":
    kill_saves(Path(sys.argv[1]))
