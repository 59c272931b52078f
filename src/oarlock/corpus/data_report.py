"""The data report as a value: what a person should know of a corpus before money is spent on it.

It is written as `report.json` beside the data. Shares are between 0 and 1. Text in it (examples, paths) is as found
in the corpus: whoever shows it escapes it.
"""

from oarlock.config import Frozen
from oarlock.corpus.dataset import SplitCounts
from oarlock.corpus.kinds import CharacterChange

CHARACTERS_SHOWN = 20
FILES_SHOWN = 20


class TokenizerSummary(Frozen):
    """The tokenizer in words."""

    source: str
    """Where it came from, or that it was trained."""
    model: str
    """WordPiece, BPE, Unigram or WordLevel."""
    normalizer: str
    """Its normaliser's steps."""
    pre_tokenizer: str
    """Its pre-tokenizer's steps."""
    vocab_size: int
    special_tokens: dict[str, int]
    """Every special token and its id."""
    trained_on_bytes: int | None
    """Bytes of text it was trained on, where it was trained."""


class InputSummary(Frozen):
    """What was read."""

    files: int
    bytes_on_disk: int
    empty_files: int
    """Files without a document."""


class DocumentStatistics(Frozen):
    """What the documents look like, so that a wrong choice of what a document is shows at once."""

    rule: str
    """What a document was taken to be."""
    count: int
    """Documents with at least one token."""
    empty: int
    """Documents without text, or whose text has no token."""
    skipped: int
    """Documents left out because their text was not valid."""
    mean_tokens: float
    median_tokens: float
    """To within 3 %."""
    longest_tokens: int
    mean_lines: float
    lines: int
    """Lines with text."""
    blank_lines: int
    characters: int


class TokenAccounts(Frozen):
    """Where every ordinary token went: placed + dropped = produced."""

    produced: int
    """By the tokenizer, special tokens that frame a sequence aside."""
    placed: int
    """In sequences of either split."""
    dropped: int
    """In sequences with fewer than min_tokens ordinary tokens."""
    dropped_sequences: int
    framing: int
    """Special tokens added at the start and end of sequences."""


class LengthBin(Frozen):
    """Sequences whose length is `low` to `high`, both included."""

    low: int
    high: int
    sequences: int
    tokens: int


class PaddingCost(Frozen):
    """What padding would have cost: tokens computed over tokens that say something."""

    to_max_length: float
    """Every sequence padded to max_length."""
    to_longest: float
    """Every sequence padded to the longest there is."""


class Duplicates(Frozen):
    """Share of what was seen before: 1 - distinct / all."""

    lines: float
    documents: float
    exact: bool
    """False where there was so much text that the shares are estimated from a sample by hash."""


class FileUnknown(Frozen):
    """Unknown tokens of one file."""

    path: str
    tokens: int
    unknown: int
    share: float


class UnknownTokens(Frozen):
    """Text that the vocabulary cannot express."""

    count: int
    share: float
    files: tuple[FileUnknown, ...]
    """The files with the largest shares, largest first; at most FILES_SHOWN."""


class ChangedCharacter(Frozen):
    """A character that the tokenizer's normaliser removes, replaces or strips of its accent."""

    character: str
    code_point: str
    """As `U+200D`."""
    name: str
    """Its Unicode name."""
    change: CharacterChange
    becomes: str
    """What it turns into; empty where it is removed."""
    count: int
    carries_meaning: bool = False
    """Whether a word may be another without it: joiners, and vowel signs and other marks outside of Europe."""
    before: str
    """An example: the text around it, as it stands in the corpus."""
    after: str
    """The same text after the normaliser."""


class NormalizerEffect(Frozen):
    """Characters changed or lost by the normaliser, by kind of change."""

    removed: int
    replaced: int
    accents_stripped: int
    lowercased: int
    meaning_lost: int = 0
    """Of those removed, replaced or stripped: characters that carry meaning (see ChangedCharacter)."""
    characters: tuple[ChangedCharacter, ...]
    """By kind of SHOWN_CHANGES, at most CHARACTERS_SHOWN each: those that carry meaning first, then by frequency."""


class FileUndecodable(Frozen):
    """What of one file was not valid UTF-8."""

    path: str
    count: int
    first_line: int
    """From 1 (of a parquet file: the row)."""
    first_offset: int
    """In bytes from the start of the file, after decompression; of a JSON record, its start."""


class Undecodable(Frozen):
    """Text that was not valid: broken UTF-8, or halves of surrogate pairs in JSON."""

    count: int
    files: tuple[FileUndecodable, ...]
    """The files with the most, most first; at most FILES_SHOWN."""


class DataReport(Frozen):
    """Everything that `oarlock prepare` found out about a corpus."""

    reused: bool
    """True where a finished data set was found that is the same, and nothing was built."""
    input: InputSummary
    tokenizer: TokenizerSummary
    max_length: int
    documents: DocumentStatistics
    train: SplitCounts
    validation: SplitCounts
    tokens: TokenAccounts
    lengths: tuple[LengthBin, ...]
    """Histogram of the lengths of the sequences of both splits, special tokens included."""
    padding: PaddingCost
    duplicates: Duplicates
    unknown: UnknownTokens
    normalizer: NormalizerEffect
    undecodable: Undecodable
    special_tokens_in_text: dict[str, int]
    """How often each special token is written out in the text, where it is."""
    special_tokens_parsed: bool
    """Whether those were read as special tokens; otherwise they stayed text."""
    unigram_baseline: float
    """Loss in nats of a model that only knows how frequent each token is in the training split."""
    warnings: tuple[str, ...]
    """What a person should look at before training."""
