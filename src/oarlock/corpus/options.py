"""What `oarlock prepare` can be told."""

from pydantic import Field, model_validator

from oarlock.config import Frozen
from oarlock.corpus.kinds import DocumentRule, InvalidText, TokenizerKind

MIN_VOCAB_SIZE = 300


class PrepareConfig(Frozen):
    """From documents to a data set. Everything but `workers` decides what the data set holds."""

    inputs: tuple[str, ...] = Field(min_length=1)
    """Files, folders, glob patterns or URLs: text, JSON lines (.jsonl, .ndjson, .json) or .parquet; all but parquet
    may be compressed (.gz, .bz2, .xz, .zst)."""
    out: str
    """Folder (or URL) of the data set."""
    tokenizer: str | None = None
    """Hugging Face folder, tokenizer.json or vocab.txt; without one, a tokenizer is trained on the input."""
    train_tokenizer: TokenizerKind = "wordpiece"
    """Kind of the tokenizer to train: WordPiece as BERT's, byte-level BPE as RoBERTa's, or Unigram."""
    vocab_size: int = Field(default=30522, gt=0, le=2**24)
    """Entries of the tokenizer to train, special tokens included."""
    lowercase: bool | None = None
    """For a WordPiece tokenizer that is trained or read from vocab.txt: whether text is lowercased. By default a
    trained one is lowercased, and one from vocab.txt is if its vocabulary has no capital letter."""
    tokenizer_sample: int = Field(default=64 * 2**20, ge=1024, le=2**40)
    """Bytes of text that a tokenizer is trained on at most, drawn by `seed` from the whole input."""
    documents: DocumentRule = "line"
    """In text files, what a document is: a line, a run of lines up to a blank one, or a whole file. A record of JSON
    lines or parquet is always a document."""
    text_key: str = "text"
    """Key (JSON lines) or column (parquet) that holds the text."""
    max_length: int = Field(default=512, ge=3, le=2**20)
    """Longest sequence in tokens, special tokens included; longer documents are cut, and the rest is kept."""
    validation_share: float = Field(default=0.01, gt=0.0, lt=1.0)
    """Share of the documents that is held out for evaluation, chosen by a hash of the document."""
    min_tokens: int = Field(default=1, ge=1)
    """Sequences with fewer ordinary tokens (special and unknown ones aside) are dropped."""
    parse_special_tokens: bool = False
    """Read special tokens written out in the text, such as `[SEP]`, as special tokens instead of as text."""
    on_invalid_utf8: InvalidText = "error"
    """Text that is not valid UTF-8: stop and say where, put U+FFFD in its place, or leave its document out."""
    workers: int | None = Field(default=None, ge=0)
    """Processes that tokenize, at most one a core; by default so many, and none (this process does it) for a small
    input."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Decides which documents are held out and which a tokenizer is trained on."""

    @model_validator(mode="after")
    def _lowercase_has_a_meaning(self) -> "PrepareConfig":
        if self.lowercase is not None and self.tokenizer is None and self.train_tokenizer != "wordpiece":
            raise ValueError(f"lowercase is for WordPiece, and train_tokenizer is {self.train_tokenizer}: leave it out")
        return self

    @model_validator(mode="after")
    def _names_are_text(self) -> "PrepareConfig":
        if not self.out.strip():
            raise ValueError("--out is empty: name a folder (or URL) for the data set")
        for flag, name in (("--out", self.out), ("--tokenizer", self.tokenizer or ""), ("--text-key", self.text_key)):
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"{flag} {name!r} is not valid UTF-8: give another name") from error
        return self

    @model_validator(mode="after")
    def _something_fits(self) -> "PrepareConfig":
        if self.min_tokens > self.max_length - 2:
            raise ValueError(
                f"max_length {self.max_length} less a start and an end token leaves room for {self.max_length - 2} "
                f"tokens, and min_tokens asks for {self.min_tokens}: raise max_length"
            )
        if self.tokenizer is None and self.vocab_size < MIN_VOCAB_SIZE:
            raise ValueError(
                f"vocab_size {self.vocab_size} is too small to train a tokenizer (bytes or letters alone need most of "
                f"it); give at least {MIN_VOCAB_SIZE}"
            )
        return self
