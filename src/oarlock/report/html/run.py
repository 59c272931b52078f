"""What lies in a run folder, read as far as it is there."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from oarlock.config import describe
from oarlock.corpus.data_report import DataReport
from oarlock.report.facts import RunFacts, Sample, read_facts
from oarlock.report.metrics import EvaluationRow, TrainingRow, read_metrics

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """A run folder's contents; empty where a file is missing."""

    name: str
    config_text: str
    """config.yaml as it is."""
    config: dict[str, Any]
    """The same, parsed."""
    training: list[TrainingRow]
    evaluations: list[EvaluationRow]
    facts: RunFacts
    data_report: DataReport | None
    samples: tuple[Sample, ...]


def read_run(folder: Path) -> Run:
    """Read a run folder. Raises ValueError where there is none, or naming the file that cannot be understood."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; give the folder that `oarlock train --out` wrote")
    if not any((folder / name).exists() for name in ("config.yaml", "metrics.jsonl", "run.json")):
        raise ValueError(f"{folder} holds no run (no config.yaml, metrics.jsonl or run.json)")
    config_text = _text(folder / "config.yaml")
    training, evaluations = read_metrics(folder / "metrics.jsonl")
    return Run(
        name=folder.resolve().name,
        config_text=config_text,
        config=_config(folder / "config.yaml", config_text),
        training=training,
        evaluations=evaluations,
        facts=read_facts(folder),
        data_report=_json(folder / "data_report.json", TypeAdapter(DataReport | None), None),
        samples=_json(folder / "samples.json", TypeAdapter(tuple[Sample, ...]), ()),
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _config(path: Path, text: str) -> dict[str, Any]:
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    return config if isinstance(config, dict) else {}


def _json(path: Path, kind: TypeAdapter[T], missing: T) -> T:
    if not path.exists():
        return missing
    try:
        return kind.validate_python(json.loads(path.read_bytes()))
    except ValueError as error:
        problem = describe(error) if isinstance(error, ValidationError) else error
        raise ValueError(f"{path} cannot be read, repair or remove it: {problem}") from error
