"""Masked-LM pretraining, by architecture and size.

Shapes are those of the papers: BERT's miniatures by Turc et al. (2019, arXiv:1908.08962), base and large by Devlin et
al. (2019) and Warner et al. (2024); ModernBERT's small sizes keep its proportions.
"""

from typing import Any

from oarlock.config import ModelConfig, OptimizerConfig, RunConfig

_WIDTHS = {  # size: hidden size, layers, heads
    "tiny": (128, 2, 2),
    "mini": (256, 4, 4),
    "small": (512, 4, 8),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
}
_MODERN_LAYERS = {"base": 22, "large": 28}
_MODERN_INNER = {"tiny": 192, "mini": 384, "small": 768, "base": 1152, "large": 2624}
_LEARNING_RATES = {"tiny": 2e-3, "mini": 1e-3, "small": 7e-4, "base": 4e-4, "large": 2e-4}
_KINDS = ("bert", "roberta", "modernbert")

RECIPES = tuple(f"{kind}-{size}" for kind in _KINDS for size in _WIDTHS)
"""Names that `recipe` knows."""


def recipe(name: str, *, data: str, out: str, steps: int, **fields: Any) -> RunConfig:
    """The configuration of a run.

    Args:
        name: one of `RECIPES`.
        data: folder (or URL) that `oarlock prepare` wrote.
        out: folder (or URL) of the run.
        steps: optimizer steps.
        fields: any other field of `RunConfig`, in place of the recipe's.

    Raises:
        ValueError: there is no such recipe, or the fields do not fit together.
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}")
    kind, size = name.split("-")
    recipe_fields = {
        "model": _model(kind, size),
        "optimizer": OptimizerConfig(learning_rate=_LEARNING_RATES[size]),
    }
    return RunConfig(data=data, out=out, steps=steps, **(recipe_fields | fields))


def _model(kind: str, size: str) -> ModelConfig:
    width, layers, heads = _WIDTHS[size]
    shape: dict[str, Any] = {"hidden_size": width, "num_layers": layers, "num_heads": heads}
    if kind == "modernbert":
        shape |= {"num_layers": _MODERN_LAYERS.get(size, layers), "intermediate_size": _MODERN_INNER[size]}
        shape |= {"dropout": 0.0, "attention_dropout": 0.0, "norm_epsilon": 1e-5, "max_length": 1024}
        return ModelConfig(kind="modernbert", **shape)
    shape["intermediate_size"] = 4 * width
    if kind == "roberta":
        return ModelConfig(kind="roberta", token_types=1, norm_epsilon=1e-5, **shape)
    return ModelConfig(kind="bert", **shape)
