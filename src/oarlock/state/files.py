"""Files that are whole or absent after a crash, and whose damage is noticed."""

import os
import re
import shutil
from pathlib import Path

import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

BLOCK = 1 << 20  # bytes


def write_bytes(path: Path, content: bytes) -> None:
    """Write aside, force to the disk, rename: `path` never holds a part of `content`."""
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync(path.parent)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write contiguous host tensors as safetensors and force them to the disk. Raises OSError where that fails."""
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from error
    path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors writes for the owner alone
    sync(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, in host memory. Raises ValueError that names a file which is none."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error


def sync(path: Path) -> None:
    """Force a file, or the list of names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path) -> str:
    """xxh3 (128 bits) of a file's bytes, in hexadecimal. It notices damage; it is no protection against intent."""
    digest = xxhash.xxh3_128()
    block = bytearray(BLOCK)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(memoryview(block)[:size])
    return digest.hexdigest()


def remove(folder: Path, marker: str) -> None:
    """Delete a folder, its marker first, so that a half-deleted one is not taken for a finished one."""
    (folder / marker).unlink(missing_ok=True)
    shutil.rmtree(folder)
