"""From a Hugging Face folder to a model."""

import json
from pathlib import Path
from typing import Any

from oarlock.config import ModelConfig
from oarlock.model.build import build_model
from oarlock.model.encoder import MaskedLM
from oarlock.model.huggingface.weights import KINDS, from_folder, read_weights


def load_huggingface(
    folder: str | Path, *, config: ModelConfig | None = None, seed: int = 0
) -> tuple[MaskedLM, list[str]]:
    """The model of a folder, in fp32, and lines that say what was left at its initial value or left out.

    Args:
        folder: what `save_pretrained` of a BERT, RoBERTa or ModernBERT wrote (a bare encoder or with its heads).
        config: the shape, where it should differ from the folder's in what is no weight of it (dropout, a pooler).
        seed: initial weights of what the folder lacks follow from it.

    Raises:
        ValueError: the folder is no such model, or asks for something that this model cannot do.
    """
    folder = Path(folder)
    model = build_model(config or read_config(folder), seed)
    try:
        notes = from_folder(model, read_weights(folder))
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    return model, notes


def read_config(folder: Path) -> ModelConfig:
    """The shape that a folder's config.json describes.

    Raises:
        ValueError: there is none, or its architecture or one of its settings is not supported.
    """
    path = folder / "config.json"
    if not path.exists():
        raise ValueError(f"{folder} is no Hugging Face model folder: it has no config.json")
    try:
        settings: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    kind = KINDS.get(settings.get("model_type", ""))
    if kind is None:
        raise ValueError(f"{path}: model_type {settings.get('model_type')!r} is not one of {', '.join(KINDS)}")
    for key, value in kind.REQUIRED.items():
        if settings.get(key, value) != value:
            raise ValueError(f"{path}: {key} is {settings[key]!r}; only {value!r} is supported")
    try:
        return ModelConfig(**kind.from_config(settings))
    except KeyError as error:
        raise ValueError(f"{path} lacks {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
