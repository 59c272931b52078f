"""Taking a run folder: which runs go on, which are refused, and that a refusal changes nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oarlock.config import RunConfig, read_run_config
from oarlock.state import claim_run, lock_run, resume, take_snapshot, trajectory_digest
from oarlock.state.checkpoint import checkpoint_path, write_checkpoint

DATA = "fingerprint of the data"


def config(**changes: object) -> RunConfig:
    value: dict[str, Any] = {"data": "DATA", "out": "RUN", "steps": 100, "model": {}, "batch": {"sequences": 8}}
    for name, change in changes.items():
        section, _, field = name.partition("__")
        value[section] = {**value.get(section, {}), field: change} if field else change
    return RunConfig.model_validate(value)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("words")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def learner() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    return model, torch.optim.AdamW(model.parameters())


def save(run: Path, step: int, digest: str) -> nn.Module:
    model, optimizer = learner()
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    snapshot = take_snapshot(
        step, model.named_parameters(), [optimizer], progress={"step": step}, seed=0, config_digest=digest
    )
    write_checkpoint(run, snapshot)
    return model


@pytest.fixture
def started(run: Path, tokenizer: Path) -> Path:
    """The folder of a run with a checkpoint of step 7."""
    save(run, 7, claim_run(run, config(), DATA, tokenizer))
    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_folder_takes_configuration_and_tokenizer(run: Path, tokenizer: Path) -> None:
    with lock_run(run):
        digest = claim_run(run, config(), DATA, tokenizer)
    assert digest == trajectory_digest(config(), DATA)
    assert read_run_config(run / "config.yaml") == config()
    assert (run / "tokenizer" / "tokenizer.json").read_text() == "words"
    assert {path.name for path in run.iterdir()} == {"config.yaml", "lock", "tokenizer"}


def test_the_same_configuration_goes_on(started: Path, tokenizer: Path) -> None:
    before = contents(started)
    assert claim_run(started, config(), DATA, tokenizer) == trajectory_digest(config(), DATA)
    assert contents(started) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"data": "ELSEWHERE"},
        {"out": "ELSEWHERE"},
        {"device": "cpu"},
        {"log_every": 3},
        {"checkpoint__every": 7, "checkpoint__keep": 9},
        {"evaluation__every": 7, "evaluation__max_sequences": None},
        {"batch__workers": 3},
        {"batch__max_tokens_per_microbatch": 1024},
    ],
)
def test_what_the_weights_do_not_depend_on_may_change(
    started: Path, tokenizer: Path, changes: dict[str, object]
) -> None:
    claim_run(started, config(**changes), DATA, tokenizer)
    assert read_run_config(started / "config.yaml") == config(**changes)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"optimizer__learning_rate": 2e-3}, "optimizer.learning_rate was 0.001, now 0.002"),
        ({"batch__sequences": 9}, "batch.sequences was 8, now 9"),
        ({"steps": 200, "seed": 1}, "steps was 100, now 200; seed was 0, now 1"),
        ({"model__ops": {"geglu": "reference"}}, "model.ops.geglu was None, now reference"),
        ({"schedule__warmup_steps": 3, "log_every": 3}, "schedule.warmup_steps was None, now 3"),
    ],
)
def test_what_they_do_depend_on_is_refused_with_both_values(
    started: Path, tokenizer: Path, changes: dict[str, object], told: str
) -> None:
    before = contents(started)
    with pytest.raises(ValueError, match="holds a run with another configuration") as refused:
        claim_run(started, config(**changes), DATA, tokenizer)
    assert f"configuration: {told}. To go on with that run: `oarlock train {started / 'config.yaml'}`" in str(
        refused.value
    )
    assert contents(started) == before


def test_other_data_are_refused_before_anything_is_written(started: Path, tokenizer: Path) -> None:
    """The folder keeps the tokenizer that its model was trained with."""
    before = contents(started)
    (tokenizer / "tokenizer.json").write_text("other words")
    with pytest.raises(ValueError, match=r"trained on other data than ELSEWHERE holds now; give the same data set"):
        claim_run(started, config(data="ELSEWHERE"), "another fingerprint", tokenizer)
    assert contents(started) == before


def test_a_run_without_a_checkpoint_may_start_over_with_anything(run: Path, tokenizer: Path) -> None:
    claim_run(run, config(), DATA, tokenizer)
    other = config(steps=5, seed=9)
    assert claim_run(run, other, "another fingerprint", tokenizer) == trajectory_digest(other, "another fingerprint")
    assert read_run_config(run / "config.yaml") == other


def test_a_folder_with_other_content_is_refused(run: Path, tokenizer: Path) -> None:
    (run / "thesis.tex").write_text("years of work")
    with lock_run(run), pytest.raises(ValueError, match=r"holds no run but 'thesis\.tex' .* new folder for --out"):
        claim_run(run, config(), DATA, tokenizer)
    assert {path.name for path in run.iterdir()} == {"lock", "thesis.tex"}


def test_a_run_killed_while_it_wrote_its_configuration_starts_again(run: Path, tokenizer: Path) -> None:
    (run / "config.yaml.partial").write_text("data: DA")
    claim_run(run, config(), DATA, tokenizer)
    assert read_run_config(run / "config.yaml") == config()
    assert not (run / "config.yaml.partial").exists()


def test_a_configuration_damaged_by_hand_is_named(started: Path, tokenizer: Path) -> None:
    (started / "config.yaml").write_text("data: [")
    with pytest.raises(ValueError, match=r"config\.yaml cannot be read as YAML"):
        claim_run(started, config(), DATA, tokenizer)


def test_a_damaged_state_file_leaves_the_judgement_to_the_checkpoint_before(started: Path, tokenizer: Path) -> None:
    save(started, 9, trajectory_digest(config(), DATA))
    (checkpoint_path(started, 9) / "state.json").write_text("{")
    claim_run(started, config(), DATA, tokenizer)
    with pytest.raises(ValueError, match="other data"):
        claim_run(started, config(), "another fingerprint", tokenizer)


def test_resume_restores_the_newest_checkpoint(started: Path) -> None:
    saved = save(started, 9, trajectory_digest(config(), DATA))
    model, optimizer = learner()
    assert resume(started, model.named_parameters(), [optimizer]) == {"step": 9}
    assert all(map(torch.equal, model.parameters(), saved.parameters()))
    assert all(len(optimizer.state[parameter]) > 0 for parameter in model.parameters())


def test_resume_has_nothing_to_say_of_a_new_run(run: Path) -> None:
    model, optimizer = learner()
    before = [parameter.clone() for parameter in model.parameters()]
    assert resume(run, model.named_parameters(), [optimizer]) == {}
    assert all(map(torch.equal, model.parameters(), before))


def test_resume_refuses_another_model(started: Path) -> None:
    model = nn.Linear(3, 4)
    with pytest.raises(ValueError, match=r"weight has shape \(2, 3\), not \(4, 3\)"):
        resume(started, model.named_parameters(), [torch.optim.AdamW(model.parameters())])
