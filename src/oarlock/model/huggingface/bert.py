"""BERT in a Hugging Face folder: names of its weights, and its config.json."""

from typing import Any

from oarlock.config import ModelConfig

ARCHITECTURE = "BertForMaskedLM"
PREFIX = "bert."

ENCODER = {
    "encoder.embeddings.words.weight": ("embeddings.word_embeddings.weight",),
    "encoder.embeddings.positions.weight": ("embeddings.position_embeddings.weight",),
    "encoder.embeddings.segments.weight": ("embeddings.token_type_embeddings.weight",),
    "encoder.embeddings.norm.*": ("embeddings.LayerNorm.*",),
    "encoder.layers.{i}.attention.qkv.*": tuple(
        f"encoder.layer.{{i}}.attention.self.{part}.*" for part in ("query", "key", "value")
    ),
    "encoder.layers.{i}.attention.out.*": ("encoder.layer.{i}.attention.output.dense.*",),
    "encoder.layers.{i}.attention_norm.*": ("encoder.layer.{i}.attention.output.LayerNorm.*",),
    "encoder.layers.{i}.mlp.up.*": ("encoder.layer.{i}.intermediate.dense.*",),
    "encoder.layers.{i}.mlp.down.*": ("encoder.layer.{i}.output.dense.*",),
    "encoder.layers.{i}.mlp_norm.*": ("encoder.layer.{i}.output.LayerNorm.*",),
    "pooler.dense.*": ("pooler.dense.*",),
}
HEAD = {
    "head.dense.*": ("cls.predictions.transform.dense.*",),
    "head.norm.*": ("cls.predictions.transform.LayerNorm.*",),
    "head.bias": ("cls.predictions.bias",),
}
COPIES = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
"""Tied to weights above, so they may be there or not."""


def to_config(config: ModelConfig) -> dict[str, Any]:
    """The shape, in the terms of `transformers.BertConfig`."""
    return {
        "model_type": "bert",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_length,
        "type_vocab_size": config.token_types,
        "initializer_range": config.initializer_range,
        "layer_norm_eps": config.norm_epsilon,
    }


def from_config(hf: dict[str, Any]) -> dict[str, Any]:
    """Fields of `ModelConfig` from a `transformers.BertConfig`."""
    return {
        "kind": "bert",
        "vocab_size": hf["vocab_size"],
        "hidden_size": hf["hidden_size"],
        "num_layers": hf["num_hidden_layers"],
        "num_heads": hf["num_attention_heads"],
        "intermediate_size": hf["intermediate_size"],
        "dropout": hf.get("hidden_dropout_prob", 0.1),
        "attention_dropout": hf.get("attention_probs_dropout_prob", 0.1),
        "max_length": hf.get("max_position_embeddings", 512),
        "token_types": hf.get("type_vocab_size", 2),
        "initializer_range": hf.get("initializer_range", 0.02),
        "norm_epsilon": hf.get("layer_norm_eps", 1e-12),
        "pad_id": hf.get("pad_token_id") or 0,
    }


REQUIRED = {"hidden_act": "gelu", "position_embedding_type": "absolute", "tie_word_embeddings": True}
"""What the folder's config.json must say, where it says it."""
