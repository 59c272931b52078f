"""What a figure says of the machine it was measured on."""

from pathlib import Path

import pytest
import torch

from oarlock.report import machine, machine_facts

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "text, processor",
    [
        ("model name\t: A CPU\nflags\t\t: sse amx_bf16\nmodel name\t: A CPU\n", "A CPU with AMX"),
        ("model name\t: A CPU\nflags\t\t: sse\n", "A CPU"),
    ],
)
def test_processor(text: str, processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(machine, "CPU_FACTS", tmp_path / "cpuinfo")
    facts = machine_facts(CPU)
    assert facts["processor"] == processor
    assert facts["threads"] == torch.get_num_threads()
    assert facts["torch"] == torch.__version__


def test_a_machine_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CPU_FACTS", tmp_path / "nowhere")
    assert machine_facts(CPU)["processor"]
