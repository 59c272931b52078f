"""The data report on the terminal: warnings first, then one line a fact, then the lengths and examples."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from oarlock.corpus.data_report import DataReport
from oarlock.report import formats
from oarlock.report.data_facts import changed_characters, data_facts, length_shares, visible

MOST_BARS = 12
BAR_WIDTH = 24
CHARACTERS_OF_A_KIND = 3


def data_report_table(report: DataReport) -> RenderableType:
    """A compact picture of a data report for `rich.console.Console.print`."""
    parts: list[RenderableType] = [_warnings(report)] if report.warnings else []
    return Group(*parts, _facts(report), _lengths(report), *_changes(report))


def _warnings(report: DataReport) -> RenderableType:
    lines = Table.grid(padding=(0, 1))
    for warning in report.warnings:
        lines.add_row(Text("•"), Text(visible(warning)))
    return Panel(lines, title="Look at this before you train", title_align="left", border_style="yellow")


def _facts(report: DataReport) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for fact in data_facts(report):
        table.add_row(Text(fact.name, style="bold"), Text.assemble(fact.value, *_note(fact.note)))
    return table


def _note(note: str) -> list[tuple[str, str]]:
    return [(f" · {note}", "dim")] if note else []


def _lengths(report: DataReport) -> RenderableType:
    shares = length_shares(report, MOST_BARS)
    widest = max((share.sequences for share in shares), default=0.0) or 1.0
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("Lengths in tokens", style="bold"), Text("share of sequences", style="dim"))
    for share in shares:
        bar = "━" * max(round(BAR_WIDTH * share.sequences / widest), 1 if share.sequences else 0)
        text = Text.assemble((bar, "cyan"), " " if bar else "", formats.percent(share.sequences))
        table.add_row(Text(share.lengths, justify="right"), text)
    return Padding(table, (1, 0, 0, 0))


def _changes(report: DataReport) -> list[RenderableType]:
    characters = changed_characters(report, CHARACTERS_OF_A_KIND)
    if not characters:
        return []
    table = Table.grid(padding=(0, 2))
    for character in characters:
        name = Text(f"{character.code_point} {visible(character.name)}")
        fate = f"{character.change}, {character.count:,} times"
        example = f"{visible(character.before)} → {visible(character.after)}"
        table.add_row(name, Text.assemble(fate, (f"\n{example}", "dim")))
    return [Padding(Text("What the normaliser does to characters", style="bold"), (1, 0, 0, 0)), table]
