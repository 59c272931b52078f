"""The command line: its flags, its help, its exit codes, and what it says to typical mistakes."""

import json
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
from torch import Tensor

import oarlock
import oarlock.report.outset
import oarlock.train
from oarlock.batches.measure import measure_loader
from oarlock.cli import COMMANDS, main
from oarlock.config import read_run_config
from oarlock.ops import geglu
from oarlock.ops.cases import OPERATOR_CASES
from oarlock.recipes import RECIPES, recipe
from oarlock.state import newest_checkpoint
from oarlock.testing.texts import write_text

PINNED = Path(__file__).parent / "pinned.txt"
FLAG = re.compile(r"--[a-z]")
# In a help text a heading is indented by one, a name and its type by two, what is said of it by many more.
HEADING, ENTRY = re.compile(r" (\S.*)"), re.compile(r"  (?:-h, )?(\S+)(?:\s\S+)*?(?:\s{2,}(.*)|$)")
ASIDE = re.compile(r"\((default|required)[^)]*\)")


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """`oarlock` with a wide terminal, in this process, without the seconds that the machine's rate takes to measure."""
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setattr(oarlock.report.outset, "gemm_rate", lambda device, dtype: 1e9)

    def oarlock_(*arguments: object) -> Ended:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:  # from tyro
            code = int(exit_.code or 0)
        return Ended(code, *capsys.readouterr())

    return oarlock_


def explained(help_: str) -> dict[str, str]:
    """Positional arguments and flags of a help text, each with what is said of it."""
    found: dict[str, str] = {}
    heading, name = "", ""
    for line in map(str.rstrip, help_.splitlines()):
        if match := HEADING.fullmatch(line):
            heading, name = match[1] if match[1].strip("-") else heading, ""
        elif (match := ENTRY.fullmatch(line)) and (heading == "positional arguments" or FLAG.match(match[1])):
            name = match[1]
            found[name] = match[2] or ""
        elif name:
            found[name] += f" {line.strip()}"
    return found


def test_flags_and_public_names_are_pinned(run) -> None:
    """A change of either is a decision: it is written into tests/pinned.txt, and the changelog says why."""
    lines = [f"oarlock {command} {name}" for command in COMMANDS for name in explained(run(command, "--help").out)]
    lines += [f"import {name}" for name in sorted(oarlock.__all__)]
    assert lines == PINNED.read_text().splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_every_flag_is_for(command: str, run) -> None:
    ended = run(command, "--help")
    assert ended.code == 0
    said = {name: ASIDE.sub("", text).split() for name, text in explained(ended.out).items()}
    assert said.keys() >= {"--help"}
    assert {name: words for name, words in said.items() if len(words) < 2} == {}
    summary = ended.out.split("\n\n")[1]
    assert summary[0].isupper()


def test_help_of_all_and_of_none(run) -> None:
    for arguments in ((), ("--help",)):
        ended = run(*arguments)
        assert ended.code == 0
        assert all(f"• {command}" in ended.out for command in COMMANDS)
        assert "`oarlock prepare` turns text into a data set" in ended.out


def test_help_of_a_recipe_shows_its_values(run) -> None:
    for name in ("modernbert-base", "bert-tiny"):
        found = explained(run("train", name, "--help").out)
        known = recipe(name, data="", out="", steps=1)
        assert f"(default: {known.model.hidden_size})" in found["--model.hidden-size"]
        assert f"(default: {known.optimizer.learning_rate})" in found["--optimizer.learning-rate"]


def test_version(run) -> None:
    assert run("--version") == Ended(0, f"oarlock {version('oarlock')}\n", "")


def test_as_a_module_and_as_a_script() -> None:
    for command in ([sys.executable, "-m", "oarlock"], [str(Path(sys.executable).parent / "oarlock")]):
        ended = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert ended.stdout == f"oarlock {version('oarlock')}\n"
        ended = subprocess.run([*command, "train", "bert-huge"], capture_output=True, text=True)
        assert ended.returncode == 2


def test_help_does_not_load_torch() -> None:
    """So it is there in a fraction of a second."""
    program = "import sys, oarlock.cli as c, atexit; atexit.register(lambda: print('torch' in sys.modules)); c.main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, "train", "--help"], capture_output=True, text=True, check=True
    )
    assert "--optimizer.name" in ended.stdout
    assert ended.stdout.endswith("False\n")


