"""Folders by URL, on fsspec's in-memory file system and on file://."""

import uuid
from pathlib import Path

import fsspec
import pytest

from oarlock.config.folders import fetch, is_url, publish


@pytest.fixture
def url(tmp_path, monkeypatch):
    """A fresh address in memory://, with the cache in the test's own folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"memory://{uuid.uuid4().hex}/data"


@pytest.fixture
def folder(tmp_path):
    local = tmp_path / "local"
    (local / "train").mkdir(parents=True)
    (local / "manifest.json").write_text("{}")
    (local / "train" / "ids.npy").write_bytes(b"ids")
    (local / "zz.txt").write_text("last by name, not by rank")
    return local


def contents(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def downloads(monkeypatch) -> list[str]:
    """Names of the remote files that are read from here on."""
    read: list[str] = []
    memory = fsspec.filesystem("memory")
    get_file = type(memory).get_file

    def record(self, remote, local, **kwargs):
        read.append(remote.rpartition("/")[2])
        return get_file(self, remote, local, **kwargs)

    monkeypatch.setattr(type(memory), "get_file", record)
    return read


def test_is_url():
    assert all(map(is_url, ["s3://bucket/x", "memory://x", "file:///x", "git+ssh://x"]))
    assert not any(map(is_url, ["/data/x", "data", "C:\\data", "a b://c", "./s3:/x", ""]))


def test_local_paths_are_returned_as_they_are(tmp_path):
    assert fetch(str(tmp_path)) == tmp_path
    assert fetch(f"file://{tmp_path}") == tmp_path
    assert fetch("relative/folder") == Path("relative/folder")


def test_published_folder_comes_back_equal(url, folder):
    publish(folder, url, last="manifest.json")
    mirrored = fetch(url)
    assert mirrored.name == "data"
    assert contents(mirrored) == contents(folder)


def test_single_file(url, folder):
    publish(folder, url, last="manifest.json")
    assert fetch(f"{url}/train/ids.npy").read_bytes() == b"ids"
    assert fetch(f"{url}/train/ids.npy").name == "ids.npy"


def test_only_what_changed_is_downloaded_again(url, folder, monkeypatch):
    publish(folder, url, last="manifest.json")
    mirrored = fetch(url)
    read = downloads(monkeypatch)
    assert fetch(url + "/") == mirrored
    assert read == []

    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"{url}/train/ids.npy", b"sdi")  # same size: told by its time alone
    memory.rm_file(f"{url}/zz.txt")
    fetch(url)
    assert read == ["ids.npy"]
    assert contents(mirrored) == {"manifest.json": b"{}", "train/ids.npy": b"sdi"}


def test_a_file_lost_from_the_cache_is_fetched_again(url, folder):
    publish(folder, url, last="manifest.json")
    (fetch(url) / "zz.txt").unlink()
    assert contents(fetch(url)) == contents(folder)


def test_failed_download_leaves_nothing_that_looks_whole(url, folder, monkeypatch):
    publish(folder, url, last="manifest.json")

    def half(self, remote, local, **kwargs):
        Path(local).write_bytes(b"i")
        raise OSError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(type(fsspec.filesystem("memory")), "get_file", half)
        with pytest.raises(OSError, match="connection lost"):
            fetch(url)
    assert contents(fetch(url)) == contents(folder)


def test_last_is_uploaded_at_the_end_and_an_older_one_removed_first(url, folder, monkeypatch):
    publish(folder, url, last="manifest.json")
    memory = fsspec.filesystem("memory")
    put_file = type(memory).put_file
    seen: list[tuple[str, bool]] = []

    def record(self, local, remote, **kwargs):
        seen.append((Path(local).name, self.exists(f"{url}/manifest.json")))
        return put_file(self, local, remote, **kwargs)

    monkeypatch.setattr(type(memory), "put_file", record)
    publish(folder, url, last="manifest.json")
    assert seen == [("ids.npy", False), ("zz.txt", False), ("manifest.json", False)]
    assert memory.exists(f"{url}/manifest.json")


def test_publish_to_file_url(folder, tmp_path):
    publish(folder, f"file://{tmp_path}/out/deep", last="manifest.json")
    assert contents(fetch(f"file://{tmp_path}/out/deep")) == contents(folder)


def test_unfinished_folder_is_not_published(url, folder):
    with pytest.raises(ValueError, match=r"no missing\.json"):
        publish(folder, url, last="missing.json")
    with pytest.raises(ValueError, match="nothing at"):
        fetch(url)


def test_unknown_protocol_is_named():
    with pytest.raises(ValueError, match="nonsense"):
        fetch("nonsense://x/y")
