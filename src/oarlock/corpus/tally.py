"""Adding up what is found in the blocks. Suffixes as in windows: D documents, W windows, V vocabulary."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oarlock.corpus.dataset import SplitCounts
from oarlock.corpus.duplicates import DuplicateCounter
from oarlock.corpus.encoding import Encoded
from oarlock.corpus.records import Place
from oarlock.corpus.windows import Windows

NUM_CODE_POINTS = 0x110000
# Documents are counted by the logarithm of their tokens, in steps of 2 ** (1 / 16).
STEPS_PER_OCTAVE = 16
NUM_STEPS = 40 * STEPS_PER_OCTAVE


@dataclass
class SplitTally:
    """One split."""

    documents: int = 0
    sequences: int = 0
    tokens: int = 0
    longest: int = 0

    def add(self, lengths_W: NDArray[np.int64], num_documents: int) -> None:
        """Count these sequences."""
        self.documents += num_documents
        self.sequences += len(lengths_W)
        self.tokens += int(lengths_W.sum())
        self.longest = max(self.longest, int(lengths_W.max(initial=0)))

    def counts(self) -> SplitCounts:
        """As a value."""
        return SplitCounts(documents=self.documents, sequences=self.sequences, tokens=self.tokens, longest=self.longest)


class Tally:
    """Everything that is counted of a corpus; memory is bounded but for a few numbers a file."""

    def __init__(self, num_files: int, vocab_size: int, max_length: int) -> None:
        self.train, self.validation = SplitTally(), SplitTally()
        self.unigrams_V = np.zeros(vocab_size, np.int64)
        """Of the training split."""
        self.lengths = np.zeros(max_length + 1, np.int64)
        """Sequences by length."""
        self.document_steps = np.zeros(NUM_STEPS, np.int64)
        """Documents by the logarithm of their tokens."""
        self.num_documents = self.num_empty = self.num_skipped = 0
        self.longest_document = 0
        self.num_lines = self.num_blank_lines = self.num_characters = 0
        self.produced = self.dropped = self.dropped_sequences = 0
        self.special_inside = False
        """Whether a sequence has special tokens apart from those that frame it."""
        self.line_duplicates, self.document_duplicates = DuplicateCounter(), DuplicateCounter()
        self.code_points = np.zeros(NUM_CODE_POINTS, np.int64)
        self.examples: dict[int, str] = {}
        self.literals: Counter[str] = Counter()
        self.file_documents = np.zeros(num_files, np.int64)
        self.file_tokens = np.zeros(num_files, np.int64)
        self.file_unknown = np.zeros(num_files, np.int64)
        self.file_flaws = np.zeros(num_files, np.int64)
        self.first_flaws: dict[int, Place] = {}
        self.lowest_key: int | None = None
        """Of all documents with a sequence."""
        self.highest_key: int | None = None

    def add(self, block: Encoded, windows: Windows, limit: np.uint64, train_ids: NDArray[np.unsignedinteger]) -> None:
        """Count a block and the windows that it completed.

        Documents whose key is below `limit` are held out; `train_ids` are those of the windows of the others.
        """
        self._add_text(block)
        self._add_files(block)
        held_W, held_D = windows.keys_W < limit, windows.keys_D < limit
        self.train.add(windows.lengths_W[~held_W], int((windows.kept_D & ~held_D).sum()))
        self.validation.add(windows.lengths_W[held_W], int((windows.kept_D & held_D).sum()))
        self.unigrams_V += np.bincount(train_ids, minlength=len(self.unigrams_V))
        self.lengths += np.bincount(windows.lengths_W, minlength=len(self.lengths))
        self.special_inside |= windows.special_inside
        self.produced += int(block.num_tokens.sum())
        self.dropped += windows.num_dropped_tokens
        self.dropped_sequences += windows.num_dropped
        self._add_documents(windows)

    def _add_text(self, block: Encoded) -> None:
        self.num_skipped += block.num_skipped
        self.num_lines += block.num_lines
        self.num_blank_lines += block.num_blank_lines
        self.num_characters += block.num_characters
        self.line_duplicates.add(block.line_hashes)
        self.code_points[block.code_points] += block.code_counts
        self.examples = block.examples | self.examples  # the first of the corpus stays
        self.literals += block.literals

    def _add_files(self, block: Encoded) -> None:
        for counts in block.files:
            self.file_documents[counts.source] += counts.documents
            self.file_tokens[counts.source] += counts.tokens
            self.file_unknown[counts.source] += counts.unknown
            self.file_flaws[counts.source] += counts.num_flaws
            if counts.first_flaw is not None:
                self.first_flaws.setdefault(counts.source, counts.first_flaw)

    def _add_documents(self, windows: Windows) -> None:
        tokens_D = windows.num_tokens_D[windows.num_tokens_D > 0]
        self.num_documents += len(tokens_D)
        self.num_empty += len(windows.num_tokens_D) - len(tokens_D)
        self.longest_document = max(self.longest_document, int(tokens_D.max(initial=0)))
        steps = np.round(STEPS_PER_OCTAVE * np.log2(tokens_D)).astype(np.int64)
        self.document_steps += np.bincount(steps, minlength=NUM_STEPS)
        self.document_duplicates.add(windows.hashes_D[windows.num_tokens_D > 0])
        keys = windows.keys_D[windows.kept_D]
        if len(keys):
            lowest, highest = int(keys.min()), int(keys.max())
            self.lowest_key = lowest if self.lowest_key is None else min(lowest, self.lowest_key)
            self.highest_key = highest if self.highest_key is None else max(highest, self.highest_key)
