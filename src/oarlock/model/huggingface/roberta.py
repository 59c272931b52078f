"""RoBERTa in a Hugging Face folder: BERT's encoder under another prefix, another head, positions after the padding."""

from typing import Any

from oarlock.config import ModelConfig
from oarlock.model.huggingface import bert

ARCHITECTURE = "RobertaForMaskedLM"
PREFIX = "roberta."

ENCODER = bert.ENCODER
HEAD = {
    "head.dense.*": ("lm_head.dense.*",),
    "head.norm.*": ("lm_head.layer_norm.*",),
    "head.bias": ("lm_head.bias",),
}
COPIES = ("lm_head.decoder.weight", "lm_head.decoder.bias")
REQUIRED = bert.REQUIRED


def to_config(config: ModelConfig) -> dict[str, Any]:
    """The shape, in the terms of `transformers.RobertaConfig`."""
    positions = config.max_length + config.pad_id + 1
    return {**bert.to_config(config), "model_type": "roberta", "max_position_embeddings": positions}


def from_config(hf: dict[str, Any]) -> dict[str, Any]:
    """Fields of `ModelConfig` from a `transformers.RobertaConfig`."""
    pad_id = hf.get("pad_token_id", 1)
    length = hf.get("max_position_embeddings", 514) - pad_id - 1
    return {**bert.from_config(hf), "kind": "roberta", "pad_id": pad_id, "max_length": length}
