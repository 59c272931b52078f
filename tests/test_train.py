"""Whole runs: exact resume, interruption, what a run folder holds."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import oarlock.train
from oarlock.batches import GlobalBatch
from oarlock.config import RunConfig, read_run_config
from oarlock.config.folders import fetch, publish
from oarlock.recipes import recipe
from oarlock.report import read_metrics
from oarlock.state import export_run, newest_checkpoint
from oarlock.step import Learner, StepResult, train_step
from oarlock.train import RunResult, pretrain

STEPS = 20


def configuration(data: Path, out: Path, *, name: str = "bert-tiny", **fields: Any) -> RunConfig:
    """A run of 20 small steps with dropout, several micro-batches a step and log windows that a stop cuts."""
    small = {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 2,
        "intermediate_size": 64,
        "max_length": 64,
    }
    known = recipe(name, data=str(data), out=str(out), steps=STEPS)
    sections = {
        "model": known.model.model_copy(update=small),
        "batch": known.batch.model_copy(update={"sequences": 24, "max_tokens_per_microbatch": 300}),
        "evaluation": known.evaluation.model_copy(update={"every": 8}),
        "checkpoint": known.checkpoint.model_copy(update={"every": 7}),
        "log_every": 3,
    }
    return known.model_copy(update={**sections, **fields})


def quiet(config: RunConfig) -> RunResult:
    return pretrain(config, Console(quiet=True))


def stopped_after(step: int, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunResult:
    """The run, with Ctrl-C pressed during a step."""

    def step_and_press(learner: Learner, batch: GlobalBatch, share: float) -> StepResult:
        if batch.step == step:
            os.kill(os.getpid(), signal.SIGINT)
        return train_step(learner, batch, share)

    with monkeypatch.context() as patch:
        patch.setattr(oarlock.train, "train_step", step_and_press)
        return quiet(config)


def rows(folder: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clock = {"useful_tokens_per_second", "gemm_share", "seconds"}
    return [{key: value for key, value in line.items() if key not in clock} for line in lines]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = newest_checkpoint(folder)
    assert checkpoint is not None
    return load_file(checkpoint / "model.safetensors") | load_file(checkpoint / "optimizer.safetensors")


@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("precision", ("fp32", "bf16"))
def test_c40_a_resumed_run_equals_a_straight_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, precision: str
) -> None:
    """Stopped at 10 and, "twice in a row", at 15; bit for bit, with dropout and dynamic masks."""
    straight = configuration(data, tmp_path / "straight", precision=precision)
    quiet(straight)
    batch = straight.batch.model_copy(update={"workers": workers})
    resumed = configuration(data, tmp_path / "resumed", precision=precision, batch=batch)
    for stop in (10, 15):
        result = stopped_after(stop, resumed, monkeypatch)
        assert (result.step, result.finished) == (stop, False)
    result = quiet(resumed)
    assert (result.step, result.finished) == (STEPS, True)
    assert rows(tmp_path / "resumed") == rows(tmp_path / "straight")
    expected, found = tensors(tmp_path / "straight"), tensors(tmp_path / "resumed")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("optimizer", ("muon", "lamb", "stableadamw"))
def test_c40_with_every_optimizer(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str) -> None:
    known = configuration(data, tmp_path).optimizer.model_copy(update={"name": optimizer})
    quiet(configuration(data, tmp_path / "straight", optimizer=known, name="modernbert-tiny"))
    resumed = configuration(data, tmp_path / "resumed", optimizer=known, name="modernbert-tiny")
    stopped_after(11, resumed, monkeypatch)
    quiet(resumed)
    expected, found = tensors(tmp_path / "straight"), tensors(tmp_path / "resumed")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_c40_a_killed_run_goes_on_from_its_last_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were written after the checkpoint are written anew, once."""

    def die(learner: Learner, batch: GlobalBatch, share: float) -> StepResult:
        if batch.step == 18:
            raise MemoryError
        return train_step(learner, batch, share)

    quiet(configuration(data, tmp_path / "straight"))
    with monkeypatch.context() as patch:
        patch.setattr(oarlock.train, "train_step", die)
        with pytest.raises(MemoryError):
            quiet(configuration(data, tmp_path / "killed"))
    quiet(configuration(data, tmp_path / "killed"))
    assert rows(tmp_path / "killed") == rows(tmp_path / "straight")
    facts = json.loads((tmp_path / "killed" / "run.json").read_text())
    assert facts["resumed_at"] == [14]


def test_c41_a_resumed_run_builds_only_the_batches_it_trains_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oarlock.batches import GlobalBatches

    config = configuration(data, tmp_path / "run")
    stopped_after(17, config, monkeypatch)
    built: list[int] = []
    build = GlobalBatches.build

    def note(self: GlobalBatches, step: int) -> GlobalBatch:
        built.append(step)
        return build(self, step)

    monkeypatch.setattr(GlobalBatches, "build", note)
    quiet(config)
    assert built == [18, 19, 20]


def test_a_finished_run_is_left_as_it_is(data: Path, tmp_path: Path) -> None:
    config = configuration(data, tmp_path / "run")
    first = quiet(config)
    before = rows(tmp_path / "run")
    second = quiet(config)
    assert rows(tmp_path / "run") == before
    assert (second.step, second.finished, second.eval_loss) == (STEPS, True, first.eval_loss)


