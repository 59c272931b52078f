"""From a model to a Hugging Face folder that has been run and compared before it is called done.

Suffixes: M targets, V vocabulary.
"""

import importlib.util
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from oarlock.batches import Batch, pack
from oarlock.model.encoder import MaskedLM
from oarlock.model.huggingface.load import load_huggingface
from oarlock.model.huggingface.weights import KINDS, to_folder

TOLERANCE = 1e-5
"""Largest difference of two logits, as a share of the largest logit where that is above 1."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)

CARD = """---
library_name: transformers
pipeline_tag: fill-mask
tags: [{kind}, fill-mask, oarlock]
---

# {title}

A masked language model of the {kind} architecture, trained with Oarlock.

| | |
|---|---|
{rows}

The tokenizer is in this folder. A pooler is not, because masked-LM training does not train one: for a vector of a
whole sequence take its first token's hidden state, or the mean of all.

```python
from transformers import pipeline

fill = pipeline("fill-mask", model=".")
print(fill(f"The people of the {{fill.tokenizer.mask_token}} States."))
```
"""


class Exported(NamedTuple):
    """What an export wrote and how it was checked."""

    folder: Path
    checked_with: str
    """`transformers`, or `oarlock` where that is not installed."""
    largest_difference: float
    """Between a logit of the model and of the folder."""


def export_huggingface(
    model: MaskedLM,
    tokenizer: Path,
    special_ids: Mapping[str, int],
    out: Path,
    facts: Mapping[str, str],
    overwrite: bool = False,
) -> Exported:
    """Write the model as a folder that `transformers` loads, and compare the two.

    The vocabulary's padding is trimmed and a pooler left out; weights are fp32 safetensors. The folder is written aside
    and takes its name only after the comparison.

    Args:
        model: in fp32.
        tokenizer: folder whose tokenizer files are copied along.
        special_ids: `pad`, `start` and `end` go into config.json.
        out: new folder.
        facts: rows of the model card.
        overwrite: replace the model that `out` holds.

    Raises:
        ValueError: `out` is not empty and may not be replaced, or `tokenizer` holds none.
        RuntimeError: the exported folder's logits differ from the model's.
    """
    _check_target(out, overwrite)
    aside = out.with_name(f".{out.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        _write(model, tokenizer, special_ids, aside, facts, out.name)
        checked_with, difference = _compare(model, aside, special_ids)
        if out.exists():
            shutil.rmtree(out)
        aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Exported(out, checked_with, difference)


def _check_target(out: Path, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise ValueError(f"{out} is not empty; choose another folder or give --overwrite")
    if not (out / "config.json").is_file():
        raise ValueError(f"{out} holds no model that could be replaced (no config.json); choose another folder")


def _write(
    model: MaskedLM, tokenizer: Path, special_ids: Mapping[str, int], folder: Path, facts: Mapping[str, str], title: str
) -> None:
    kind = KINDS[model.config.kind]
    settings: dict[str, Any] = {
        "architectures": [kind.ARCHITECTURE],
        **kind.to_config(model.config),
        "pad_token_id": special_ids["pad"],
        "bos_token_id": special_ids["start"],
        "eos_token_id": special_ids["end"],
        "cls_token_id": special_ids["start"],
        "sep_token_id": special_ids["end"],
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    save_file(to_folder(model), folder / "model.safetensors", metadata={"format": "pt"})
    files = [tokenizer / name for name in TOKENIZER_FILES if (tokenizer / name).is_file()]
    if not files:
        raise ValueError(f"{tokenizer} holds no tokenizer (such as {TOKENIZER_FILES[0]})")
    for file in files:
        shutil.copy(file, folder / file.name)
    settings_file = folder / "tokenizer_config.json"
    settings = json.loads(settings_file.read_text()) if settings_file.exists() else {}
    inputs = (
        ["input_ids", "token_type_ids", "attention_mask"] if kind is KINDS["bert"] else ["input_ids", "attention_mask"]
    )
    settings["model_input_names"] = inputs  # the others have no embedding for a second segment
    settings_file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    (folder / "README.md").write_text(CARD.format(kind=model.config.kind, title=title, rows=rows))


def _compare(model: MaskedLM, folder: Path, special_ids: Mapping[str, int]) -> tuple[str, float]:
    """Run the folder on three sequences; returns what ran it, and the largest difference of a logit."""
    generator = torch.Generator().manual_seed(0)
    lengths = [min(length, model.config.max_length) for length in (3, 17, 64)]
    drawn = [torch.randint(model.config.vocab_size, (n,), generator=generator) for n in lengths]
    # transformers gives a padding token no position of its own, and there is none in a pack.
    sequences = [ids.where(ids != special_ids["pad"], special_ids["end"]).tolist() for ids in drawn]
    batch = pack(sequences, targets=[list(range(n)) for n in lengths])
    device = model.output_weight.device
    was_training = model.training
    model.eval()
    with torch.no_grad():
        ours_MV = model.logits(batch.to(device)).float().cpu()
        if importlib.util.find_spec("transformers") is not None:
            checked_with, theirs_MV = "transformers", _transformers_logits(folder, sequences)
        else:
            checked_with, theirs_MV = "oarlock", _own_logits(folder, batch)
    model.train(was_training)
    difference = float((ours_MV - theirs_MV).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(ours_MV.abs().max())):
        raise RuntimeError(
            f"the exported folder, run by {checked_with}, gives logits that differ by {difference:.2e} "
            f"(at most {TOLERANCE:.0e} is allowed); nothing was exported"
        )
    return checked_with, difference


def _transformers_logits(folder: Path, sequences: list[list[int]]) -> Tensor:
    from transformers import AutoModelForMaskedLM
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    finally:
        if shown:
            logging.enable_progress_bar()
    return torch.cat([model(torch.tensor([ids])).logits[0] for ids in sequences])


def _own_logits(folder: Path, batch: Batch) -> Tensor:
    model, _ = load_huggingface(folder)
    return model.eval().logits(batch)
