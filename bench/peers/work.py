"""The work that every contestant gets, in forms that others read: a folder of weights, and padded rows.

Suffixes: S sequences, T tokens, L longest length.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from oarlock.batches import Batch
from oarlock.config import ModelConfig
from oarlock.model import MaskedLM, build_model
from oarlock.model.huggingface.weights import KINDS, to_folder
from oarlock.recipes import recipe
from oarlock.step.measure import wikipedia_batch

VOCABULARIES = {"bert": 30522, "roberta": 50265, "modernbert": 50368}
IGNORED = -100
"""Label of a position that no loss reads."""


def shape(name: str) -> ModelConfig:
    """The model of a recipe, with the vocabulary that its paper had."""
    config = recipe(name, data="", out="", steps=1).model
    return config.model_copy(update={"vocab_size": VOCABULARIES[config.kind]})


def build(name: str) -> MaskedLM:
    """The model of a recipe with the weights that everyone starts from."""
    return build_model(shape(name), seed=0)


def pack_work(name: str, num_sequences: int) -> Batch:
    """The batch that everyone trains on: random tokens at the Wikipedia lengths, 15 % of them targets."""
    return wikipedia_batch(shape(name), num_sequences, seed=0)


def write_job(name: str, num_sequences: int, folder: Path) -> None:
    """All that a contestant needs: what the work is, the model as a Hugging Face folder, the batch as padded rows."""
    (folder / "work.json").write_text(json.dumps({"model": name, "sequences": num_sequences}))
    write_folder(build(name), folder)
    np.savez(folder / "rows.npz", **{key: rows.numpy() for key, rows in padded(pack_work(name, num_sequences)).items()})


def write_folder(model: MaskedLM, folder: Path, pad_id: int = 0) -> None:
    """A Hugging Face folder of the model: its shape, dropout and weights in fp32."""
    kind = KINDS[model.config.kind]
    settings = {"architectures": [kind.ARCHITECTURE], "pad_token_id": pad_id, **kind.to_config(model.config)}
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(to_folder(model), folder / "model.safetensors", metadata={"format": "pt"})


def padded(batch: Batch, pad_id: int = 0) -> dict[str, Tensor]:
    """A packed batch as rows [S, L]: `input_ids`, `attention_mask` (1 where there is a token) and `labels`."""
    lengths = batch.cu_seqlens_S1.diff().tolist()
    labels_T = torch.full_like(batch.ids_T, IGNORED)
    labels_T[batch.target_positions_M] = batch.target_ids_M

    def rows(values_T: Tensor, padding: int) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(values_T.split(lengths), batch_first=True, padding_value=padding)

    return {
        "input_ids": rows(batch.ids_T, pad_id),
        "attention_mask": rows(torch.ones_like(batch.ids_T), 0),
        "labels": rows(labels_T, IGNORED),
    }
