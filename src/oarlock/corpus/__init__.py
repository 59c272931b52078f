"""From documents of any format to token ids on disk, with a report on the data before money is spent."""

from oarlock.corpus.data_report import DataReport
from oarlock.corpus.dataset import Dataset, Manifest, SpecialIds, Split, SplitCounts, open_dataset
from oarlock.corpus.options import PrepareConfig

__all__ = ["DataReport", "Dataset", "Manifest", "PrepareConfig", "SpecialIds", "Split", "SplitCounts", "open_dataset"]
