"""A checkpoint on disk: written aside, checksummed, renamed, marked complete; no part of it can execute.

RUN/checkpoints/step-00000500/
    model.safetensors       weights by parameter name
    optimizer.safetensors   `<parameter name>.<state key>`
    state.json              `StateFile`
    checksums.json          `Checksums` of the three above
    COMPLETE                checksum of checksums.json; written last

Where several processes hold the state, the first two are files of parts (`parts.py`).
"""

import re
import shutil
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import ValidationError

from oarlock.config import Frozen
from oarlock.parallel import Part
from oarlock.state.files import checksum, remove, sync, write_bytes, write_tensors
from oarlock.state.optimizers import OptimizerState
from oarlock.state.parts import await_completion, await_parts, metadata_of, part_name, read_parts, tell_failure
from oarlock.state.snapshot import Snapshot

FORMAT = 1
CHECKPOINTS = "checkpoints"
MODEL, OPTIMIZER, STATE, CHECKSUMS, COMPLETE = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "checksums.json",
    "COMPLETE",
)
NAME = re.compile(r"step-(\d{8,})")
PARTIAL = ".partial-"

Parsed = TypeVar("Parsed", bound=Frozen)


class CheckpointWarning(UserWarning):
    """A checkpoint was not saved, not published or not readable, and the run goes on."""


class StateFile(Frozen):
    """`state.json`."""

    format: int
    step: int
    seed: int
    progress: dict[str, float]
    config_digest: str
    oarlock: str
    torch: str


class Checksum(Frozen):
    """What a file must be."""

    size: int
    """Bytes."""
    xxh3_128: str


class Checksums(Frozen):
    """`checksums.json`."""

    parts: int = 1
    """In how many the state was written."""
    files: dict[str, Checksum]


def checkpoint_path(run: Path, step: int) -> Path:
    """Folder of the checkpoint of `step` in the run folder `run`."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def complete_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of the run folder `run` that are marked complete, oldest first."""
    marked = [path.parent for path in (run / CHECKPOINTS).glob(f"*/{COMPLETE}") if NAME.fullmatch(path.parent.name)]
    return sorted(marked, key=step_of)


