"""What is told of each of several processes."""

from dataclasses import replace
from pathlib import Path

import torch

from oarlock.config import Plan
from oarlock.parallel import Groups, connect
from oarlock.report import process_facts
from oarlock.report.facts import ProcessFacts
from oarlock.report.html.run import read_run
from oarlock.report.html.summary import process_imbalance, processes
from oarlock.testing.distributed import run_distributed
from oarlock.testing.runs import fake_run

CPU = torch.device("cpu")


def facts() -> tuple[ProcessFacts, ...]:
    groups = connect(Plan(replicate=2), CPU)
    if groups.world.rank == 1:
        groups.data.sent["all_reduce"] = 1000
        groups.data.waited["all_reduce"] = 1.0
    return process_facts(groups, CPU, 5.0)


def test_everybody_knows_of_everybody() -> None:
    first, second = run_distributed(facts, 2)
    assert first == second
    assert [process.seconds for process in first] == [5.0, 5.0]
    assert first[0].busy_seconds - first[1].busy_seconds > 0.9
    assert first[1].bytes_sent - first[0].bytes_sent == 1000
    assert all(process.peak_memory > 10_000_000 for process in first)


def test_one_alone_is_not_told_of() -> None:
    assert process_facts(Groups.alone(), CPU, 5.0) == ()


def test_rows_of_the_report(tmp_path: Path) -> None:
    two = (
        ProcessFacts(busy_seconds=30, seconds=60, bytes_sent=10**9, peak_memory=2 * 10**9),
        ProcessFacts(busy_seconds=60, seconds=60, bytes_sent=0, peak_memory=10**9),
    )
    run = read_run(fake_run(tmp_path))
    run = replace(run, facts=run.facts.model_copy(update={"processes": two}))
    assert processes(run) == [
        ("0", "30 s", "50 %", "2.00 GB", "1.00 GB"),
        ("1", "1 min 00 s", "100 %", "1.00 GB", "0.00 GB"),
    ]
    assert process_imbalance(run) == 60 / 45
