"""The folder that a data set is written to: reused, refused, or replaced as a whole."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import fsspec

from oarlock.config.folders import is_url, publish
from oarlock.corpus.data_report import DataReport
from oarlock.corpus.dataset import FORMAT, MANIFEST, REPORT, TOKENIZER, open_dataset
from oarlock.corpus.sources import open_file_system
from oarlock.corpus.tokenizer import load_tokenizer

FOLDERS = {
    TOKENIZER: ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"),
    "train": ("ids.npy", "lengths.npy", "offsets.npy", "maskable.npy"),
    "validation": ("ids.npy", "lengths.npy", "offsets.npy", "maskable.npy"),
}
# All that a data set holds, by path in it; and what macOS puts into every folder that it shows.
OWN = {MANIFEST, REPORT, ".DS_Store", *FOLDERS, *(f"{folder}/{name}" for folder in FOLDERS for name in FOLDERS[folder])}


def finished_report(out: str, fingerprint: str) -> DataReport | None:
    """The report of a finished data set with this fingerprint at `out`, if there is one that can be used.

    Of a folder at a URL only the manifest and the report are looked at.
    """
    manifest = _read_json(out, MANIFEST)
    if manifest.get("format") != FORMAT or manifest.get("fingerprint") != fingerprint:
        return None
    with suppress(ValueError):  # a file of it was damaged or removed, or the report is of another version
        if not is_url(out):
            open_dataset(str(Path(out).expanduser()))
            load_tokenizer(str(Path(out).expanduser() / TOKENIZER / "tokenizer.json"))
        return DataReport.model_validate(_read_json(out, REPORT) | {"reused": True})
    return None


def check_replaceable(out: str) -> None:
    """Raise ValueError where `out` cannot be written, or holds anything, at any depth, that Oarlock did not write."""
    if is_url(out):
        file_system, root = open_file_system(out)
        names = {Path(entry).name for entry in file_system.ls(root, detail=False)} if file_system.isdir(root) else set()
        foreign = {name for name in names - OWN if not name.startswith(".")}
        ours = True  # an upload that was interrupted has no manifest; and nothing but files of these names is replaced
    else:
        with _obstacle_named(out):
            path = Path(out).expanduser()
            if path.exists() and not path.is_dir():
                raise ValueError(f"{out} is a file: give a folder as --out")
            if path.is_dir() and os.path.ismount(path):
                raise ValueError(f"{out} is a mount point, which cannot be replaced as a whole: give a folder in it")
            names = set(_paths_below(path)) if path.is_dir() else set()
            if not names:
                _try_to_write(path.resolve())
        foreign = names - OWN
        ours = not names or "fingerprint" in _read_json(out, MANIFEST) or "unigram_baseline" in _read_json(out, REPORT)
    if foreign or not ours:
        raise ValueError(
            f"{out} is not empty and not a data set of Oarlock's alone (it holds {min(foreign or names)}): move that "
            "away, or give another --out"
        )


def _paths_below(folder: Path) -> Iterator[str]:
    """Everything in a folder by its path in it; links are not followed."""
    for parent, folders, names in os.walk(folder, onerror=_raise):
        yield from ((Path(parent) / name).relative_to(folder).as_posix() for name in (*folders, *names))


def _raise(error: OSError) -> None:
    raise error


def _try_to_write(final: Path) -> None:
    """Make and remove a folder where the data set will be built: better refused now than after the input was read."""
    parent = next(folder for folder in final.parents if folder.exists())
    with tempfile.TemporaryDirectory(prefix=f".{final.name}.unfinished", dir=parent):
        pass


@contextmanager
def _obstacle_named(out: str) -> Iterator[None]:
    """Turn what the system says of a folder that cannot be written into a ValueError that names it."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: `~` of a user who is not known, or links in a circle
        raise ValueError(f"cannot write to --out {out}: {error}; give a folder that can be written") from error


@contextmanager
def staged(out: str) -> Iterator[Path]:
    """A folder to write to, which becomes `out` when the block ends well, and is removed when it does not.

    Raises ValueError where another process is writing to `out`, and what `check_replaceable` raises.
    """
    if is_url(out):
        with tempfile.TemporaryDirectory(prefix="oarlock-") as temporary:
            yield Path(temporary)
            publish(Path(temporary), out, last=MANIFEST)
        return
    with _obstacle_named(out):
        final = Path(out).expanduser().resolve()
        aside = final.with_name(f".{final.name}.unfinished")
        replaced = final.with_name(f".{final.name}.replaced")
        aside.mkdir(parents=True, exist_ok=True)
    with _locked(aside, out):
        _empty(aside)  # what a killed process left
        try:
            yield aside
            check_replaceable(out)  # someone may have put a file there meanwhile
            shutil.rmtree(replaced, ignore_errors=True)
            if final.exists():
                final.rename(replaced)
            aside.rename(final)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        # From here on a folder of the name `aside` is another process's.
        shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def _locked(folder: Path, out: str) -> Iterator[None]:
    """Hold a lock that ends with this process, however it ends."""
    busy = f"another process is preparing {out} right now: wait for it, or give another --out"
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError as error:  # it was renamed between its making and here, by one that finished
        raise ValueError(busy) from error
    try:
        with suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(busy) from error
        if not folder.exists() or not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise ValueError(busy)  # it was renamed before we had the lock
        yield
    finally:
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _read_json(out: str, name: str) -> dict[str, object]:
    """A JSON object in a folder or at a URL; empty where there is none."""
    with suppress(OSError, ValueError):
        if is_url(out):
            with fsspec.open(f"{out.rstrip('/')}/{name}", "rb") as file:
                values = json.load(file)
        else:
            values = json.loads((Path(out).expanduser() / name).read_bytes())
        if isinstance(values, dict):
            return values
    return {}
