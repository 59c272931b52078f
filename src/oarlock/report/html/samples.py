"""Sample predictions as a picture: the text with each guess in its place, and the likeliest tokens below."""

import math
from dataclasses import dataclass

from oarlock.report.facts import Sample, SampleTarget

MASK = "[MASK]"
MOST_SAMPLES = 8
MOST_GUESSES = 5


@dataclass(frozen=True)
class Bar:
    """One predicted token."""

    token: str
    percent: float
    right: bool


@dataclass(frozen=True)
class Gap:
    """A masked token and what the model put there."""

    number: int
    truth: str
    guess: str
    right: bool
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Piece:
    """A stretch of text, then a gap (or, at the end, none)."""

    text: str
    gap: Gap | None


@dataclass(frozen=True)
class Picture:
    """One sample."""

    pieces: tuple[Piece, ...]
    gaps: tuple[Gap, ...]
    right: int
    """Gaps whose likeliest token is the true one."""


def pictures(samples: tuple[Sample, ...]) -> list[Picture]:
    """Pictures of the first samples that have targets."""
    return [_picture(sample) for sample in samples if sample.targets][:MOST_SAMPLES]


def _picture(sample: Sample) -> Picture:
    gaps = tuple(_gap(number, target) for number, target in enumerate(sample.targets, start=1))
    texts = sample.text.split(MASK)
    # Where the text itself says [MASK], which mark belongs to which target is unknown: the gaps are then listed only.
    placed = gaps if len(texts) == len(gaps) + 1 else ()
    pieces = tuple(Piece(text, gap) for text, gap in zip(texts, placed, strict=False)) if placed else ()
    rest = Piece(texts[-1] if placed else sample.text, None)
    return Picture((*pieces, rest), gaps, sum(gap.right for gap in gaps))


def _gap(number: int, target: SampleTarget) -> Gap:
    bars = tuple(
        Bar(_readable(guess.token), _percent(guess.probability), guess.token == target.truth)
        for guess in target.predictions[:MOST_GUESSES]
    )
    guess = bars[0].token if bars else "?"
    return Gap(number, _readable(target.truth), guess, bool(bars) and bars[0].right, bars)


def _percent(probability: float) -> float:
    return round(100 * min(max(probability, 0.0), 1.0), 1) if math.isfinite(probability) else 0.0


def _readable(token: str) -> str:
    """A token of blanks or control characters, by the names of its characters."""
    if token.strip() and token.isprintable():
        return token
    return " ".join(f"U+{ord(character):04X}" for character in token) or "(empty)"
