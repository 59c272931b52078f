"""A `prepare` that is stopped at any moment leaves nothing that looks finished; its memory is bounded."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oarlock.corpus import DataReport, open_dataset

Preparing = Callable[..., DataReport]

SCRIPT = """
import json, pathlib, re, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits it ignored
from oarlock.corpus import PrepareConfig, prepare

def tell(progress):
    print(progress.phase, progress.bytes_done, flush=True)

prepare(PrepareConfig(**json.loads(sys.argv[1])), tell)
print("peak", re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
"""


def start(**options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCRIPT, json.dumps(options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_children(pid: int) -> list[int]:
    end = time.monotonic() + 20
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        assert time.monotonic() < end, "no worker was started"
        time.sleep(0.01)
    return list(map(int, found))


def wait_for_end(pids: list[int]) -> None:
    end = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end, "processes are left"
        time.sleep(0.05)


@pytest.fixture
def large(tmp_path: Path, some_text: str) -> Path:
    path = tmp_path / "texts" / "large.txt"
    path.parent.mkdir()
    path.write_text(some_text * 150)
    return path


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("phase", ["training the tokenizer", "tokenizing"])
def test_stopped(
    prepared: Preparing, tmp_path: Path, large: Path, folders: dict[str, Path], how: signal.Signals, phase: str
) -> None:
    own = {"tokenizer": str(folders["wordpiece"])} if phase == "tokenizing" else {"vocab_size": 2000}
    options = {"inputs": [str(large)], "out": str(tmp_path / "data"), "workers": 2, **own}
    process = start(**options)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(phase):
            break
    pids = wait_for_children(process.pid)
    process.send_signal(how)
    process.communicate(timeout=20)
    assert process.returncode != 0
    wait_for_end(pids)

    assert not (tmp_path / "data").exists()
    with pytest.raises(ValueError, match="no data set"):
        open_dataset(str(tmp_path / "data"))
    left = [path.name for path in tmp_path.iterdir() if path.name != "texts"]
    assert left == ([] if how == signal.SIGINT else [".data.unfinished"])

    prepared(large.read_text()[:50_000])
    assert len(open_dataset(str(tmp_path / "data")).train) > 100
    assert not (tmp_path / ".data.unfinished").exists()


def test_a_data_set_stays_when_its_replacement_is_stopped(
    prepared: Preparing, tmp_path: Path, large: Path, folders: dict[str, Path]
) -> None:
    report = prepared(large.read_text()[:50_000])
    process = start(inputs=[str(large)], out=str(tmp_path / "data"), tokenizer=str(folders["wordpiece"]), workers=1)
    assert process.stdout is not None
    assert any(line.startswith("tokenizing") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert open_dataset(str(tmp_path / "data")).manifest.train == report.train


def peak_megabytes(**options: object) -> int:
    process = start(**options)
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return int(output.split("peak ")[1]) // 1024


@pytest.mark.parametrize("documents", ["line", "file"])
def test_memory_does_not_grow_with_a_document(
    tmp_path: Path, folders: dict[str, Path], documents: str, some_text: str
) -> None:
    """Of one process that does all the work. Encoded at once, the larger document would take 500 MB more."""
    peaks = []
    for size in (1_000_000, 6_000_000):
        folder = tmp_path / str(size)
        folder.mkdir()
        text = some_text.replace("\n", " ")
        (folder / "a.txt").write_text(text * (size // len(text)))
        (folder / "b.txt").write_text("ba bo")
        run = {"inputs": [str(folder)], "out": str(tmp_path / f"data{size}"), "documents": documents, "workers": 0}
        peaks.append(peak_megabytes(**run, tokenizer=str(folders["bpe"])))
    assert peaks[1] < peaks[0] + 50
    assert peaks[1] < 400
