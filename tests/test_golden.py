"""The golden loss curve: training computes what it computed at the last commit."""

import math
import warnings
from pathlib import Path

import pytest
import torch

from oarlock.testing import golden

CLOSE = 1e-4
CHANGED = (
    "the loss curve changed; if that is meant, run `python -m oarlock.testing.golden` and tell why in CHANGELOG.md"
)


@pytest.fixture(scope="module")
def losses() -> list[float]:
    return golden.golden_losses()


def test_the_golden_loss_curve(losses: list[float]) -> None:
    """Bit for bit where the file knows this kind of machine, else within 1e-4 of every kind that it knows."""
    curves = golden.read_golden()
    assert curves
    kind = golden.machine_kind()
    if kind in curves:
        assert losses == curves[kind], CHANGED
        return
    for other, expected in curves.items():
        assert losses == pytest.approx(expected, abs=CLOSE), f"{CHANGED} ({other})"
    warnings.warn(f"{golden.FILE.name} does not know {kind}: compared to within {CLOSE} only", stacklevel=1)


def test_another_machine_kind_need_only_be_close(losses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "machine_kind", lambda: "another machine")
    with pytest.warns(UserWarning, match=r"does not know another machine: compared to within 0\.0001 only"):
        test_the_golden_loss_curve([loss + 5e-5 for loss in losses])
    with pytest.raises(AssertionError, match="the loss curve changed"):
        test_the_golden_loss_curve([loss + 5e-4 for loss in losses])


def test_the_curve_is_the_same_every_time(losses: list[float]) -> None:
    torch.manual_seed(99)
    assert golden.golden_losses() == losses


def test_the_curve_is_of_a_model_that_learns(losses: list[float]) -> None:
    """One that stands still would hide most changes."""
    assert len(losses) == golden.STEPS + 1
    assert losses[0] == pytest.approx(math.log(64), abs=0.1)
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.05
    assert len(set(losses)) == len(losses)


def test_writing_it_anew(losses: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "golden" / "curve.json"
    monkeypatch.setattr(golden, "golden_losses", lambda: losses)
    golden.write_golden(path)
    here = golden.machine_kind()
    assert golden.read_golden(path) == {here: losses}
    monkeypatch.setattr(golden, "machine_kind", lambda: "another machine")
    golden.write_golden(path)
    assert golden.read_golden(path) == {here: losses, "another machine": losses}
    monkeypatch.setattr(golden, "golden_losses", lambda: losses[::-1])
    golden.write_golden(path)
    assert golden.read_golden(path) == {"another machine": losses[::-1]}
