"""How far `prepare` is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["checking the input", "sampling", "training the tokenizer", "tokenizing", "tokenizing again", "writing"]


@dataclass(frozen=True)
class Progress:
    """A moment of `prepare`. Every phase goes from 0 to `bytes_total`; not every phase is always needed."""

    phase: Phase
    bytes_done: int
    """Of the input, on disk."""
    bytes_total: int
    documents: int = 0
    """Tokenized so far."""
    tokens: int = 0
    """Produced so far."""


OnProgress = Callable[[Progress], None]
