"""A checkpoint that several processes write together, each its part of the state, on a disk that all of them see.

Each writes `model-00002-of-00004.safetensors` and `optimizer-...` into one folder, then `checksums-...`, which says
that it is done; the first waits for all, and completes the folder. They meet in the files: no process group has a part
in it, so nobody's training waits. A tensor that is a part of a parameter is flat; the files' metadata tell where it
starts, and the parameter's shape.
"""

import errno
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from oarlock.parallel import Part
from oarlock.state.files import read_tensors

PATIENCE = 600.0  # seconds
PAUSE = 0.02  # seconds
FAILED = "failed-"
PIECES = "pieces"


def part_name(name: str, part: Part) -> str:
    """What a file is called in a part: `model.safetensors` where there is one part, else with its number."""
    if part.of == 1:
        return name
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}-{part.number + 1:05d}-of-{part.of:05d}{dot}{suffix}"


def metadata_of(starts: Mapping[str, int], shapes: Mapping[str, torch.Size]) -> dict[str, str]:
    """What the files of a part carry: by parameter, its part's first element and its shape."""
    return {PIECES: json.dumps({name: [start, list(shapes[name])] for name, start in starts.items()})}


def read_parts(paths: list[Path], parameter_of: Callable[[str], str]) -> dict[str, Tensor]:
    """Whole tensors from the files of all parts; `parameter_of` tells the parameter that a tensor belongs to.

    Raises ValueError where a file is none, or the parts of a tensor are not all of it.
    """
    whole: dict[str, Tensor] = {}
    seen: dict[str, int] = {}
    for path in paths:
        tensors = read_tensors(path)
        pieces = _pieces(path)
        for key, tensor in tensors.items():
            start, shape = pieces.get(parameter_of(key), (0, ()))
            if not shape or tensor.ndim == 0:
                whole[key] = tensor
                continue
            into = whole.setdefault(key, torch.empty(shape, dtype=tensor.dtype))
            into.view(-1)[start : start + tensor.numel()] = tensor
            seen[key] = seen.get(key, 0) + tensor.numel()
    for key, count in seen.items():
        if count != whole[key].numel():
            raise ValueError(f"{paths[0].parent}: the parts of {key} hold {count} of its {whole[key].numel()} elements")
    return whole


def await_parts(files: list[Path]) -> None:
    """Return when all of the files, in one folder, are there. Raises OSError where one's writer failed or is late."""

    def there(folder: Path) -> bool:
        if any(folder.glob(f"{FAILED}*")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return all(path.is_file() for path in files)

    if files:
        _await(partial(there, files[0].parent), files[0].parent)


def await_completion(folder: Path, marker: Path) -> None:
    """Return when the marker is there. Raises OSError where the folder was given up instead, or nothing happens."""

    def there() -> bool:
        given_up = not folder.exists()
        if marker.is_file():
            return True
        if given_up and not marker.parent.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return False

    _await(there, folder)


def tell_failure(folder: Path, part: Part) -> None:
    """Have the others give up too."""
    for name in ("model.safetensors", "optimizer.safetensors"):
        (folder / part_name(name, part)).unlink(missing_ok=True)
    (folder / f"{FAILED}{part.number}").touch()


def _await(there: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not there():
        if time.monotonic() > end:
            raise OSError(errno.ETIMEDOUT, "the other processes' parts did not come", str(folder))
        time.sleep(PAUSE)


def _pieces(path: Path) -> dict[str, tuple[int, list[int]]]:
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(PIECES, "{}")
    return {name: (start, shape) for name, (start, shape) in json.loads(text).items()}