def test_microbatch_size_changes_nothing_but_rounding(data: Path, tmp_path: Path) -> None:
    for name, size in (("small", 100), ("large", 4000)):
        config = configuration(data, tmp_path / name, precision="fp32")
        batch = config.batch.model_copy(update={"max_tokens_per_microbatch": size})
        quiet(config.model_copy(update={"batch": batch}))
    small, large = (read_metrics(tmp_path / name / "metrics.jsonl")[0] for name in ("small", "large"))
    assert [row["loss"] for row in small] == pytest.approx([row["loss"] for row in large], rel=1e-5)


def test_data_and_run_may_be_urls(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is stopped, its local mirror is lost, and it goes on from what was published."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    publish(data, "memory://urls/data", "manifest.json")
    config = configuration(data, tmp_path / "straight")
    quiet(config)
    remote = config.model_copy(update={"data": "memory://urls/data", "out": "memory://urls/run"})
    stopped_after(9, remote, monkeypatch)
    shutil.rmtree(tmp_path / "cache")
    result = quiet(remote)
    assert result.finished
    assert rows(result.folder) == rows(tmp_path / "straight")
    published = fetch("memory://urls/run")
    assert all(map(torch.equal, tensors(published).values(), tensors(tmp_path / "straight").values()))
    assert "<html" in (published / "report.html").read_text()


def test_initial_weights_are_read_once(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run needs the folder that it was started from no more."""
    quiet(configuration(data, tmp_path / "first"))
    export_run(str(tmp_path / "first"), tmp_path / "model")
    config = configuration(data, tmp_path / "second", init_from=str(tmp_path / "model"))
    stopped_after(5, config, monkeypatch)
    first, second = (read_metrics(tmp_path / name / "metrics.jsonl")[0] for name in ("first", "second"))
    assert second[0]["loss"] < first[0]["loss"]
    shutil.rmtree(tmp_path / "model")
    assert quiet(read_run_config(tmp_path / "second" / "config.yaml")).finished


def test_what_a_run_folder_holds(data: Path, tmp_path: Path) -> None:
    result = quiet(configuration(data, tmp_path / "run"))
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        *("checkpoints", "config.yaml", "data_report.json", "lock", "metrics.jsonl", "report.html", "run.json"),
        *("samples.json", "tensorboard", "tokenizer"),
    }
    assert result.eval_loss is not None
    assert result.eval_accuracy is not None
    training, evaluations = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in training] == [3, 6, 9, 12, 15, 18, 20]
    assert [row["step"] for row in evaluations] == [8, 16, 20]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"
    assert json.loads((tmp_path / "run" / "samples.json").read_text())


def test_a_loss_that_is_not_finite_stops_the_run_and_saves_nothing(data: Path, tmp_path: Path) -> None:
    known = configuration(data, tmp_path)
    optimizer = known.optimizer.model_copy(update={"learning_rate": 1e30, "clip_norm": None})
    with pytest.raises(RuntimeError, match="not finite any more at step"):
        quiet(configuration(data, tmp_path / "run", optimizer=optimizer))
    assert newest_checkpoint(tmp_path / "run") is None


@pytest.mark.parametrize("times", (1, 2))
def test_c57_ctrl_c(data: Path, tmp_path: Path, times: int) -> None:
    """Once: a checkpoint and exit 0 with a message; twice: exit at once. Workers end either way."""
    run = start_long_run(data, tmp_path / "run")
    began = time.monotonic()
    for _ in range(times):
        os.kill(run.pid, signal.SIGINT)
        time.sleep(0.01)
    output, _ = run.communicate(timeout=30)
    assert time.monotonic() - began < 10
    if times == 1:
        assert run.returncode == 0
        assert newest_checkpoint(tmp_path / "run") is not None
        assert "To go on: oarlock train" in output
    else:
        assert run.returncode in (0, 130)
    wait_until_gone(children_of(run.pid))


def test_c57_sigkill_of_the_parent_leaves_no_process_and_no_shared_memory(data: Path, tmp_path: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    run = start_long_run(data, tmp_path / "run")
    workers = children_of(run.pid)
    assert workers
    run.kill()
    run.wait()
    wait_until_gone(workers)
    assert set(Path("/dev/shm").iterdir()) <= before


def start_long_run(data: Path, out: Path) -> subprocess.Popen[str]:
    """`oarlock train` with two workers, from the shell, some steps into the training."""
    flags = "--steps 100000 --log-every 1 --batch.sequences 8 --batch.workers 2 --evaluation.every 100000"
    shape = "--model.hidden-size 32 --model.intermediate-size 64 --model.max-length 64"
    command = [sys.executable, "-m", "oarlock", "train", "bert-tiny", "--data", str(data), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        [*command, *flags.split(), *shape.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    metrics = out / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not metrics.exists() or metrics.stat().st_size < 1000:
        assert run.poll() is None, run.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return run


def children_of(pid: int) -> list[int]:
    """Processes whose session is that of `pid`, itself left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == pid and int(stat.parent.name) != pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
