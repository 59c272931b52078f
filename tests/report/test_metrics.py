import json
import math

import pytest

from oarlock.report.metrics import EvaluationRow, MetricsFile, TrainingRow, read_metrics, truncate_after


def training_row(step, loss=5.0):
    return TrainingRow(
        step=step,
        loss=loss,
        learning_rate=1e-3,
        grad_norm=1.5,
        useful_tokens=1024 * step,
        useful_tokens_per_second=5000.0,
        gemm_share=0.5,
        imbalance=1.002,
        seconds=0.2 * step,
    )


def evaluation_row(step):
    return EvaluationRow(step=step, eval_loss=4.5, eval_accuracy=0.25)


@pytest.fixture
def metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as file:
        for step in (10, 20, 30):
            file.write(training_row(step))
            if step == 20:
                file.write(evaluation_row(step))
    return path


def steps(path):
    training, evaluations = read_metrics(path)
    return [row["step"] for row in training], [row["step"] for row in evaluations]


def test_lines_have_exactly_the_documented_fields(metrics):
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    names = [
        "step",
        "loss",
        "learning_rate",
        "grad_norm",
        "useful_tokens",
        "useful_tokens_per_second",
        "gemm_share",
        "imbalance",
        "seconds",
    ]
    assert list(lines[0]) == names
    assert list(lines[2]) == ["step", "eval_loss", "eval_accuracy"]


def test_what_was_written_is_read(metrics):
    training, evaluations = read_metrics(metrics)
    assert training == [training_row(10), training_row(20), training_row(30)]
    assert evaluations == [evaluation_row(20)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_stay_valid_json(tmp_path, value):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as file:
        file.write(training_row(1, loss=value))
    line = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert line["loss"] is None
    assert math.isnan(read_metrics(path)[0][0]["loss"])


@pytest.mark.parametrize(
    "step, kept", [(0, ([], [])), (9, ([], [])), (10, ([10], [])), (25, ([10, 20], [20])), (30, ([10, 20, 30], [20]))]
)
def test_truncate_drops_what_comes_after_a_step(metrics, step, kept):
    truncate_after(metrics, step)
    assert steps(metrics) == kept
    truncate_after(metrics, step)
    assert steps(metrics) == kept


@pytest.mark.parametrize("length", range(1, 40, 7))
def test_a_half_line_at_the_end_is_dropped(metrics, length):
    whole = metrics.read_bytes()
    metrics.write_bytes(whole + whole.splitlines()[0][:length])
    assert steps(metrics) == ([10, 20, 30], [20])
    truncate_after(metrics, 1000)
    assert metrics.read_bytes() == whole


def test_a_tail_of_zeros_after_a_power_cut_is_dropped(metrics):
    whole = metrics.read_bytes()
    metrics.write_bytes(whole + b"\0" * 50 + b"\n")
    assert steps(metrics) == ([10, 20, 30], [20])
    truncate_after(metrics, 1000)
    assert metrics.read_bytes() == whole


@pytest.mark.parametrize("content", [None, b"", b"{", b"\n"])
def test_no_rows_yet(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert read_metrics(path) == ([], [])
    truncate_after(path, 5)
    assert read_metrics(path) == ([], [])


def test_a_spoilt_line_in_the_middle_is_named(metrics):
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(lines[0] + '{"step": 15}\n' + lines[1])
    with pytest.raises(ValueError, match="line 2 is not a row"):
        read_metrics(metrics)


def test_rows_appended_after_truncation_follow(metrics):
    truncate_after(metrics, 20)
    with MetricsFile(metrics) as file:
        file.write(training_row(21))
    assert steps(metrics) == ([10, 20, 21], [20])
