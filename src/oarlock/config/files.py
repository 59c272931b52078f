"""A run's configuration as a YAML file."""

from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from oarlock.config.folders import is_url
from oarlock.config.run import RunConfig


def write_run_config(path: Path, config: RunConfig) -> None:
    """Write every field of `config`, in the order of its declaration."""
    path.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def read_run_config(path: Path) -> RunConfig:
    """Read what `write_run_config` wrote, or a person did.

    Raises:
        ValueError: naming the file, and each key that is unknown or whose value does not fit.
    """
    try:
        fields = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} is no configuration: it holds no keys")
    try:
        return RunConfig.model_validate(fields)
    except ValidationError as error:
        raise ValueError(f"{path}: {describe(error)}") from error


def refuse_moved(path: Path, config: RunConfig) -> None:
    """Refuse the configuration of a run whose folder was moved: it would begin a new run at the old place.

    Raises:
        ValueError: checkpoints lie beside `path`, and `config.out` names another folder.
    """
    folder = path.resolve().parent
    if (folder / "checkpoints").is_dir() and not is_url(config.out) and Path(config.out).resolve() != folder:
        raise ValueError(f"{path} lies in a run that was moved from {config.out}; to go on with it, add --out {folder}")


def describe(error: ValidationError) -> str:
    """What is wrong with a configuration, one clause a field."""
    return "; ".join(_clause(problem) for problem in error.errors())


def _clause(problem: ErrorDetails) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"there is no field {where}"
    if problem["type"] == "too_short":
        return f"{where}: give at least {problem['ctx']['min_length']}"
    if problem["type"] == "missing":
        return f"{where} is missing"
    if message.startswith("Input should be ") and isinstance(problem["input"], str | int | float | None):
        return f"{where} is {problem['input']!r}, but {message.removeprefix('Input ')}"
    return f"{where}: {message}" if where else message


def differences(old: RunConfig, new: RunConfig) -> dict[str, tuple[object, object]]:
    """Fields by dotted name in which two configurations differ, with both values."""
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    names = [*before, *(name for name in after if name not in before)]
    return {n: (before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)}


def _flat(fields: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in fields.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
