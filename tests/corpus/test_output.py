"""The output folder: reused, refused, or replaced as a whole."""

import os
from pathlib import Path

import fsspec
import pytest

from oarlock.corpus.output import check_replaceable, finished_report, staged

MANIFEST = '{"format": 1, "fingerprint": "abc"}'


def listing(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def write_and_fail(out: str, error: type[BaseException]) -> None:
    with staged(out) as folder:
        (folder / "manifest.json").write_text(MANIFEST)
        raise error


def test_nothing_is_there_before_all_is(tmp_path: Path) -> None:
    out = tmp_path / "new" / "data"
    with staged(str(out)) as folder:
        (folder / "file").write_text("x")
        assert not out.exists()
    assert listing(tmp_path) == ["new", "new/data", "new/data/file"]


def test_what_was_there_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "data"
    out.mkdir()
    (out / "manifest.json").write_text(MANIFEST)
    with staged(str(out)) as folder:
        (folder / "new").write_text("x")
        assert listing(out) == ["manifest.json"]
    assert listing(tmp_path) == ["data", "data/new"]


def test_a_file_that_came_meanwhile_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "data"

    def write_while_a_file_comes() -> None:
        with staged(str(out)) as folder:
            (folder / "new").write_text("x")
            out.mkdir()
            (out / "notes.txt").write_text("x")

    with pytest.raises(ValueError, match=r"it holds notes\.txt"):
        write_while_a_file_comes()
    assert listing(tmp_path) == ["data", "data/notes.txt"]


def test_what_another_process_begins_when_this_one_has_finished_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one makes its folder at the moment in which this one's has been renamed."""
    aside, rename = tmp_path / ".data.unfinished", Path.rename

    def rename_and_begin(self: Path, target: Path) -> Path:
        done = rename(self, target)
        aside.mkdir()
        (aside / "theirs").write_text("x")
        return done

    with staged(str(tmp_path / "data")) as folder:
        (folder / "ours").write_text("x")
        monkeypatch.setattr(Path, "rename", rename_and_begin)
    assert listing(tmp_path) == [".data.unfinished", ".data.unfinished/theirs", "data", "data/ours"]


def test_a_lock_on_a_folder_that_was_renamed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aside = tmp_path / ".data.unfinished"
    monkeypatch.setattr("fcntl.flock", lambda *args: aside.rename(tmp_path / "data"))
    with pytest.raises(ValueError, match="another process is preparing"), staged(str(tmp_path / "data")):
        pass
    assert listing(tmp_path) == ["data"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    out = tmp_path / "data"
    out.mkdir()
    (out / "old").write_text("x")
    with pytest.raises(error):
        write_and_fail(str(out), error)
    assert listing(tmp_path) == ["data", "data/old"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".data.unfinished"
    (left / "train").mkdir(parents=True)
    (left / "train" / "ids.npy").write_text("half")
    (left / "manifest.json").write_text("half")
    with staged(str(tmp_path / "data")) as folder:
        assert listing(folder) == []
        (folder / "file").write_text("x")
    assert listing(tmp_path) == ["data", "data/file"]


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    out = str(tmp_path / "data")
    with staged(out) as folder:
        (folder / "file").write_text("x")
        with pytest.raises(ValueError, match=r"another process is preparing .*data"), staged(out):
            pass
        assert listing(folder) == ["file"], "the first one's files are left alone"
    assert listing(tmp_path) == ["data", "data/file"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"notes.txt": "x"}, "it holds notes.txt"),
        ({"train/a.txt": "x", "validation/b.txt": "x"}, "it holds train/a.txt"),
        ({"train/ids.npy": "x"}, "it holds train"),
        ({"manifest.json": MANIFEST, ".secret": "x"}, "it holds .secret"),
        ({"manifest.json": MANIFEST, "tokenizer/notes/a.txt": "x"}, "it holds tokenizer/notes"),
        ({"manifest.json": MANIFEST, "train/.git/config": "x"}, "it holds train/.git"),
        ({"manifest.json": MANIFEST, "validation/predictions.npy": "x"}, "it holds validation/predictions.npy"),
        ({"manifest.json": MANIFEST, "thesis.tex": "x"}, "it holds thesis.tex"),
        ({"manifest.json": '{"name": "web app"}'}, "it holds manifest.json"),
    ],
)
def test_what_oarlock_did_not_write_is_not_replaced(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with pytest.raises(ValueError, match=rf"not empty and not a data set of Oarlock's alone \({message}"):
        check_replaceable(str(tmp_path / "data"))


def test_what_may_be_replaced(tmp_path: Path) -> None:
    out = tmp_path / "data"
    check_replaceable(str(out))
    out.mkdir()
    check_replaceable(str(out))
    (out / "manifest.json").write_text(MANIFEST)
    (out / ".DS_Store").write_text("x")
    (out / "train").mkdir()
    (out / "train" / "ids.npy").write_text("x")
    check_replaceable(str(out))


def test_a_file_or_a_mount_point_is_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        check_replaceable(str(tmp_path / "file"))
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    with pytest.raises(ValueError, match="is a mount point"):
        check_replaceable(str(tmp_path))


@pytest.mark.parametrize("name", ["/proc/foo", "file/below", "x" * 300, "~no-such-user/data"])
def test_where_nothing_can_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=f"cannot write to --out {name}: .*give a folder"):
        check_replaceable(name)
    assert listing(tmp_path) == ["file"]


def test_a_report_is_found_by_fingerprint_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(MANIFEST)
    assert finished_report(str(tmp_path), "other") is None
    assert finished_report(str(tmp_path), "abc") is None, "there is no report"
    assert finished_report(str(tmp_path / "nowhere"), "abc") is None


def test_urls() -> None:
    file_system = fsspec.filesystem("memory")
    file_system.pipe("/output-a/train/ids.npy", b"x")
    check_replaceable("memory://output-a")  # an upload that was interrupted
    file_system.pipe("/output-b/notes.txt", b"x")
    with pytest.raises(ValueError, match=r"it holds notes\.txt"):
        check_replaceable("memory://output-b")
    with staged("memory://output-c") as folder:
        (folder / "manifest.json").write_text(MANIFEST)
        assert not file_system.exists("/output-c")
    assert file_system.cat("/output-c/manifest.json") == MANIFEST.encode()
    with pytest.raises(KeyboardInterrupt):
        write_and_fail("memory://output-d", KeyboardInterrupt)
    assert not file_system.exists("/output-d")
