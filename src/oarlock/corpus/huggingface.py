"""Writing a tokenizer as a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

from tokenizers import models

from oarlock.corpus.tokenizer import LoadedTokenizer

GENERIC_CLASS = "PreTrainedTokenizerFast"


def write_tokenizer(loaded: LoadedTokenizer, folder: Path, max_length: int) -> None:
    """Write a folder that `transformers.AutoTokenizer.from_pretrained` loads as a fast tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    loaded.tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": GENERIC_CLASS, "model_max_length": max_length, **loaded.config}
    _write_json(folder / "tokenizer_config.json", config)
    roles = {role: value for role, value in config.items() if role.endswith("_token") and value}
    names = {role: value["content"] if isinstance(value, dict) else value for role, value in roles.items()}
    _write_json(
        folder / "special_tokens_map.json", {role: name for role, name in names.items() if isinstance(name, str)}
    )
    if isinstance(loaded.tokenizer.model, models.WordPiece):
        ids = loaded.tokenizer.get_vocab(with_added_tokens=True)
        tokens = sorted(ids, key=lambda token: ids[token])
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
