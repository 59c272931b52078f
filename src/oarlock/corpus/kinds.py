"""Names for choices. Worker processes import this and not the options, whose classes take long to make."""

from typing import Literal

DocumentRule = Literal["line", "blank", "file"]
TokenizerKind = Literal["wordpiece", "bpe", "unigram"]
InvalidText = Literal["error", "replace", "skip"]
CharacterChange = Literal["removed", "replaced", "accent stripped", "lowercased"]
SHOWN_CHANGES: tuple[CharacterChange, ...] = ("removed", "replaced", "accent stripped")
