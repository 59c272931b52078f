import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from oarlock.report import progress
from oarlock.report.metrics import EvaluationRow, TrainingRow
from oarlock.report.progress import TrainingProgress, prepare_progress

BASELINE = 6.469
MB = 1_000_000


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def log_console():
    return Console(file=io.StringIO(), width=80, force_terminal=False)


def terminal_console(width=80):
    return Console(
        file=io.StringIO(), width=width, force_terminal=True, force_interactive=True, color_system="truecolor"
    )


def visible(console):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def training_row(step):
    return TrainingRow(
        step=step,
        loss=4.82,
        learning_rate=1e-3,
        grad_norm=1.0,
        useful_tokens=1024 * step,
        useful_tokens_per_second=12_340.4,
        gemm_share=0.523,
        imbalance=1.0,
        seconds=float(step),
    )


def train(console, clock, *, steps=2000, done=0, until=2000):
    with TrainingProgress(console, steps=steps, done=done, unigram_baseline=BASELINE) as display:
        for step in range(done + 1, until + 1):
            clock[0] += 0.125
            display.step(step)
            if step % 10 == 0:
                display.trained(training_row(step))
            if step % 1000 == 0:
                display.evaluated(EvaluationRow(step=step, eval_loss=4.79, eval_accuracy=0.208))


def test_a_log_file_gets_a_plain_line_now_and_then(clock):
    console = log_console()
    train(console, clock)
    text = console.file.getvalue()
    lines = text.splitlines()
    assert lines[0] == (
        "step 10/2,000: loss 4.820 (unigram baseline 6.469), 12,340 tokens/s, 52.3 % of GEMM rate, 4 min 09 s left"
    )
    assert lines[1].startswith("step 90/2,000: ")
    assert "evaluation at step 1,000: loss 4.790, accuracy 20.8 %" in lines
    assert lines[-2].startswith("step 2,000/2,000: loss 4.820")
    assert "left" not in lines[-2]
    assert 25 <= len(lines) <= 29
    assert all(character == "\n" or character.isprintable() for character in text)


def test_time_left_of_a_resumed_run_counts_its_own_steps(clock):
    console = log_console()
    train(console, clock, done=1000, until=1100)
    assert console.file.getvalue().splitlines()[0].endswith("2 min 04 s left")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_gets_a_bar_with_all_that_matters(clock, width):
    console = terminal_console(width)
    train(console, clock)
    text = visible(console)
    for expected in ("2,000/2,000", "unigram baseline 6.469", "12,340", "52.3 %", "loss 4.790, accuracy 20.8 %"):
        assert expected in re.sub(r"\s+", " ", text)
    assert all(len(line) <= width for frame in text.split("\r") for line in frame.split("\n"))


@pytest.mark.parametrize("make_console", [log_console, terminal_console])
def test_a_run_without_a_baseline(clock, make_console):
    console = make_console()
    with TrainingProgress(console, steps=10, done=0, unigram_baseline=None) as display:
        display.step(10)
        display.trained(training_row(10))
    assert "loss 4.820, 12,340 tokens/s" in visible(console)


def prepare(console, clock, seconds):
    with prepare_progress(console) as callback:
        for phase in ("hashing", "tokenizing"):
            for second in range(seconds + 1):
                clock[0] += 1.0
                tokens = 0 if phase == "hashing" else second * MB // 5
                callback(
                    SimpleNamespace(
                        phase=phase,
                        bytes_done=second * MB,
                        bytes_total=seconds * MB,
                        documents=tokens // 100,
                        tokens=tokens,
                    )
                )


def test_prepare_in_a_log_file(clock):
    console = log_console()
    prepare(console, clock, seconds=100)
    text = console.file.getvalue()
    lines = text.splitlines()
    assert lines[0] == "hashing: 0.0 of 100.0 MB"
    assert lines[1] == "hashing: 10.0 of 100.0 MB, 1.0 MB/s, 1 min 30 s left"
    assert "tokenizing: 10.0 of 100.0 MB, 1.0 MB/s, 1 min 30 s left, 20,000 documents, 2 M tokens" in lines
    assert all(character == "\n" or character.isprintable() for character in text)


def test_prepare_on_a_terminal(clock):
    console = terminal_console()
    prepare(console, clock, seconds=20)
    text = visible(console)
    assert "hashing" in text
    assert "tokenizing" in text
    assert "20.0/20.0 MB" in text
    assert "40,000 documents" in text
