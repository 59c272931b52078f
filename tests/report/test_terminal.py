import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from oarlock.report.terminal import data_report_table
from oarlock.testing.runs import fake_data_report


def shown(report, width=80, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(data_report_table(report))
    return console.file.getvalue()


def test_warnings_come_first():
    lines = shown(fake_data_report()).splitlines()
    assert "Look at this before you train" in lines[0]
    assert "12.3 % of lines were seen before" in lines[1]
    assert shown(fake_data_report(warnings=[])).startswith("Input ")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_everything_fits_the_terminal(width):
    text = shown(fake_data_report(), width)
    assert max(map(cell_len, text.splitlines())) <= width
    words = " ".join(text.split())
    for expected in ("Unigram baseline", "6.469", "Padding avoided", "U+200D", "69.2 %"):
        assert expected in words


def test_it_is_compact():
    assert len(shown(fake_data_report(), 100).splitlines()) < 45


def test_the_longest_bar_belongs_to_the_fullest_bin():
    bars = {
        line.split("━")[0].strip(): line.count("━") for line in shown(fake_data_report()).splitlines() if "━" in line
    }
    assert max(bars, key=bars.get) == "57 to 64"
    assert min(bars.values()) >= 1


def test_text_of_the_corpus_cannot_steer_the_terminal():
    report = fake_data_report()
    files = [{"path": "\x1b]0;title\x07[bold]x", "tokens": 10, "unknown": 5, "share": 0.5}]
    hostile = fake_data_report(
        warnings=["\x1b[2J [red]cleared[/red]"],
        unknown={"count": 5, "share": 0.5, "files": files},
        special_tokens_in_text={"\x1b[SEP]": 1},
        normalizer={
            **report.normalizer.model_dump(),
            "characters": [
                {**one.model_dump(), "before": "\x1b[H\x9b", "name": "\r"} for one in report.normalizer.characters
            ],
        },
    )
    text = shown(hostile)
    assert all(character == "\n" or character.isprintable() for character in text)
    assert "[red]cleared[/red]" in text
