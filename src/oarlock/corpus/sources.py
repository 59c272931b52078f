"""Which files are read, in what order, and how each is opened."""

import bz2
import glob
import gzip
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, cast

import fsspec
import xxhash
from fsspec.core import url_to_fs

from oarlock.config.folders import LOCAL_SCHEMES, is_url

Format = Literal["text", "json", "parquet"]
Compression = Literal["none", "gzip", "bz2", "xz", "zstd"]

FORMATS: dict[str, Format] = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet"}
COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
HASHED_AT_ONCE = 1 << 20
NOT_REGULAR = "{} is not a regular file (input is read more than once): write it to a file first"


@dataclass(frozen=True)
class Source:
    """One input file."""

    path: str
    format: Format
    compression: Compression
    size: int
    """Bytes on disk."""


def find_sources(inputs: tuple[str, ...], out: str) -> list[Source]:
    """The files that `inputs` name: those of an input in the order of their names, each file once.

    A folder stands for all files below it, save hidden ones and save those in `out`; links are followed. Raises
    ValueError where an input names nothing, or something that is not a file that can be read twice.
    """
    found: dict[str, Source] = {}
    for name in inputs:
        files = _find_remote(name) if is_url(name) else _find_local(name, out)
        if not files:
            raise ValueError(f"no file at {name!r}: check the path or pattern")
        for path, size in files.items():
            found.setdefault(_identity(path), _describe(path, size))
    return list(found.values())


def _identity(path: str) -> str:
    """What is the same for all paths of one file."""
    if path.startswith(LOCAL_SCHEMES):
        path = open_file_system(path)[1]
    return path if is_url(path) else os.path.realpath(path)


def _find_local(name: str, out: str) -> dict[str, int]:
    path = Path(name).expanduser()
    if os.path.lexists(path):
        roots = [path]
    else:
        # Path.glob finds no files by a final `**` before Python 3.13.
        roots = sorted(Path(match) for match in glob.glob(str(path), recursive=True))  # noqa: PTH207
    own = None if is_url(out) else os.path.realpath(Path(out).expanduser())
    files: list[Path] = []
    for root in roots:
        files += sorted(_walk(root, own)) if root.is_dir() else [root]
    return {str(file): _size(file) for file in files}


def _walk(root: Path, own: str | None) -> Iterator[Path]:
    """Files below a folder. Links to folders are followed, each folder once, so that a link upwards makes no loop."""
    seen = {own, os.path.realpath(root)}
    for folder, folders, names in os.walk(root, onerror=_refuse_folder, followlinks=True):
        inside: list[str] = []
        for name in sorted(folders):
            real = os.path.realpath(Path(folder) / name)
            if name[0] != "." and real not in seen:
                seen.add(real)
                inside.append(name)
        folders[:] = inside
        yield from (Path(folder) / name for name in names if name[0] != ".")


def _refuse_folder(error: OSError) -> None:
    raise ValueError(f"cannot list the folder {error.filename}: {error}") from error


def _size(file: Path) -> int:
    """Bytes of a regular file. Anything else is refused: input is read more than once, and a pipe cannot be."""
    _check_name(str(file))
    try:
        state = file.stat()
    except OSError as error:
        why = "is a broken link" if file.is_symlink() else "cannot be read"
        raise ValueError(f"{file} {why} ({error.strerror}): mend it or leave it out") from error
    if not stat.S_ISREG(state.st_mode):
        raise ValueError(NOT_REGULAR.format(file))
    return state.st_size


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the name of {path!r} is not valid UTF-8: rename the file") from error


def _find_remote(url: str) -> dict[str, int]:
    file_system, root = open_file_system(url)
    if glob.has_magic(root):
        paths = [path for path in file_system.glob(root) if not file_system.isdir(path)]
    elif file_system.isdir(root):
        paths = [path for path in file_system.find(root) if not _hidden(path, root)]
    else:
        paths = [root] if file_system.exists(root) else []
    if url.startswith(LOCAL_SCHEMES):
        sizes = {path: _size(Path(path)) for path in sorted(paths)}
    else:
        sizes = {path: int(file_system.size(path) or 0) for path in sorted(paths)}
    return {file_system.unstrip_protocol(path): size for path, size in sizes.items()}


def open_file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it. Raises ValueError where the protocol is not known or installed."""
    try:
        file_system, root = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ValueError(f"cannot open {url}: {error}") from error
    return file_system, str(root)


def _hidden(path: str, root: str) -> bool:
    return any(part[0] == "." for part in PurePosixPath(path.removeprefix(root).strip("/")).parts)


def _describe(path: str, size: int) -> Source:
    name = PurePosixPath(path)
    compression = COMPRESSIONS.get(name.suffix.lower(), "none")
    inner = name if compression == "none" else name.with_suffix("")
    return Source(path, FORMATS.get(inner.suffix.lower(), "text"), compression, size)


def hash_contents(source: Source, on_bytes: Callable[[int], None]) -> str:
    """Hash of the bytes of a file as they are on disk; `on_bytes` is told how many more were read."""
    digest = xxhash.xxh3_128()
    with open_raw(source) as raw, damage_named(source):
        while chunk := raw.read(HASHED_AT_ONCE):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()


def open_raw(source: Source) -> BinaryIO:
    """Open a file as it is on disk. Raises ValueError where it cannot be opened."""
    try:
        if is_url(source.path):
            return cast(BinaryIO, fsspec.open(source.path, "rb").open())
        return Path(source.path).open("rb")
    except OSError as error:
        raise ValueError(f"cannot read {source.path}: {error}") from error


def decompress(source: Source, raw: BinaryIO) -> BinaryIO:
    """The contents of a file that `open_raw` opened, after decompression."""
    match source.compression:
        case "none":
            return raw
        case "gzip":
            return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
        case "bz2":
            return cast(BinaryIO, bz2.BZ2File(raw))
        case "xz":
            return cast(BinaryIO, lzma.LZMAFile(raw))
        case "zstd":
            import pyarrow  # slow to import, and seldom needed

            return cast(BinaryIO, pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), "zstd"))


@contextmanager
def damage_named(source: Source) -> Iterator[None]:
    """Turn what a decompressor or reader says of a broken file into a ValueError that names the file."""
    try:
        yield
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        kind = source.format if source.compression == "none" else source.compression
        raise ValueError(f"{source.path} cannot be read as {kind}: {error}; is it whole?") from error
