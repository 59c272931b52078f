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

NAMES = {MANIFEST, REPORT, TOKENIZER, "train", "validation"}


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
    """Raise ValueError where `out` holds anything that Oarlock did not write."""
    if is_url(out):
        file_system, root = open_file_system(out)
        names = {Path(entry).name for entry in file_system.ls(root, detail=False)} if file_system.isdir(root) else set()
        ours = True  # an upload that was interrupted has no manifest; and nothing but files of these names is replaced
    else:
        path = Path(out).expanduser()
        if path.exists() and not path.is_dir():
            raise ValueError(f"{out} is a file: give a folder as out")
        if path.is_dir() and os.path.ismount(path):
            raise ValueError(f"{out} is a mount point, which cannot be replaced as a whole: give a folder in it as out")
        names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
        ours = not names or "fingerprint" in _read_json(out, MANIFEST) or "unigram_baseline" in _read_json(out, REPORT)
    foreign = sorted(name for name in names - NAMES if not name.startswith("."))
    if foreign or not ours:
        shown = ", ".join((foreign or sorted(names))[:5])
        raise ValueError(f"{out} is not empty and not a data set of Oarlock's (it holds {shown}): give another out")


@contextmanager
def staged(out: str) -> Iterator[Path]:
    """A folder to write to, which becomes `out` when the block ends well, and is removed when it does not.

    Raises ValueError where another process is writing to `out`.
    """
    if is_url(out):
        with tempfile.TemporaryDirectory(prefix="oarlock-") as temporary:
            yield Path(temporary)
            publish(Path(temporary), out, last=MANIFEST)
        return
    final = Path(out).expanduser().resolve()
    aside = final.with_name(f".{final.name}.unfinished")
    replaced = final.with_name(f".{final.name}.replaced")
    aside.mkdir(parents=True, exist_ok=True)
    with _locked(aside, out):
        _empty(aside)  # what a killed process left
        try:
            yield aside
            shutil.rmtree(replaced, ignore_errors=True)
            if final.exists():
                final.rename(replaced)
            aside.rename(final)
            shutil.rmtree(replaced, ignore_errors=True)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _locked(folder: Path, out: str) -> Iterator[None]:
    """Hold a lock that ends with this process, however it ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ValueError(f"another process is preparing {out} right now: wait for it, or give another out") from error
    except OSError:  # a file system without locks
        pass
    try:
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
