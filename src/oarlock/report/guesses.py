"""What a model puts in the place of masks, on the terminal."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from oarlock.report import formats

BAR_WIDTH = 20


def guesses_table(masks: Sequence[Sequence[tuple[str, float]]]) -> RenderableType:
    """One row a guess: token, probability and a bar; the masks of a text one after the other."""
    table = Table.grid(padding=(0, 2))
    for number, guesses in enumerate(masks, start=1):
        for rank, (token, probability) in enumerate(guesses):
            label = f"mask {number}" if rank == 0 and len(masks) > 1 else ""
            bar = "━" * round(BAR_WIDTH * probability)
            table.add_row(Text(label, style="dim"), Text(token), formats.percent(probability), Text(bar, style="cyan"))
    return table