def newest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint of the run folder `run`, or None where there is none."""
    complete = complete_checkpoints(run)
    return complete[-1] if complete else None


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    match = NAME.fullmatch(checkpoint.name)
    assert match is not None
    return int(match[1])


def write_checkpoint(run: Path, snapshot: Snapshot) -> Path:
    """Write `snapshot` as the checkpoint of its step; it counts from the moment that COMPLETE is there.

    An intact one of the same step and configuration is kept instead, a damaged or other one is replaced. Raises OSError
    where the disk does not take it; nothing is left of it then.
    """
    snapshot.wait()
    target = checkpoint_path(run, snapshot.step)
    if _is_there(target, snapshot):
        return target
    part, partial = snapshot.part, target.with_name(PARTIAL + target.name)
    if part.of == 1:
        shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True, exist_ok=part.of > 1)
        files = _write_part(partial, snapshot)
        if part.number > 0:
            write_bytes(partial / part_name(CHECKSUMS, part), Checksums(files=files).model_dump_json().encode())
            await_completion(partial, target / COMPLETE)
            return target
        others = [partial / part_name(CHECKSUMS, Part(number, part.of)) for number in range(1, part.of)]
        await_parts(others)
        for path in others:
            files |= _parse(Checksums, path).files
            path.unlink()
        write_bytes(partial / STATE, _state_file(snapshot).model_dump_json(indent=1).encode())
        checksums = Checksums(parts=part.of, files=files | {STATE: _checksum(partial / STATE)})
        write_bytes(partial / CHECKSUMS, checksums.model_dump_json(indent=1).encode())
        if target.exists():
            remove(target, COMPLETE)
        partial.rename(target)
        sync(target.parent)
        write_bytes(target / COMPLETE, checksum(target / CHECKSUMS).encode())
    except BaseException:
        if part.number > 0:
            tell_failure(partial, part)
            raise
        shutil.rmtree(partial, ignore_errors=True)
        if not (target / COMPLETE).is_file():
            shutil.rmtree(target, ignore_errors=True)
        raise
    return target


def read_checkpoint(path: Path) -> Snapshot:
    """Read a checkpoint, verifying the size and the checksum of each file.

    Raises ValueError that names the file that is missing, truncated or changed.
    """
    verify(path)
    state = _read_state(path)
    models, optimizers = ([path / name for name in names] for names in _tensor_files(path))
    optimizer: OptimizerState = {}
    for name, tensor in read_parts(optimizers, lambda name: name.rpartition(".")[0]).items():
        parameter, _, key = name.rpartition(".")
        optimizer.setdefault(parameter, {})[key] = tensor
    return Snapshot(
        step=state.step,
        weights=read_parts(models, lambda name: name),
        optimizer=optimizer,
        progress=state.progress,
        seed=state.seed,
        config_digest=state.config_digest,
    )


def load_newest(run: Path) -> Snapshot | None:
    """The newest complete checkpoint of the run folder `run`; None where it has none.

    A damaged one is named in a `CheckpointWarning`, and the one before is taken. Raises ValueError where all are.
    """
    damaged = []
    for path in reversed(complete_checkpoints(run)):
        try:
            return read_checkpoint(path)
        except ValueError as error:
            warnings.warn(f"damaged checkpoint, looking for an earlier one: {error}", CheckpointWarning, stacklevel=2)
            damaged.append(str(error))
    if damaged:
        raise ValueError(
            f"no checkpoint of {run} can be read: {'; '.join(damaged)}. To start anew, choose "
            f"another --out, or remove {run}"
        )
    return None


def newest_digest(run: Path) -> str | None:
    """`config_digest` of the newest complete checkpoint of the run folder `run` whose state can be read."""
    for path in reversed(complete_checkpoints(run)):
        try:
            return _read_state(path).config_digest
        except (OSError, ValueError):
            continue
    return None


def verify(path: Path) -> None:
    """Raise ValueError that names the first file of the checkpoint `path` that is missing, truncated or changed."""
    for name in (CHECKSUMS, COMPLETE):
        _demand(path / name)
    if checksum(path / CHECKSUMS).encode() != (path / COMPLETE).read_bytes():
        raise ValueError(f"{path / CHECKSUMS} does not match {path / COMPLETE}: one of the two is damaged")
    files = _parse(Checksums, path / CHECKSUMS).files
    models, optimizers = _tensor_files(path)
    for name in (*models, *optimizers, STATE):
        _demand(path / name)
        if name not in files:
            raise ValueError(f"{path / CHECKSUMS} does not list {name}")
        expected = files[name]
        size = (path / name).stat().st_size
        if size != expected.size:
            raise ValueError(
                f"{path / name} has {size} bytes, {expected.size} were written: it is truncated or damaged"
            )
        if checksum(path / name) != expected.xxh3_128:
            raise ValueError(f"{path / name} is damaged: its checksum differs from the one in {CHECKSUMS}")


def clean_up(run: Path) -> None:
    """Delete what killed saves left in the run folder `run`; only for the process that holds its lock."""
    for path in (run / CHECKPOINTS).glob("*"):
        unmarked = NAME.fullmatch(path.name) and not (path / COMPLETE).is_file()
        if path.is_dir() and (path.name.startswith(PARTIAL) or unmarked):
            shutil.rmtree(path)


def _state_file(snapshot: Snapshot) -> StateFile:
    return StateFile(
        format=FORMAT,
        step=snapshot.step,
        seed=snapshot.seed,
        progress=snapshot.progress,
        config_digest=snapshot.config_digest,
        oarlock=version("oarlock"),
        torch=torch.__version__,
    )


def _write_part(folder: Path, snapshot: Snapshot) -> dict[str, Checksum]:
    """Write what the process holds; returns its files' checksums."""
    metadata = metadata_of(snapshot.pieces) if snapshot.part.of > 1 else None
    model, optimizer = (folder / part_name(name, snapshot.part) for name in (MODEL, OPTIMIZER))
    write_tensors(model, snapshot.weights, metadata)
    state = {f"{name}.{key}": tensor for name, of in snapshot.optimizer.items() for key, tensor in of.items()}
    write_tensors(optimizer, state, metadata)
    return {path.name: _checksum(path) for path in (model, optimizer)}


def _checksum(path: Path) -> Checksum:
    return Checksum(size=path.stat().st_size, xxh3_128=checksum(path))


def _tensor_files(path: Path) -> tuple[list[str], list[str]]:
    """Names of the files of weights and of optimizer state, of all parts."""
    parts = _parse(Checksums, path / CHECKSUMS).parts
    models, optimizers = ([part_name(name, Part(i, parts)) for i in range(parts)] for name in (MODEL, OPTIMIZER))
    return models, optimizers


def _demand(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"{path} is missing, so this is no complete checkpoint")


def _is_there(target: Path, snapshot: Snapshot) -> bool:
    """Whether an intact checkpoint of the same step and trajectory exists: replacing it would risk it for nothing."""
    try:
        verify(target)
        state = _read_state(target)
    except ValueError:
        return False
    return (state.seed, state.config_digest) == (snapshot.seed, snapshot.config_digest)


def _read_state(path: Path) -> StateFile:
    state = _parse(StateFile, path / STATE)
    if state.format != FORMAT:
        raise ValueError(f"{path / STATE} has format {state.format}, but this version of oarlock reads {FORMAT}")
    return state


def _parse(kind: type[Parsed], path: Path) -> Parsed:
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