@pytest.mark.parametrize("shell, sign", (("bash", "complete "), ("zsh", "#compdef oarlock")))
def test_completion(shell: str, sign: str, run) -> None:
    ended = run("--tyro-print-completion", shell)
    assert ended.code == 0
    assert sign in ended.out
    assert all(f"'{command}'" in ended.out for command in COMMANDS)
    assert "--optimizer.learning-rate" in ended.out


def test_completion_is_a_script_that_bash_reads(run) -> None:
    script = run("--tyro-print-completion", "bash").out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


REQUIRED = ("--data", "DATA", "--out", "RUN", "--steps", "10")


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("nonsense",), "Unrecognized options: nonsense"),
        (("train",), "RECIPE"),
        (("train", "bert-mini", "--out", "RUN", "--steps", "10"), "--data"),
        (("train", "bert-huge", *REQUIRED), f"there is no recipe 'bert-huge'; there are {', '.join(RECIPES)}"),
        (("train", *REQUIRED, "bert-huge"), f"there is no recipe 'bert-huge'; there are {', '.join(RECIPES)}"),
        (("train", "nowhere/config.yaml"), "nowhere/config.yaml cannot be read: No such file or directory"),
        (
            ("train", "bert-mini", *REQUIRED, "--model.num-heads", "7"),
            "hidden_size 256 is not a multiple of num_heads 7",
        ),
        (("train", "bert-mini", *REQUIRED, "--masking.rate", "15"), "masking.rate is 15.0, but should be less than"),
        (("train", "bert-mini", *REQUIRED[:5], "-3"), "steps is -3, but should be greater than 0"),
        (("train", "bert-mini", *REQUIRED[:5], "many"), "Error parsing --steps"),
        (
            ("train", "bert-mini", *REQUIRED, "--schedule.warmup-steps", "10"),
            "warmup_steps 10 must be fewer than steps 10",
        ),
        (("train", "bert-mini", *REQUIRED, "--optimizer.learning-rat", "1"), "--optimizer.learning-rate"),
        (("train", "bert-mini", *REQUIRED, "--optimizer.name", "sgd"), "'adamw', 'stableadamw', 'lamb', 'muon'"),
        (("train", "bert-mini", "--data", "bert-tiny", *REQUIRED[2:], "--seed", "x"), "Error parsing --seed"),
        (("train", "--data", "bert-tiny", *REQUIRED[2:], "bert-base"), "put bert-base before all flags"),
        (("prepare", "--out", "DATA"), "inputs: give at least 1"),
        (
            ("prepare", "text.txt", "--out", "DATA", "--vocab-size", "0"),
            "vocab_size is 0, but should be greater than 0",
        ),
        (("prepare", "text.txt", "--out", "DATA", "--train-tokenizer", "bpe", "--lowercase", "True"), "leave it out"),
        (("fill-mask", "MODEL"), "TEXT"),
        (("export", "RUN"), "--out"),
        (("evaluate", "RUN"), "--data"),
        (("bench", "everything"), "data"),
    ],
)
def test_exit_2_where_a_command_is_not_understood(
    arguments: tuple[str, ...], told: str, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert told in " ".join(ended.err.split())
    assert "Traceback" not in ended.err
    assert "pydantic" not in ended.err
    assert "tyro" not in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, told",
    [
        (
            ("train", "bert-mini", *REQUIRED),
            "oarlock: there is no data set at DATA: make one with `oarlock prepare INPUT... --out DATA`",
        ),
        (("prepare", "nowhere.txt", "--out", "DATA"), "nowhere.txt"),
        (("evaluate", "MODEL", "--data", "DATA"), "MODEL is neither a run folder (it has no config.yaml) nor"),
        (("export", "RUN", "--out", "MODEL"), "RUN is neither a run folder (it has no config.yaml) nor"),
        (("fill-mask", "MODEL", "a [MASK]"), "MODEL is neither a run folder (it has no config.yaml) nor"),
        (("report", "RUN"), "RUN is no folder"),
        (("bench", "train", "--sequences", "0"), "5 steps of 0 sequences are nothing to measure"),
        (("bench", "train", "--recipe", "bert-huge"), "there is no recipe 'bert-huge'"),
        (("bench", "ops", "attenshun"), "'attenshun' is no operator; there are add_norm, attention"),
        (("train", "bert-mini", *REQUIRED, "--device", "gpu"), "device 'gpu' is not known; use cpu, cuda"),
        (("train", "bert-mini", "--data", "nonsense://x", *REQUIRED[2:]), "nonsense"),
    ],
)
def test_exit_1_where_a_command_fails(
    arguments: tuple[str, ...], told: str, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(*arguments)
    assert ended.code == 1
    assert ended.err.startswith("oarlock: ")
    assert told in ended.err
    assert "Traceback" not in ended.err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_recipe_after_the_flags_is_the_one_that_is_trained(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own values, not those of another recipe under its name."""
    seen = []
    monkeypatch.setattr(oarlock.train, "pretrain", lambda config, console: seen.append(config) or pytest.fail("seen"))
    for arguments in (("modernbert-tiny", *REQUIRED), (*REQUIRED, "modernbert-tiny")):
        with pytest.raises(pytest.fail.Exception):
            run("train", *arguments, "--model.ops", "attention", "reference", "--optimizer.beta2", "0.95")
    expected = recipe("modernbert-tiny", data="DATA", out="RUN", steps=10)
    model = expected.model.model_copy(update={"ops": {"attention": "reference"}})
    optimizer = expected.optimizer.model_copy(update={"beta2": 0.95})
    assert seen == [expected.model_copy(update={"model": model, "optimizer": optimizer})] * 2


def test_from_text_to_a_filled_mask(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command's own advice on what comes next holds."""
    monkeypatch.chdir(tmp_path)
    write_text(Path("text.txt"), 200)
    prepare = ("prepare", "text.txt", "--out", "DATA", "--vocab-size", "300", "--max-length", "40", "--workers", "0")
    first, second = run(*prepare, "--validation-share", "0.1"), run(*prepare, "--validation-share", "0.1")
    assert (first.code, second.code) == (0, 0)
    assert "Wrote DATA" in first.out
    assert "Reused DATA" in second.out
    assert "Next: oarlock train bert-mini --data DATA --out RUN" in first.out

    small = ("--model.hidden-size", "32", "--model.intermediate-size", "64", "--batch.sequences", "16")
    trained = run("train", "bert-tiny", "--data", "DATA", "--out", "RUN", "--steps", "4", "--precision", "fp32", *small)
    assert trained.code == 0, trained.err
    assert "Finished step 4. Report: RUN/report.html" in trained.out
    assert "Next: oarlock export RUN --out MODEL" in trained.out
    assert read_run_config(Path("RUN/config.yaml")).model.hidden_size == 32

    again = run("train", "RUN/config.yaml")
    assert again.code == 0
    assert "Finished step 4." in again.out
    other = run("train", "RUN/config.yaml", "--optimizer.learning-rate", "0.5")
    assert other.code == 1
    assert "optimizer.learning_rate was 0.002, now 0.5" in other.err
    repeated = run("train", "RUN/config.yaml", "--out", "RUN2", "--log-every", "1")
    assert repeated.code == 0
    first_, second_ = (newest_checkpoint(Path(name)) for name in ("RUN", "RUN2"))
    assert (first_ / "model.safetensors").read_bytes() == (second_ / "model.safetensors").read_bytes()

    shown = run("evaluate", "RUN", "--data", "DATA")
    assert re.search(r"^loss +\d\.\d{4} nats a target \(unigram baseline \d\.\d{4}\)$", shown.out, re.M)
    assert re.search(r"^accuracy \d+\.\d\d% of \d+ targets$", shown.out, re.M)
    counted = json.loads(run("evaluate", "RUN", "--data", "DATA", "--json", "--max-sequences", "5").out)
    assert counted.keys() == {"eval_loss", "eval_accuracy", "num_targets", "unigram_baseline"}

    exported = run("export", "RUN", "--out", "MODEL")
    assert exported.code == 0, exported.err
    assert re.search(
        r"^Wrote MODEL; run by transformers, its logits differ from the run's by at most", exported.out, re.M
    )
    assert run("export", "RUN", "--out", "MODEL").code == 1
    assert run("export", "RUN", "--out", "MODEL", "--overwrite", "--step", "4").code == 0

    for source in ("RUN", "MODEL"):
        filled = run("fill-mask", source, "the river [MASK] past a mill", "--top", "3")
        assert filled.code == 0
        assert filled.out.count("%") == 3
    assert run("fill-mask", "RUN", "no mask").code == 1

    Path("RUN/report.html").unlink()
    assert run("report", "RUN").out == "RUN/report.html\n"
    assert Path("RUN/report.html").exists()
    assert "unigram" in run("report", "DATA").out.lower()


def test_a_run_that_was_stopped_says_how_to_go_on(run, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = oarlock.RunResult(Path("RUN"), 7, False, None, None)
    monkeypatch.setattr(oarlock.train, "pretrain", lambda config, console: stopped)
    ended = run("train", "bert-mini", *REQUIRED)
    assert ended.code == 0
    assert ended.out == (
        "Stopped after step 7 of 10; a checkpoint is saved.\nTo go on: oarlock train RUN/config.yaml\n"
    )


def test_bench_data(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oarlock.batches.measure.NUM_SAMPLES", 1000)
    monkeypatch.setattr("oarlock.batches.measure.measure_loader", partial(measure_loader, steps=3))
    ended = run("bench", "data", "--workers", "0", "--json", tmp_path / "figures.json")
    assert ended.code == 0, ended.err
    assert re.search(r"^Workers +0 *$", ended.out, re.M)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["useful_tokens_per_second"] > 0
    assert figures["machine"].keys() >= {"processor", "threads", "torch", "oarlock"}


def test_bench_ops(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = OPERATOR_CASES["geglu"].cases[:2]
    monkeypatch.setattr("oarlock.ops.measure.SECONDS", 0.0)
    timed = tuple(replace(case, benchmark=True) for case in small)
    monkeypatch.setitem(OPERATOR_CASES, "geglu", replace(OPERATOR_CASES["geglu"], cases=timed))
    ended = run("bench", "ops", "geglu", "--json", tmp_path / "figures.json")
    assert ended.code == 0, ended.err
    assert "plain torch" in ended.out
    rows = json.loads((tmp_path / "figures.json").read_text())["operators"]
    assert {(row["operator"], row["case"]) for row in rows} == {("geglu", case.name) for case in small}
    assert all(row["forward_ms"] > 0 and row["both_ms"] > 0 for row in rows)


def test_bench_ops_times_nothing_that_is_wrong(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x_T2I: Tensor, form: str) -> Tensor:
        return geglu(x_T2I, form) * (1.0 if form == "reference" else 1.1)

    case = replace(OPERATOR_CASES["geglu"].cases[1], benchmark=True)
    monkeypatch.setitem(OPERATOR_CASES, "geglu", replace(OPERATOR_CASES["geglu"], cases=(case,), function=wrong))
    ended = run("bench", "ops", "geglu")
    assert ended.code == 1
    assert "off the reference" in ended.err


def test_bench_train(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oarlock.cli.measure.VOCAB_SIZE", 100)
    small = ("--recipe", "bert-tiny", "--sequences", "2", "--precision", "fp32")
    ended = run("bench", "train", *small, "--json", tmp_path / "figures.json")
    assert ended.code == 0, ended.err
    assert "attention_backward" in ended.out
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["model"], figures["sequences"], figures["precision"]) == ("bert-tiny", 2, "fp32")
    assert sum(figures["shares"].values()) == pytest.approx(1.0)


def test_bench_is_interrupted(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("oarlock.step.measure.train_step", interrupted)
    ended = run("bench", "train", "--recipe", "bert-tiny", "--sequences", "1")
    assert (ended.code, ended.err) == (130, "oarlock: interrupted\n")


def test_a_warning_is_told_as_one_line(run, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = oarlock.RunResult(Path("RUN"), 10, True, None, None)

    def train(config: object, console: object) -> oarlock.RunResult:
        warnings.warn("the disk is full [really]", stacklevel=1)
        return stopped

    monkeypatch.setattr(oarlock.train, "pretrain", train)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    assert run("train", "bert-mini", *REQUIRED).err == "oarlock: warning: the disk is full [really]\n"


def test_public_names_are_there() -> None:
    assert sorted(oarlock.__all__) == dir(oarlock)
    assert all(getattr(oarlock, name).__doc__ or name == "RECIPES" for name in oarlock.__all__)
    with pytest.raises(AttributeError, match="module 'oarlock' has no attribute 'nonsense'"):
        oarlock.nonsense  # noqa: B018
