"""Folders by URL: mirrored here before they are read, published from here after they are written.

Everything else in the package works on local paths, memory-mapped; only these functions know of remote storage.
"""

import hashlib
import json
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec
from fsspec.core import url_to_fs

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
LOGS = "logs"
"""Folder in a run folder of what processes other than the first say."""
LOCAL_SCHEMES = ("file://", "local://")
# What file systems call the properties by which a changed file is told; each names some of them.
STAMP_KEYS = ("size", "etag", "ETag", "mtime", "last_modified", "LastModified", "updated", "created", "md5", "md5Hash")
STAMPS = "stamps.json"


def is_url(path: str) -> bool:
    """Whether `path` names a place by protocol (`s3://...`, `file://...`) instead of being a plain path."""
    return SCHEME.match(path) is not None


def fetch(url: str) -> Path:
    """Local path of the file or folder `url`, which is downloaded only where it changed since it last was.

    A plain path and a `file://` URL are returned as they are. Anything else is mirrored into
    `$XDG_CACHE_HOME/oarlock` (by default `~/.cache/oarlock`); a file is downloaded again when its size, etag or
    modification time differs from what it was, and removed here when it is gone there.

    Raises ValueError where nothing is there, or where the protocol is unknown or its package is not installed.
    """
    if not is_url(url):
        return Path(url)
    file_system, root = _open(url)
    if url.startswith(LOCAL_SCHEMES):
        return Path(root)

    file_system.invalidate_cache()
    found: dict[str, dict[str, Any]] = file_system.find(root, detail=True)
    if not found:
        raise ValueError(f"nothing at {url}: check the address, and that your credentials may list it")

    mirror = _cache() / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:32]
    target = mirror / (PurePosixPath(root).name or "root")
    old = _read_stamps(mirror / STAMPS)
    new: dict[str, dict[str, str]] = {}
    for remote, info in sorted(found.items()):
        name = _relative(remote, root)
        new[name] = _stamp(info) or _stamp(file_system.info(remote))
        local = target / name
        if not new[name] or new[name] != old.get(name) or not local.is_file():
            _download(file_system, remote, local)
    for name in old.keys() - new.keys():
        (target / name).unlink(missing_ok=True)
    _replace_text(mirror / STAMPS, json.dumps(new, indent=1))
    return target


def publish(local: Path, url: str, last: str) -> None:
    """Upload every file under the folder `local` to `url`, the file named `last` (relative to `local`) at the end.

    A reader who looks for `last` therefore never takes a half-uploaded folder for a finished one: an older `last` is
    removed before anything else is touched. Other files that were there before stay.

    Raises ValueError where `local` has no file `last`, or where the protocol is unknown or not installed.
    """
    if not (local / last).is_file():
        raise ValueError(f"{local} has no {last}: the folder is not finished, so it is not published to {url}")
    file_system, root = _open(url)
    root = root.rstrip("/")
    if file_system.exists(f"{root}/{last}"):
        file_system.rm_file(f"{root}/{last}")
    names = sorted(path.relative_to(local).as_posix() for path in local.rglob("*") if path.is_file())
    for name in [*(name for name in names if name != last), last]:
        file_system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        file_system.put_file(str(local / name), f"{root}/{name}")


def _open(url: str) -> tuple[Any, str]:
    try:
        file_system, root = url_to_fs(url)
    except ImportError as error:
        raise ValueError(f"{url}: {error}") from error
    except ValueError as error:
        known = ", ".join(sorted(fsspec.available_protocols()))
        raise ValueError(f"{url}: {error}; known protocols are {known}") from error
    return file_system, str(root)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oarlock"


def _relative(remote: str, root: str) -> str:
    """Name of a remote file below root, or "" where the root is that file itself."""
    name = remote.removeprefix(root).strip("/")
    if ".." in PurePosixPath(name).parts:
        raise ValueError(f"the listing of {root} has a name that leads out of it: {remote}")
    return name


def _stamp(info: dict[str, Any]) -> dict[str, str]:
    return {key: str(info[key]) for key in STAMP_KEYS if info.get(key) is not None}


def _read_stamps(path: Path) -> dict[str, dict[str, str]]:
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _download(file_system: Any, remote: str, local: Path) -> None:
    """Download aside and rename, so that a killed download leaves no file that looks whole."""
    local.parent.mkdir(parents=True, exist_ok=True)
    partial = local.with_name(f"{local.name}.{os.getpid()}.partial")
    try:
        file_system.get_file(remote, str(partial))
        partial.replace(local)
    finally:
        partial.unlink(missing_ok=True)


def _replace_text(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text)
    partial.replace(path)
