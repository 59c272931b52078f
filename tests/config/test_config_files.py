"""A run's configuration as a file: written, read, compared, and refused in words."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from oarlock.config import (
    MaskingConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    describe,
    differences,
    read_run_config,
    refuse_moved,
    write_run_config,
)


def run(**fields: Any) -> RunConfig:
    return RunConfig(**{"data": "DATA", "out": "RUN", "steps": 100, "model": {}, **fields})


UNUSUAL = run(
    data="s3://bucket/δεδομένα # not a comment",
    out="yes",  # YAML 1.1 takes it for a boolean where it is not quoted
    seed=2**63 - 1,
    init_from="~/model: base",
    model={"kind": "modernbert", "norm_epsilon": 1e-12, "ops": {"attention": "reference", "rotary": "auto"}},
    batch={"tokens": 65536, "workers": 0},
    optimizer={"name": "muon", "learning_rate": 1e-30, "clip_norm": None},
    schedule={"kind": "wsd", "warmup_steps": 0},
    evaluation={"max_sequences": None},
)


@pytest.mark.parametrize("config", (run(), UNUSUAL), ids=("plain", "unusual"))
def test_what_was_written_is_read_again(config: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    write_run_config(path, config)
    assert read_run_config(path) == config
    first = path.read_bytes()
    write_run_config(path, read_run_config(path))
    assert path.read_bytes() == first


def test_every_field_is_written_in_the_order_of_its_declaration(tmp_path: Path) -> None:
    write_run_config(tmp_path / "config.yaml", run())
    fields = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert list(fields) == list(RunConfig.model_fields)
    assert list(fields["model"]) == list(ModelConfig.model_fields)
    assert list(fields["optimizer"]) == list(OptimizerConfig.model_fields)


def test_a_file_that_a_person_wrote(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("data: D\nout: R\nsteps: 1_000\nmodel: {hidden_size: 128}\noptimizer: {learning_rate: 5e-4}\n")
    config = run(data="D", out="R", steps=1000, model={"hidden_size": 128}, optimizer={"learning_rate": 5e-4})
    assert read_run_config(path) == config


REQUIRED = "data: D\nout: R\nsteps: 5\nmodel: {}\n"


@pytest.mark.parametrize(
    "text, message",
    [
        (REQUIRED + "optimiser: {}\n", "there is no field optimiser"),
        (REQUIRED + "optimizer: {lr: 1}\n", "there is no field optimizer.lr"),
        ("data: D\nmodel: {}\n", "out is missing; steps is missing"),
        (REQUIRED + "precision: fp16\n", "precision is 'fp16', but should be 'bf16' or 'fp32'"),
        (REQUIRED + "seed: -1\nlog_every: 0\n", "seed is -1, but should be .* 0; log_every is 0, but should be .* 0"),
        (REQUIRED + "batch: {tokens: many}\n", "batch.tokens is 'many', but should be a valid integer"),
        (REQUIRED + "batch: 7\n", "batch is 7, but should be a valid dictionary"),
        (REQUIRED + "1: 2\n", "1: Keys should be strings"),
        ("", "it holds no keys"),
        ("- data\n- out\n", "it holds no keys"),
        ("data: [", "cannot be read as YAML: "),
        ("data: !!python/object/apply:os.getcwd []\n", "cannot be read as YAML: "),
    ],
)
def test_a_file_that_does_not_fit_is_named_with_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        read_run_config(path)
    assert str(refused.value).startswith(f"{path}")
    assert "pydantic" not in str(refused.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.yaml cannot be read: No such file or directory"):
        read_run_config(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_bytes(b"data: \xff")
    with pytest.raises(ValueError, match=r"config\.yaml cannot be read as YAML: 'utf-8' codec"):
        read_run_config(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"model": {"num_heads": 7}}, "model: hidden_size 256 is not a multiple of num_heads 7; change one of them"),
        (
            {"model": {"kind": "modernbert", "hidden_size": 30, "num_heads": 10}},
            "model: rotary positions need an even head size, but hidden_size 30 / num_heads 10 = 3; change one of them",
        ),
        (
            {"model": {"kind": "modernbert", "local_window": 5}},
            "model: local_window 5 is odd; a token sees half of it on each side",
        ),
        (
            {"model": {"kind": "modernbert", "pooler": True}},
            "model: modernbert has no pooler; leave pooler at False",
        ),
        (
            {"batch": {"max_tokens_per_microbatch": 511}},
            "batch.max_tokens_per_microbatch 511 cannot hold one sequence of model.max_length 512; raise the one or "
            "lower the other",
        ),
        ({"steps": 100, "schedule": {"warmup_steps": 100}}, "schedule.warmup_steps 100 must be fewer than steps 100"),
        (
            {"masking": {"mask_share": 0.75, "random_share": 0.5}},
            "masking: mask_share 0.75 + random_share 0.5 is more than 1",
        ),
        ({"steps": 0}, "steps is 0, but should be greater than 0"),
        ({"masking": {"rate": 1.5}}, "masking.rate is 1.5, but should be less than or equal to 1"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_numbers(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        run(**fields)
    assert describe(refused.value) == message


def test_what_just_fits() -> None:
    run(batch={"max_tokens_per_microbatch": 512})
    run(schedule={"warmup_steps": 99})
    run(masking={"mask_share": 0.5, "random_share": 0.5})
    run(model={"local_window": 5})  # of no meaning to a BERT


def test_configurations_are_values() -> None:
    with pytest.raises(ValidationError):
        run().steps = 7  # type: ignore[misc]
    assert run() == run()


def test_differences_are_told_by_dotted_name() -> None:
    old = run()
    new = run(seed=3, optimizer={"learning_rate": 2e-3}, schedule={"warmup_steps": 5}, model={"ops": {"geglu": "auto"}})
    assert differences(old, old) == {}
    assert differences(old, new) == {
        "seed": (0, 3),
        "optimizer.learning_rate": (1e-3, 2e-3),
        "schedule.warmup_steps": (None, 5),
        "model.ops.geglu": (None, "auto"),
    }
    assert differences(new, old) == {name: (b, a) for name, (a, b) in differences(old, new).items()}


@pytest.mark.parametrize("section", (ModelConfig, MaskingConfig, OptimizerConfig, ScheduleConfig, RunConfig))
def test_every_field_is_documented(section: Any) -> None:
    assert [name for name, field in section.model_fields.items() if not field.description] == []


def test_the_configuration_of_a_moved_run_is_refused(tmp_path: Path) -> None:
    config = run(out=str(tmp_path / "old"))
    (tmp_path / "new" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"moved from .*old; to go on with it, add --out .*new"):
        refuse_moved(tmp_path / "new" / "config.yaml", config)
    refuse_moved(tmp_path / "new" / "config.yaml", config.model_copy(update={"out": str(tmp_path / "new")}))
    refuse_moved(tmp_path / "config.yaml", config)
