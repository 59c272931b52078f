"""Checkpoints on disk: exact, verified, and never half of one (C44)."""

import io
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from oarlock.state import CheckpointWarning, Snapshot, load_newest, newest_checkpoint, read_checkpoint
from oarlock.state.checkpoint import (
    CHECKSUMS,
    COMPLETE,
    MODEL,
    OPTIMIZER,
    STATE,
    checkpoint_path,
    clean_up,
    complete_checkpoints,
    write_checkpoint,
)
from oarlock.state.files import checksum

FILES = [MODEL, OPTIMIZER, STATE, CHECKSUMS, COMPLETE]


def snapshot(step: int, digest: str = "d") -> Snapshot:
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(6, 5, generator=generator)
    weight[0, :4] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    moments = {"step": torch.tensor(float(step)), "exp_avg": torch.randn(6, 5, generator=generator)}
    return Snapshot(
        step=step,
        weights={"encoder.layers.0.weight": weight, "bias": torch.randn(3, generator=generator)},
        optimizer={"encoder.layers.0.weight": moments, "bias": {"step": torch.tensor(float(step))}},
        progress={"useful_tokens": 2.0**53, "seconds": 0.1 + 0.2},
        seed=2**63 - 1,
        config_digest=digest,
    )


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


def test_round_trip_is_exact_bit_for_bit(tmp_path: Path) -> None:
    wrote = snapshot(500)
    path = write_checkpoint(tmp_path, wrote)
    assert path == tmp_path / "checkpoints" / "step-00000500"
    assert sorted(file.name for file in path.iterdir()) == sorted(FILES)
    assert [file.name for file in path.parent.iterdir()] == [path.name]

    read = read_checkpoint(path)
    assert (read.step, read.seed, read.config_digest, read.progress) == (500, 2**63 - 1, "d", wrote.progress)
    assert read.weights.keys() == wrote.weights.keys()
    assert all(same(read.weights[name], wrote.weights[name]) for name in wrote.weights)
    assert {(name, key) for name, state in read.optimizer.items() for key in state} == {
        ("encoder.layers.0.weight", "step"),
        ("encoder.layers.0.weight", "exp_avg"),
        ("bias", "step"),
    }
    assert all(same(read.optimizer[n][k], wrote.optimizer[n][k]) for n, s in wrote.optimizer.items() for k in s)


def test_a_run_that_has_not_stepped_has_no_optimizer_state(tmp_path: Path) -> None:
    empty = Snapshot(0, {"w": torch.zeros(2)}, {}, {}, 0, "")
    assert read_checkpoint(write_checkpoint(tmp_path, empty)).optimizer == {}


def test_state_file_is_readable_by_a_person(tmp_path: Path) -> None:
    state = json.loads((write_checkpoint(tmp_path, snapshot(7)) / STATE).read_text())
    assert state["step"] == 7
    assert state["format"] == 1
    assert state["torch"] == torch.__version__
    assert set(state) == {"format", "step", "seed", "progress", "config_digest", "oarlock", "torch"}


def test_files_can_be_read_by_whoever_can_read_the_folder(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, snapshot(7))
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {path.stat().st_mode & 0o666}


