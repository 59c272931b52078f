"""Checkpoints in the background: order, retention, errors, and a full disk (C45)."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch

from oarlock.state import CheckpointWarning, CheckpointWriter, Snapshot, load_newest, newest_checkpoint, read_checkpoint
from oarlock.state import writer as writer_module
from oarlock.state.checkpoint import CHECKPOINTS, checkpoint_path, complete_checkpoints, step_of, write_checkpoint

SMALL, LARGE = 1_000, 200_000  # numbers of fp32 values


def snapshot(step: int, size: int = SMALL) -> Snapshot:
    weights = {"weight": torch.full((size,), float(step))}
    return Snapshot(step, weights, {"weight": {"exp_avg": torch.ones(size)}}, {"seconds": 1.0}, 0, "digest")


def steps_in(run: Path) -> list[int]:
    return [step_of(path) for path in complete_checkpoints(run)]


def test_saves_return_at_once_and_nothing_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, saved = threading.Event(), threading.Event()

    def slow_write(run: Path, snapshot: Snapshot) -> Path:
        assert may_write.wait(30)
        return write_checkpoint(run, snapshot)

    monkeypatch.setattr(writer_module, "write_checkpoint", slow_write)
    with CheckpointWriter(tmp_path, keep=5) as writer:
        writer.save(snapshot(1))
        assert steps_in(tmp_path) == []  # returned before anything was written

        def second() -> None:
            writer.save(snapshot(2))
            saved.set()

        thread = threading.Thread(target=second)
        thread.start()
        assert not saved.wait(0.2)  # waits for the first
        may_write.set()
        thread.join(30)
        writer.save(snapshot(3))
    assert steps_in(tmp_path) == [1, 2, 3]
    assert writer.last_saved == 3


def test_retention_keeps_the_newest(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, keep=2) as writer:
        for step in (10, 20, 30, 40):
            writer.save(snapshot(step))
        writer.wait()
        assert steps_in(tmp_path) == [30, 40]
    assert sorted(path.name for path in (tmp_path / CHECKPOINTS).iterdir()) == ["step-00000030", "step-00000040"]


def test_retention_never_deletes_the_one_just_written(tmp_path: Path) -> None:
    """After a fall back from a damaged checkpoint, an older step is newer work."""
    write_checkpoint(tmp_path, snapshot(40))
    with CheckpointWriter(tmp_path, keep=1) as writer:
        writer.save(snapshot(10))
        writer.save(snapshot(20))
    assert steps_in(tmp_path) == [20, 40]


def test_nothing_older_is_deleted_before_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, snapshot(1))

    def broken(run: Path, snapshot: Snapshot) -> Path:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(writer_module, "write_checkpoint", broken)
    writer = CheckpointWriter(tmp_path, keep=1)
    writer.save(snapshot(2))
    with pytest.raises(PermissionError):
        writer.wait()
    writer.save(snapshot(3))
    with pytest.raises(PermissionError):
        writer.save(snapshot(4))
    assert steps_in(tmp_path) == [1]
    assert writer.last_saved is None


def test_opening_cleans_up_after_killed_saves(tmp_path: Path) -> None:
    left = checkpoint_path(tmp_path, 7).with_name(".partial-step-00000007")
    left.mkdir(parents=True)
    with CheckpointWriter(tmp_path, keep=1):
        assert not left.exists()


def test_leaving_waits_for_the_last_save_and_lets_an_exception_through(tmp_path: Path) -> None:
    def train() -> None:
        with CheckpointWriter(tmp_path, keep=1) as writer:
            writer.save(snapshot(5, LARGE))
            raise KeyError("of the training")

    with pytest.raises(KeyError, match="of the training"):
        train()
    assert steps_in(tmp_path) == [5]


def test_a_failure_afterwards_is_a_warning_and_the_checkpoint_counts(tmp_path: Path) -> None:
    def publish() -> None:
        raise TimeoutError("the network is down")

    writer = CheckpointWriter(tmp_path, keep=1, after=publish)
    writer.save(snapshot(5))
    with pytest.warns(CheckpointWarning, match=r"step 5 is saved in .* but not published: .*network is down"):
        writer.wait()
    assert writer.last_saved == 5


def save_with_no_room(run: Path, fill: str) -> None:
    """A save that fits, one while the disk is full, and one after room was made."""
    ballast = run / "ballast"
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with CheckpointWriter(run, keep=2) as writer:
        writer.save(snapshot(1))
        writer.wait()

        if fill == "tmpfs":
            ballast.write_bytes(bytes(shutil.disk_usage(run).free - 8192))
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE, resource.RLIM_INFINITY))
        writer.save(snapshot(2, LARGE))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            writer.wait()
        (message,) = [str(warning.message) for warning in caught]
        print(message)
        assert writer.last_saved == 1
        assert [path.name for path in (run / CHECKPOINTS).iterdir()] == ["step-00000001"]
        newest = newest_checkpoint(run)
        assert newest is not None
        assert torch.equal(read_checkpoint(newest).weights["weight"], torch.ones(SMALL))

        ballast.unlink(missing_ok=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        writer.save(snapshot(3, LARGE))
    assert steps_in(run) == [1, 3]


IN_A_SMALL_DISK = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
MOUNT = 'mount -t tmpfs -o size=4m tmpfs "$0"'


@pytest.mark.parametrize("fill", ["rlimit", "tmpfs"])
def test_c45_a_full_disk_leaves_the_older_checkpoint_and_the_run_going(tmp_path: Path, fill: str) -> None:
    """Once with a file system of 4 MB that is really full, where this user may mount one, once by a file size limit."""
    command = [sys.executable, __file__, fill, str(tmp_path)]
    if fill == "tmpfs":
        may_mount = (
            shutil.which("unshare")
            and not subprocess.run([*IN_A_SMALL_DISK, MOUNT, str(tmp_path)], capture_output=True).returncode
        )
        if not may_mount:
            pytest.skip("this user may not mount a file system")
        command = [*IN_A_SMALL_DISK, MOUNT + ' && exec "$@"', str(tmp_path), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    reason = os.strerror(errno.ENOSPC if fill == "tmpfs" else errno.EFBIG)
    assert f"step 2 was not saved ({reason})" in done.stdout
    assert f"it needs {2 * 4 * LARGE:,} bytes in {tmp_path / CHECKPOINTS}" in done.stdout
    assert "the newest one stays step-00000001" in done.stdout


def test_c45_no_room_for_the_marker_leaves_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The very last write fails."""
    from oarlock.state import checkpoint as module

    write_checkpoint(tmp_path, snapshot(1))
    write_bytes = module.write_bytes

    def no_marker(path: Path, content: bytes) -> None:
        if path.name == module.COMPLETE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_bytes(path, content)

    monkeypatch.setattr(module, "write_bytes", no_marker)
    writer = CheckpointWriter(tmp_path, keep=1)
    writer.save(snapshot(2))
    with pytest.warns(CheckpointWarning, match=r"step 2 was not saved \(No space left on device\)"):
        writer.wait()
    assert [path.name for path in (tmp_path / CHECKPOINTS).iterdir()] == ["step-00000001"]
    loaded = load_newest(tmp_path)
    assert loaded is not None
    assert loaded.step == 1


if __name__ == "__main__":
    save_with_no_room(Path(sys.argv[2]), sys.argv[1])
