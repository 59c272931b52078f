"""A checkpoint that several processes write together, each its part of the state, on a disk that all of them see.

Each writes `model-00002-of-00004.safetensors` and `optimizer-...` into one folder, then `checksums-...`, which says
that it is done; the first waits for all, and completes the folder. They meet in the files: no process group has a part
in it, so nobody's training waits. A tensor that is a part of a parameter, or of a block that it was cut into, is flat;
the files' metadata tell where it starts, the shape, and which block.
"""

import errno
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from oarlock.parallel import Block, Part
from oarlock.state.files import read_tensors

PATIENCE = 600.0  # seconds
PAUSE = 0.02  # seconds
FAILED = "failed-"
PIECES = "pieces"
WHOLE = Block(0, 1, 0, 1)


def part_name(name: str, part: Part) -> str:
    """What a file is called in a part: `model.safetensors` where there is one part, else with its number."""
    if part.of == 1:
        return name
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}-{part.number + 1:05d}-of-{part.of:05d}{dot}{suffix}"


def metadata_of(pieces: Mapping[str, tuple[int, Sequence[int], Block | None]]) -> dict[str, str]:
    """What the files of a part carry: by parameter, its part's first element, its block's shape, and which block."""
    return {PIECES: json.dumps({name: [start, list(shape), block] for name, (start, shape, block) in pieces.items()})}


def read_parts(paths: list[Path], parameter_of: Callable[[str], str]) -> dict[str, Tensor]:
    """Whole tensors from the files of all parts; `parameter_of` tells the parameter that a tensor belongs to.

    Raises ValueError where a file is none, or the parts of a tensor are not all of it.
    """
    whole: dict[str, Tensor] = {}
    cut: dict[str, dict[Block, Tensor]] = {}
    missing: dict[str, int] = {}
    for path in paths:
        tensors = read_tensors(path)
        pieces = _pieces(path)
        for key, tensor in tensors.items():
            start, shape, block = pieces.get(parameter_of(key), (0, tensor.shape, WHOLE))
            if tensor.ndim == 0 or (block.parts == 1 and tensor.shape == torch.Size(shape)):
                whole[key] = tensor
                continue
            blocks = cut.setdefault(key, {})
            if block not in blocks:
                blocks[block] = torch.empty(shape, dtype=tensor.dtype)
                missing[key] = missing.get(key, blocks[block].numel() * block.parts)
            blocks[block].view(-1)[start : start + tensor.numel()] = tensor.flatten()
            missing[key] -= tensor.numel()
    for key, blocks in cut.items():
        if missing[key] != 0:
            raise ValueError(f"{paths[0].parent}: the parts of {key} lack {missing[key]} elements")
        whole[key] = next(iter(blocks)).join([blocks[block] for block in sorted(blocks)])
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


def _pieces(path: Path) -> dict[str, tuple[int, list[int], Block]]:
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(PIECES, "{}")
    pieces = json.loads(text).items()
    return {name: (start, shape, Block(*block) if block else WHOLE) for name, (start, shape, block) in pieces}
