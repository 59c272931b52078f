"""ModernBERT in a Hugging Face folder: names of its weights, and its config.json."""

from typing import Any

from oarlock.config import ModelConfig
from oarlock.model.modernbert import is_global

ARCHITECTURE = "ModernBertForMaskedLM"
PREFIX = "model."

ENCODER = {
    "encoder.embeddings.words.weight": ("embeddings.tok_embeddings.weight",),
    "encoder.embeddings.norm.weight": ("embeddings.norm.weight",),
    "encoder.layers.{i}.attention_norm.weight": ("layers.{i}.attn_norm.weight",),
    "encoder.layers.{i}.attention.qkv.weight": ("layers.{i}.attn.Wqkv.weight",),
    "encoder.layers.{i}.attention.out.weight": ("layers.{i}.attn.Wo.weight",),
    "encoder.layers.{i}.mlp_norm.weight": ("layers.{i}.mlp_norm.weight",),
    "encoder.layers.{i}.mlp.up.weight": ("layers.{i}.mlp.Wi.weight",),
    "encoder.layers.{i}.mlp.down.weight": ("layers.{i}.mlp.Wo.weight",),
    "encoder.final_norm.weight": ("final_norm.weight",),
}
HEAD = {
    "head.dense.weight": ("head.dense.weight",),
    "head.norm.weight": ("head.norm.weight",),
    "head.bias": ("decoder.bias",),
}
COPIES = ("decoder.weight",)


def to_config(config: ModelConfig) -> dict[str, Any]:
    """The shape, in the terms of `transformers.ModernBertConfig`, in both the older and the newer form of its keys."""
    kinds = ["full_attention" if is_global(config, i) else "sliding_attention" for i in range(config.num_layers)]
    return {
        "model_type": "modernbert",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_size,
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "max_position_embeddings": config.max_length,
        "initializer_range": config.initializer_range,
        "norm_eps": config.norm_epsilon,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "embedding_dropout": config.dropout,
        "mlp_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "local_attention": config.local_window,
        "global_attn_every_n_layers": config.global_every,
        "global_rope_theta": config.global_rope_theta,
        "local_rope_theta": config.local_rope_theta,
        "layer_types": kinds,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": config.global_rope_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": config.local_rope_theta},
        },
    }


def from_config(hf: dict[str, Any]) -> dict[str, Any]:
    """Fields of `ModelConfig` from a `transformers.ModernBertConfig`.

    Raises:
        ValueError: the global layers are not every n-th from the first.
    """
    rope = hf.get("rope_parameters", {})
    fields = {
        "kind": "modernbert",
        "vocab_size": hf["vocab_size"],
        "hidden_size": hf["hidden_size"],
        "num_layers": hf["num_hidden_layers"],
        "num_heads": hf["num_attention_heads"],
        "intermediate_size": hf["intermediate_size"],
        "dropout": hf.get("mlp_dropout", 0.0),
        "attention_dropout": hf.get("attention_dropout", 0.0),
        "max_length": hf.get("max_position_embeddings", 8192),
        "initializer_range": hf.get("initializer_range", 0.02),
        "norm_epsilon": hf.get("norm_eps", 1e-5),
        "local_window": hf.get("local_attention", 128),
        "global_every": hf.get("global_attn_every_n_layers") or _spacing(hf.get("layer_types", [])),
        "global_rope_theta": _theta(rope, "full_attention") or hf.get("global_rope_theta") or 160_000.0,
        "local_rope_theta": _theta(rope, "sliding_attention") or hf.get("local_rope_theta") or 10_000.0,
        "pad_id": hf.get("pad_token_id") or 0,
    }
    kinds = to_config(ModelConfig(**fields))["layer_types"]
    if hf.get("layer_types", kinds) != kinds:
        raise ValueError(f"layer_types {hf['layer_types']} is not global attention in every n-th layer from the first")
    return fields


REQUIRED = {
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
    "tie_word_embeddings": True,
}


def _spacing(kinds: list[str]) -> int:
    """Distance between the first two global layers; all layers where there is no second."""
    later = [i for i, kind in enumerate(kinds) if kind == "full_attention" and i > 0]
    return later[0] if later else max(1, len(kinds)) if kinds else 3


def _theta(rope: dict[str, Any], kind: str) -> float | None:
    value = rope.get(kind, {}).get("rope_theta")
    return None if value is None else float(value)
