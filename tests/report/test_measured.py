"""The tables of `oarlock bench`."""

from rich.console import Console, RenderableType

from oarlock.ops.measure import OperatorFigures
from oarlock.report import loader_table, operators_table, training_table


def shown(table: RenderableType) -> list[str]:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table)
    return [" ".join(line.split()) for line in capture.get().splitlines() if line.strip()]


def test_training() -> None:
    lines = shown(
        training_table(
            {
                "useful_tokens_per_second": 12345.6,
                "sequences_per_second": 48.2,
                "flops_per_second": 3.2e11,
                "gemm_rate": 4e11,
                "gemm_share": 0.8,
                "useful_tokens": 1000,
                "step_seconds": [0.08, 0.081],
                "shares": {"attention_forward": 0.5, "matrix products": 0.4, "[b]": 0.1},
            }
        )
    )
    assert "Useful tokens a second 12,346" in lines
    assert "GEMM rate 400 GFLOP/s" in lines
    assert "Share of it 80 %" in lines
    assert "Steps 2, each of 1,000 useful tokens, in 0.080 to 0.081 s" in lines
    assert lines[-3:] == ["attention_forward 50 % ━━━━━━━━━━━━", "matrix products 40 % ━━━━━━━━━━", "[b] 10 % ━━"]


def test_operators() -> None:
    rows = [
        OperatorFigures("attention", "64 x 64", "plain torch", 20.0, 1.0, 60.0, 1.0),
        OperatorFigures("attention", "64 x 64", "reference", 40.0, 0.5, 30.0, 2.0),
        OperatorFigures("lamb", "[b]", "plain torch", 1234.5, 1.0, None, None),
    ]
    assert shown(operators_table(rows))[2:] == [
        "attention",
        "64 x 64",
        "plain torch 20.00 1.00 60.00 1.00",
        "reference 40.00 0.50 30.00 2.00",
        "lamb",
        "[b]",
        "plain torch 1,234.50 1.00",
    ]


def test_loader() -> None:
    figures = {
        "useful_tokens_per_second": 5e6,
        "batches_per_second": 44.4,
        "workers": 2,
        "sequences_per_batch": 448,
        "imbalance": 1.0011,
    }
    assert shown(loader_table(figures))[0] == "Useful tokens a second 5 M"
