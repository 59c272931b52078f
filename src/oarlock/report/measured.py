"""What `oarlock bench` measured, as tables for the terminal."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oarlock.ops.measure import OperatorFigures
from oarlock.report import formats
from oarlock.step.measure import TrainingFigures

BAR_WIDTH = 24
GIGA = 1e9


def training_table(figures: TrainingFigures) -> RenderableType:
    """Rates of a training step, and its parts, largest first."""
    seconds = figures["step_seconds"]
    facts = {
        "Useful tokens a second": formats.count(figures["useful_tokens_per_second"]),
        "Sequences a second": f"{figures['sequences_per_second']:,.1f}",
        "Steps": f"{len(seconds)}, each of {figures['useful_tokens']:,} useful tokens, in {min(seconds):.3f} to "
        f"{max(seconds):.3f} s",
        "Arithmetic": f"{figures['flops_per_second'] / GIGA:,.0f} GFLOP/s",
        "GEMM rate": f"{figures['gemm_rate'] / GIGA:,.0f} GFLOP/s",
        "Share of it": formats.percent(figures["gemm_share"]),
    }
    return Group(_facts(facts), _parts(figures["shares"]))


def operators_table(rows: Sequence[OperatorFigures]) -> RenderableType:
    """Operators, their cases, and each form's times beside plain torch's."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Operator, case and form")
    for heading, width in (("forward ms", 10), ("ratio", 6), ("both ms", 9), ("ratio", 6)):
        table.add_column(heading, justify="right", min_width=width)
    operator, case = "", ""
    for row in rows:
        if row.operator != operator:
            table.add_row(Text(row.operator, style="bold"))
        if (row.operator, row.case) != (operator, case):
            table.add_row(Text(f"  {row.case}"))
        operator, case = row.operator, row.case
        both = ("", "") if row.both_ms is None else (f"{row.both_ms:,.2f}", f"{row.both_ratio:,.2f}")
        table.add_row(Text(f"    {row.form}"), f"{row.forward_ms:,.2f}", f"{row.forward_ratio:,.2f}", *both)
    return table


def loader_table(figures: Mapping[str, float]) -> RenderableType:
    """Rates at which batches are built."""
    return _facts(
        {
            "Useful tokens a second": formats.count(figures["useful_tokens_per_second"]),
            "Batches a second": f"{figures['batches_per_second']:,.1f}",
            "Workers": f"{figures['workers']:,}",
            "Sequences in a batch": f"{figures['sequences_per_batch']:,}",
            "Largest / mean tokens": f"{figures['imbalance']:.4f}",
        }
    )


def _facts(facts: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(Text(name, style="bold"), Text(value))
    return table


def _parts(shares: Mapping[str, float]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Part of a step", no_wrap=True)
    table.add_column("share", justify="right")
    table.add_column()
    for part, share in shares.items():
        table.add_row(Text(part), formats.percent(share), Text("━" * round(BAR_WIDTH * share), style="cyan"))
    return table