def test_the_newest_complete_one_is_taken(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    assert load_newest(tmp_path) is None
    for step in (9, 100_000_000, 20):
        write_checkpoint(tmp_path, snapshot(step))
    (checkpoint_path(tmp_path, 300_000_000)).mkdir()  # killed between the renaming and the marking
    assert [path.name for path in complete_checkpoints(tmp_path)] == [
        "step-00000009",
        "step-00000020",
        "step-100000000",
    ]
    assert newest_checkpoint(tmp_path) == checkpoint_path(tmp_path, 100_000_000)
    loaded = load_newest(tmp_path)
    assert loaded is not None
    assert loaded.step == 100_000_000


def test_clean_up_takes_only_half_written_ones(tmp_path: Path) -> None:
    kept = write_checkpoint(tmp_path, snapshot(5))
    unmarked = write_checkpoint(tmp_path, snapshot(6))
    (unmarked / COMPLETE).unlink()
    partial = kept.with_name(".partial-step-00000007")
    partial.mkdir()
    (partial / MODEL).write_bytes(b"half")
    of_the_user = kept.with_name("notes")
    of_the_user.mkdir()
    clean_up(tmp_path)
    assert sorted(path.name for path in kept.parent.iterdir()) == ["notes", "step-00000005"]


@pytest.mark.parametrize("name", FILES)
def test_c44_each_bit_of_damage_is_reported_by_the_file_name(tmp_path: Path, name: str) -> None:
    path = write_checkpoint(tmp_path, snapshot(5))
    whole = (path / name).read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        for bit in (0, 7):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            (path / name).write_bytes(flipped)
            with pytest.raises(ValueError, match=name.replace(".", r"\.")):
                read_checkpoint(path)
    (path / name).write_bytes(whole)
    assert read_checkpoint(path).step == 5


@pytest.mark.parametrize("name", FILES)
def test_c44_a_truncated_or_missing_file_is_reported_by_name(tmp_path: Path, name: str) -> None:
    path = write_checkpoint(tmp_path, snapshot(5))
    whole = (path / name).read_bytes()
    for size in (0, len(whole) // 2, len(whole) - 1):
        (path / name).write_bytes(whole[:size])
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            read_checkpoint(path)
    (path / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing".replace(".", r"\.")):
        read_checkpoint(path)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (os.environ["OARLOCK_TEST_BOMB"],)


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER, STATE])
def test_c44_nothing_in_a_checkpoint_executes(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle, with every checksum made to agree, is refused as what it is not."""
    mark = tmp_path / "executed"
    monkeypatch.setenv("OARLOCK_TEST_BOMB", str(mark))
    path = write_checkpoint(tmp_path, snapshot(5))
    torch.save(Bomb(), path / name, pickle_module=pickle)
    sums = json.loads((path / CHECKSUMS).read_text())
    sums["files"][name] = {"size": (path / name).stat().st_size, "xxh3_128": checksum(path / name)}
    (path / CHECKSUMS).write_text(json.dumps(sums))
    (path / COMPLETE).write_text(checksum(path / CHECKSUMS))
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        read_checkpoint(path)
    assert not mark.exists()
    torch.load(io.BytesIO((path / name).read_bytes()), weights_only=False)
    assert mark.exists(), "the pickle of this test is harmless, so the test shows nothing"


def test_c44_a_damaged_newest_is_named_and_the_one_before_is_taken(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, snapshot(step))
    for step in (2, 3):
        file = checkpoint_path(tmp_path, step) / OPTIMIZER
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(CheckpointWarning, match=r"optimizer\.safetensors") as warned:
        loaded = load_newest(tmp_path)
    assert loaded is not None
    assert loaded.step == 1
    assert ["step-00000003" in str(w.message) for w in warned] == [True, False]

    shutil.rmtree(checkpoint_path(tmp_path, 1))
    with (
        pytest.warns(CheckpointWarning),
        pytest.raises(ValueError, match=r"no checkpoint .*step-00000003/optimizer\.safetensors.* start anew"),
    ):
        load_newest(tmp_path)


def test_a_future_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, snapshot(5))
    state = json.loads((path / STATE).read_text())
    (path / STATE).write_text(json.dumps({**state, "format": 2}))
    sums = json.loads((path / CHECKSUMS).read_text())
    sums["files"][STATE] = {"size": (path / STATE).stat().st_size, "xxh3_128": checksum(path / STATE)}
    (path / CHECKSUMS).write_text(json.dumps(sums))
    (path / COMPLETE).write_text(checksum(path / CHECKSUMS))
    with pytest.raises(ValueError, match=r"state\.json has format 2, but .* reads 1"):
        read_checkpoint(path)


def test_an_intact_checkpoint_of_the_same_step_is_kept_and_any_other_replaced(tmp_path: Path) -> None:
    """A run that is resumed and stopped at once saves the step that it started from."""
    path = write_checkpoint(tmp_path, snapshot(5))
    before = (path / MODEL).stat().st_ino
    write_checkpoint(tmp_path, snapshot(5))
    assert (path / MODEL).stat().st_ino == before

    (path / MODEL).write_bytes(b"damaged")
    write_checkpoint(tmp_path, snapshot(5))
    assert read_checkpoint(path).config_digest == "d"

    write_checkpoint(tmp_path, snapshot(5, digest="of another configuration"))
    assert read_checkpoint(path).config_digest == "of another configuration"
    assert [file.name for file in path.parent.iterdir()] == [path.name]
