"""A run folder given by URL, with fsspec's memory file system as the far side."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import torch

from oarlock.state import CheckpointWriter, Snapshot, load_newest, open_run
from oarlock.state.checkpoint import COMPLETE, complete_checkpoints, step_of

URL = "memory://runs/one"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    files = fsspec.filesystem("memory")
    if files.exists("/runs"):
        files.rm("/runs", recursive=True)


def snapshot(step: int) -> Snapshot:
    return Snapshot(step, {"weight": torch.full((9,), float(step))}, {}, {"seconds": 1.0}, 0, "digest")


def save(steps: list[int], keep: int = 2, url: str = URL) -> None:
    with open_run(url) as run, CheckpointWriter(run.local, keep, after=run.publish) as writer:
        for step in steps:
            (run.local / "metrics.jsonl").write_text(f"up to {step}\n")
            (run.local / "tensorboard").mkdir(exist_ok=True)
            (run.local / "tensorboard" / "events").write_text(str(step))
            writer.save(snapshot(step))
            writer.wait()


def there() -> set[str]:
    return {path.removeprefix("/runs/one/") for path in fsspec.filesystem("memory").find("/runs/one")}


def on_another_machine(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "cache")


def test_a_local_folder_is_used_where_it_is(tmp_path: Path) -> None:
    for out in (str(tmp_path / "a"), f"file://{tmp_path}/a"):
        with open_run(out) as run:
            assert run.local == tmp_path / "a"
            assert run.url is None
            run.publish()
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["lock"]


def test_checkpoints_and_small_files_are_published_and_old_ones_removed() -> None:
    save([10, 20, 30])
    files = {"model.safetensors", "optimizer.safetensors", "state.json", "checksums.json", COMPLETE}
    kept = {f"checkpoints/step-{step:08d}/{file}" for step in (20, 30) for file in files}
    fsspec.filesystem("memory").pipe_file("/runs/one/checkpoints/step-00000025/model.safetensors", b"half")
    with open_run(URL) as run:
        run.publish()
    assert there() == kept | {"metrics.jsonl", "tensorboard/events"}


def test_a_run_goes_on_where_it_was_on_this_and_on_another_machine(tmp_path: Path) -> None:
    for machine, step in enumerate((10, 20, 30)):
        if machine == 2:
            on_another_machine(tmp_path)
        save([step])
        with open_run(URL) as run:
            loaded = load_newest(run.local)
            assert loaded is not None
            assert loaded.step == step
            assert torch.equal(loaded.weights["weight"], torch.full((9,), float(step)))


def test_resuming_elsewhere_brings_the_newest_complete_checkpoint_and_the_small_files(tmp_path: Path) -> None:
    save([10, 20])
    fsspec.filesystem("memory").pipe_file("/runs/one/checkpoints/step-00000030/model.safetensors", b"half")
    on_another_machine(tmp_path)
    with open_run(URL) as run:
        assert [step_of(path) for path in complete_checkpoints(run.local)] == [20]
        assert (run.local / "metrics.jsonl").read_text() == "up to 20\n"
        assert (run.local / "tensorboard" / "events").read_text() == "20"


def test_a_newer_checkpoint_at_the_url_wins_over_the_mirror(tmp_path: Path) -> None:
    save([10])
    (tmp_path / "cache").rename(tmp_path / "first machine")
    save([20, 30])
    on_another_machine(tmp_path)
    (tmp_path / "first machine").rename(tmp_path / "cache")
    with open_run(URL) as run:
        loaded = load_newest(run.local)
        assert loaded is not None
        assert loaded.step == 30
        assert (run.local / "metrics.jsonl").read_text() == "up to 30\n"


def test_a_checkpoint_that_was_not_published_is_not_lost() -> None:
    save([10])
    with open_run(URL) as run, CheckpointWriter(run.local, 2) as writer:
        writer.save(snapshot(20))
    with open_run(URL) as run:
        loaded = load_newest(run.local)
        assert loaded is not None
        assert loaded.step == 20
        run.publish()
    assert f"checkpoints/step-00000020/{COMPLETE}" in there()


def test_a_run_removed_at_the_url_starts_anew() -> None:
    save([10])
    fsspec.filesystem("memory").rm("/runs/one", recursive=True)
    with open_run(URL) as run:
        assert load_newest(run.local) is None
        assert [path.name for path in run.local.iterdir()] == ["lock"]


def test_a_replaced_checkpoint_is_published_again() -> None:
    save([10])
    changed = Snapshot(10, {"weight": torch.zeros(9)}, {}, {}, 0, "another digest")
    with open_run(URL) as run, CheckpointWriter(run.local, 2, after=run.publish) as writer:
        writer.save(changed)
        writer.wait()
        here = (run.local / "checkpoints/step-00000010" / COMPLETE).read_bytes()
    assert fsspec.filesystem("memory").cat_file(f"/runs/one/checkpoints/step-00000010/{COMPLETE}") == here


def test_the_marker_is_the_last_to_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(fsspec.filesystem("memory"))  # each thread has an instance of its own
    put_file, arrived = kind.put_file, []

    def watch(self: object, local: str, remote: str, **options: object) -> None:
        arrived.append(remote)
        put_file(self, local, remote, **options)

    monkeypatch.setattr(kind, "put_file", watch)
    save([10])
    of_checkpoint = [path for path in arrived if "step-00000010" in path]
    assert len(of_checkpoint) == 5
    assert of_checkpoint[-1].endswith(COMPLETE)


def test_one_process_at_a_time_on_this_machine() -> None:
    with open_run(URL), pytest.raises(ValueError, match="in use by process"), open_run(URL):
        pass


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="nosuch"), open_run("nosuch://bucket/run"):
        pass
