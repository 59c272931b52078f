"""From documents of any format to token ids on disk, with a report on the data before money is spent."""

from oarlock.corpus.data_report import DataReport
from oarlock.corpus.dataset import Dataset, Manifest, SpecialIds, Split, SplitCounts, open_dataset
from oarlock.corpus.options import PrepareConfig
from oarlock.corpus.pipeline import prepare
from oarlock.corpus.progress import Progress
from oarlock.corpus.tokenizer import LoadedTokenizer, load_tokenizer

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
