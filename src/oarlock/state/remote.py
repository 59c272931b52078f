"""A run whose folder is a URL: it works in a local mirror, and what it completes is published.

The URL is the truth: where nothing is there, the mirror starts empty; where a newer checkpoint is there, it is fetched.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fsspec.core import url_to_fs

from oarlock.config.folders import LOCAL_SCHEMES, fetch, is_url, publish
from oarlock.state.checkpoint import (
    CHECKPOINTS,
    COMPLETE,
    NAME,
    checkpoint_path,
    complete_checkpoints,
    newest_checkpoint,
    step_of,
)
from oarlock.state.lock import LOCK, lock_run


@dataclass(frozen=True)
class RunFolder:
    """Where a run works, and where that is published."""

    local: Path
    url: str | None
    """None where the run's folder is local."""

    def publish(self) -> None:
        """Make the URL hold what `local` holds: complete checkpoints, each one's COMPLETE last, and all other files.

        Checkpoints that are no longer kept here are removed there. Does nothing for a local folder.
        """
        if self.url is not None:
            _publish(self.local, self.url)


@contextmanager
def open_run(out: str, first: bool = True) -> Iterator[RunFolder]:
    """Open the run folder `out`, a path or a URL, for this process alone on this machine; or, where it is not the
    `first` of its run, beside that one.

    Raises ValueError where another process of this machine holds it, or where a URL's protocol is unknown. Two machines
    that train into one URL are not noticed.
    """
    if not is_url(out) or out.startswith(LOCAL_SCHEMES):
        folder = RunFolder(fetch(out), None)
    else:
        folder = RunFolder(_mirror(out), out.rstrip("/"))
    if not first:
        yield RunFolder(folder.local, None)
        return
    with lock_run(folder.local):
        if folder.url is not None:
            _bring(folder.url, folder.local)
        yield folder


def _mirror(url: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "oarlock" / "runs" / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:32]


def _bring(url: str, local: Path) -> None:
    files, root = _open(url)
    files.invalidate_cache()
    there = _marks(files, root)
    newest_there = max((step_of(Path(name)) for name in there), default=-1)
    here = newest_checkpoint(local)
    newest_here = step_of(here) if here else -1
    if not files.exists(root):
        for path in local.iterdir():
            if path.name != LOCK:
                _delete(path)
    elif newest_there > newest_here:
        for entry in files.ls(root, detail=False):
            name = PurePosixPath(entry).name
            if name != CHECKPOINTS:
                _take(f"{url}/{name}", local / name)
        target = checkpoint_path(local, newest_there)
        _take(f"{url}/{CHECKPOINTS}/{target.name}", target)


def _publish(local: Path, url: str) -> None:
    files, root = _open(url)
    files.invalidate_cache()
    here = {path.name: path for path in complete_checkpoints(local)}
    there = _marks(files, root)
    for name, path in here.items():
        if there.get(name) != (path / COMPLETE).read_bytes():
            publish(path, f"{url}/{CHECKPOINTS}/{name}", COMPLETE)
    present = {PurePosixPath(path).name for path in files.glob(f"{root}/{CHECKPOINTS}/step-*")}
    for name in present - here.keys():
        if name in there:
            files.rm_file(f"{root}/{CHECKPOINTS}/{name}/{COMPLETE}")
        files.rm(f"{root}/{CHECKPOINTS}/{name}", recursive=True)
    for path in sorted(local.rglob("*")):
        name = path.relative_to(local).as_posix()
        if path.is_file() and name != LOCK and not name.startswith(f"{CHECKPOINTS}/"):
            files.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
            files.put_file(str(path), f"{root}/{name}")


def _open(url: str) -> tuple[Any, str]:
    try:
        files, root = url_to_fs(url)
    except ImportError as error:
        raise ValueError(f"{url}: {error}") from error
    return files, str(root)


def _marks(files: Any, root: str) -> dict[str, bytes]:
    """What COMPLETE holds in each complete checkpoint at the URL, by the checkpoint's name."""
    found = {PurePosixPath(mark).parent.name: mark for mark in files.glob(f"{root}/{CHECKPOINTS}/*/{COMPLETE}")}
    return {name: files.cat_file(mark) for name, mark in found.items() if NAME.fullmatch(name)}


def _take(url: str, target: Path) -> None:
    """Move the mirror of a file or folder at `url` to `target`, in place of what is there."""
    fetched = fetch(url)
    if target.exists():
        _delete(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(fetched, target)


def _delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
