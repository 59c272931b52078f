import json
import math

import pytest

from oarlock.report.html.run import read_run
from oarlock.report.html.summary import cards, configuration, nats_under_baseline, subtitle, verdicts
from oarlock.report.metrics import MetricsFile
from oarlock.testing.runs import UNIGRAM_BASELINE, fake_run


def levels(run):
    return [verdict.level for verdict in verdicts(run)]


def rewrite_training_rows(folder, **values):
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    with MetricsFile(path) as file:
        for row in rows:
            file.write({**row, **values} if "loss" in row else row)


def test_cards_of_a_finished_run(tmp_path):
    run = read_run(fake_run(tmp_path))
    values = {card.label: card.value for card in cards(run)}
    assert values["Evaluation loss"] == f"{run.evaluations[-1]['eval_loss']:.3f}"
    under = UNIGRAM_BASELINE - run.evaluations[-1]["eval_loss"]
    assert nats_under_baseline(run) == under
    assert values["Under the unigram baseline"] == f"{under:.2f} nats"
    assert values["Useful tokens"] == "2.05 M"
    assert values["Time"] == "2 min 45 s"
    assert subtitle(run) == "ModernBERT, 2 layers x 128, 1.23 M parameters, adamw, bf16, cpu"
    assert levels(run) == ["good"]


def test_without_evaluations_the_training_loss_is_compared(tmp_path):
    run = read_run(fake_run(tmp_path, evaluate_every=0))
    assert nats_under_baseline(run) == UNIGRAM_BASELINE - run.training[-1]["loss"]
    assert "Evaluation loss" not in {card.label for card in cards(run)}


def test_a_plateau_is_told(tmp_path):
    run = read_run(fake_run(tmp_path, plateau=True))
    assert levels(run) == ["warning"]
    assert "plateau" in verdicts(run)[0].text


def test_a_killed_run_says_how_to_go_on(tmp_path):
    run = read_run(fake_run(tmp_path, until=900, status="running"))
    assert levels(run) == ["info", "good"]
    assert "step 900 of 2,000" in verdicts(run)[0].text
    assert "resumes" in verdicts(run)[0].text


def test_a_run_that_has_logged_nothing(tmp_path):
    run = read_run(fake_run(tmp_path, until=5))
    assert cards(run) == []
    assert levels(run) == ["info"]


def test_a_loss_that_is_not_finite_is_told(tmp_path):
    folder = fake_run(tmp_path, evaluate_every=0)
    rewrite_training_rows(folder, loss=math.nan)
    run = read_run(folder)
    assert levels(run) == ["warning"]
    assert "200 of 200 rows, first at step 10" in verdicts(run)[0].text
    assert {card.label: card.value for card in cards(run)}["Training loss"] == "not finite"


def test_imbalance_is_told(tmp_path):
    folder = fake_run(tmp_path)
    rewrite_training_rows(folder, imbalance=1.3)
    assert levels(read_run(folder)) == ["good", "info"]


def test_configuration_lists_the_form_of_each_operator(tmp_path):
    listed = dict(configuration(read_run(fake_run(tmp_path, resumed_at=(800, 1200)))))
    assert listed["Operator attention"] == "cpu"
    assert listed["Resumed at step"] == "800, 1,200"
    assert listed["GEMM rate of the machine"] == "390 GFLOP/s"


@pytest.mark.parametrize("name", ["run.json", "samples.json", "config.yaml", "metrics.jsonl"])
def test_a_missing_file_leaves_its_part_out(tmp_path, name):
    folder = fake_run(tmp_path)
    (folder / name).unlink()
    run = read_run(folder)
    assert isinstance(subtitle(run), str)
    assert isinstance(cards(run) + verdicts(run) + configuration(run), list)


@pytest.mark.parametrize("name", ["run.json", "samples.json"])
def test_a_spoilt_file_is_named(tmp_path, name):
    folder = fake_run(tmp_path)
    (folder / name).write_text('{"steps":')
    with pytest.raises(ValueError, match=name):
        read_run(folder)


def test_facts_of_another_version_are_read(tmp_path):
    folder = fake_run(tmp_path)
    (folder / "run.json").write_text('{"steps": 2000, "power": "wind"}')
    assert read_run(folder).facts.steps == 2000


def test_no_run(tmp_path):
    with pytest.raises(ValueError, match="no folder"):
        read_run(tmp_path / "nothing")
    with pytest.raises(ValueError, match="holds no run"):
        read_run(tmp_path)
