"""From documents of any format to token ids on disk, with a report on the data before money is spent.

Names are imported when they are first used, so that a worker process imports only what it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oarlock.corpus.data_report import DataReport
    from oarlock.corpus.dataset import Dataset, Manifest, SpecialIds, Split, SplitCounts, open_dataset
    from oarlock.corpus.options import PrepareConfig
    from oarlock.corpus.pipeline import prepare
    from oarlock.corpus.progress import Progress
    from oarlock.corpus.tokenizer import LoadedTokenizer, load_tokenizer

_HOMES = {
    "DataReport": "data_report",
    "Dataset": "dataset",
    "LoadedTokenizer": "tokenizer",
    "Manifest": "dataset",
    "PrepareConfig": "options",
    "Progress": "progress",
    "SpecialIds": "dataset",
    "Split": "dataset",
    "SplitCounts": "dataset",
    "load_tokenizer": "tokenizer",
    "open_dataset": "dataset",
    "prepare": "pipeline",
}

__all__ = [
    "DataReport",
    "Dataset",
    "LoadedTokenizer",
    "Manifest",
    "PrepareConfig",
    "Progress",
    "SpecialIds",
    "Split",
    "SplitCounts",
    "load_tokenizer",
    "open_dataset",
    "prepare",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'oarlock.corpus' has no attribute {name!r}")
    return getattr(import_module(f"oarlock.corpus.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
