"""Oarlock: train Transformer encoders on variable-length text, without padding.

    import oarlock

    oarlock.prepare(oarlock.PrepareConfig(inputs=("corpus/*.txt",), out="DATA"))
    oarlock.pretrain(oarlock.recipe("bert-mini", data="DATA", out="RUN", steps=2000))
    oarlock.export_run("RUN", Path("MODEL"))

Names are imported when they are first used, so that `import oarlock` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oarlock.config import ModelConfig, RunConfig
    from oarlock.corpus import PrepareConfig, open_dataset, prepare
    from oarlock.model import build_model, export_huggingface, load_huggingface
    from oarlock.recipes import RECIPES, recipe
    from oarlock.state import evaluate_trained, export_run, fill_mask_with, load_trained
    from oarlock.train import RunResult, pretrain

_HOMES = {
    "ModelConfig": "config",
    "PrepareConfig": "corpus",
    "RECIPES": "recipes",
    "RunConfig": "config",
    "RunResult": "train",
    "build_model": "model",
    "evaluate_trained": "state",
    "export_huggingface": "model",
    "export_run": "state",
    "fill_mask_with": "state",
    "load_huggingface": "model",
    "load_trained": "state",
    "open_dataset": "corpus",
    "prepare": "corpus",
    "pretrain": "train",
    "recipe": "recipes",
}

__all__ = [
    "RECIPES",
    "ModelConfig",
    "PrepareConfig",
    "RunConfig",
    "RunResult",
    "build_model",
    "evaluate_trained",
    "export_huggingface",
    "export_run",
    "fill_mask_with",
    "load_huggingface",
    "load_trained",
    "open_dataset",
    "prepare",
    "pretrain",
    "recipe",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'oarlock' has no attribute {name!r}")
    return getattr(import_module(f"oarlock.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
