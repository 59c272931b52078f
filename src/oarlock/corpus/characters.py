"""What a tokenizer's normaliser does to each character: left, lowercased, stripped of its accent, replaced, removed."""

import unicodedata
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oarlock.corpus.kinds import CharacterChange

Normalize = Callable[[str], str]

# A letter between two of which a character is shown to the normaliser: no character composes with it.
NEIGHBOUR = "q"
METASPACE = "▁"
CONTEXT = 20
# Marks up to here belong to Latin, Greek and Cyrillic, where a letter without its accent is often still read.
LAST_EUROPEAN_MARK = 0x36F
JOINERS = "\u200c\u200d"


class Change(NamedTuple):
    """What became of a character."""

    kind: CharacterChange
    becomes: str


def change_of(character: str, normalize: Normalize) -> Change | None:
    """What `normalize` does to a character that stands between letters.

    None where it stays, is only written in another canonically equivalent form (NFC, NFD), or is white space that
    becomes other white space.
    """
    shown = NEIGHBOUR + character + NEIGHBOUR
    result = normalize(shown)
    if result == shown or unicodedata.normalize("NFD", result) == unicodedata.normalize("NFD", shown):
        return None
    side = normalize(NEIGHBOUR).strip()
    middle = result.strip().removeprefix(side).removesuffix(side).replace(METASPACE, " ")
    becomes = middle.strip()
    if not becomes and character.isspace() and middle:
        return None
    if not becomes:
        return Change("removed", "")
    if becomes == character:  # only set apart by spaces, as BERT does to ideographs
        return None
    decomposed = unicodedata.normalize("NFD", character)
    base = "".join(part for part in decomposed if unicodedata.category(part) != "Mn")
    forms = {unicodedata.normalize("NFD", form) for form in (character.lower(), character)}
    if unicodedata.normalize("NFD", becomes) in forms:
        return Change("lowercased", becomes)
    if base != decomposed and becomes in (base, base.lower()):
        return Change("accent stripped", becomes)
    return Change("replaced", becomes)


def carries_meaning(character: str) -> bool:
    """Whether a word may be another without it: joiners, and vowel signs and other marks outside of Europe."""
    return any(
        part in JOINERS or (unicodedata.category(part) in ("Mn", "Mc") and ord(part) > LAST_EUROPEAN_MARK)
        for part in unicodedata.normalize("NFD", character)
    )


def count_code_points(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The code points of a text, ascending, and how often each stands there."""
    if text.isascii():
        codes = np.frombuffer(text.encode(), np.uint8)
    else:
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    counts = np.bincount(codes)
    points = np.flatnonzero(counts)
    return points, counts[points]


def context_of(character: str, text: str) -> str:
    """The first place of `text` in which a character stands."""
    index = text.index(character)
    return text[max(index - CONTEXT, 0) : index + CONTEXT + 1]
