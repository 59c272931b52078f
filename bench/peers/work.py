"""The work that every contestant gets, in forms that others read: a folder of weights, and padded rows.

Suffixes: S sequences, T tokens, L longest length, D hidden.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from oarlock.batches import Batch
from oarlock.model import MaskedLM
from oarlock.model.huggingface.weights import KINDS, to_folder

IGNORED = -100
"""Label of a position that no loss reads."""


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
