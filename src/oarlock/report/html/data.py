"""The data report as values for the template."""

from dataclasses import dataclass

from oarlock.corpus.data_report import DataReport
from oarlock.report import formats
from oarlock.report.data_facts import Fact, LengthShare, changed_characters, data_facts, length_shares, visible

MOST_BARS = 16
CHARACTERS_OF_A_KIND = 6
MOST_FILES = 8


@dataclass(frozen=True)
class Share:
    """One bar."""

    label: str
    percent: float
    """Length of the bar."""
    value: str


@dataclass(frozen=True)
class Change:
    """A character that the normaliser changes."""

    name: str
    fate: str
    before: str
    after: str


@dataclass(frozen=True)
class DataSection:
    """All the template needs."""

    warnings: tuple[str, ...]
    facts: list[Fact]
    lengths: list[LengthShare]
    widest: float
    """The largest share of sequences or tokens in a bar of the histogram."""
    max_length: int
    useful_percent: float
    """Share of a padded batch that would be text."""
    padding_percent: float
    unknown: list[Share]
    changes: list[Change]


def data_section(report: DataReport) -> DataSection:
    """Everything in text that could not be seen is written out."""
    lengths = length_shares(report, MOST_BARS)
    useful = 100 / max(report.padding.to_max_length, 1.0)
    files = [file for file in report.unknown.files if file.unknown][:MOST_FILES]
    worst = max((file.share for file in files), default=1.0)
    return DataSection(
        warnings=tuple(map(visible, report.warnings)),
        facts=data_facts(report),
        lengths=lengths,
        widest=max((max(bar.sequences, bar.tokens) for bar in lengths), default=0.0) or 1.0,
        max_length=report.max_length,
        useful_percent=round(useful, 1),
        padding_percent=round(100 - useful, 1),
        unknown=[
            Share(visible(file.path), round(100 * file.share / worst, 1), formats.percent(file.share)) for file in files
        ],
        changes=[
            Change(
                name=f"{character.code_point} {visible(character.name)}",
                fate=f"{character.change}, {character.count:,} times",
                before=visible(character.before),
                after=visible(character.after),
            )
            for character in changed_characters(report, CHARACTERS_OF_A_KIND)
        ],
    )
