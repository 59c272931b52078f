"""The command line. Each command is a few lines that call the rooms, which are imported when they are needed."""

import functools
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from pydantic import Field, ValidationError
from rich.console import Console
from tyro.conf import Positional, arg
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from oarlock.config import Frozen, RunConfig, describe, read_run_config, refuse_moved
from oarlock.config.folders import fetch
from oarlock.corpus.options import PrepareConfig
from oarlock.recipes import RECIPES, recipe

YAML = (".yaml", ".yml")
DESCRIPTION = """Pretrain Transformer encoders on your own text, without padding.

The path: `oarlock prepare` turns text into a data set, `oarlock train` trains, `oarlock export` writes a folder that
transformers loads. `oarlock COMMAND --help` tells what each can be told."""

out = Console()
errors = Console(stderr=True)


class Prepare(PrepareConfig):
    """What to read, and how."""

    inputs: Annotated[Positional[tuple[str, ...]], arg(metavar="INPUT...")] = Field(min_length=1)
    """Files, folders, glob patterns or URLs: text, JSON lines (.jsonl, .ndjson, .json) or .parquet; all but parquet
    may be compressed (.gz, .bz2, .xz, .zst)."""


def prepare(config: Annotated[Prepare, arg(name="")]) -> None:
    """Turn text into a data set of token ids, and report on it."""
    from oarlock.corpus import prepare as prepare_data
    from oarlock.report import data_report_table, prepare_progress

    with prepare_progress(out) as on_progress:
        report = prepare_data(config, on_progress)
    out.print(data_report_table(report))
    say(f"\n{'Reused' if report.reused else 'Wrote'} {config.out}")
    say(f"Next: oarlock train bert-mini --data {config.out} --out RUN --steps 2000")


def train(
    source: Annotated[Positional[str], arg(metavar="RECIPE")], /, config: Annotated[RunConfig, arg(name="")]
) -> None:
    """Train, or go on with the run that --out holds.

    Args:
        source: A recipe (bert, roberta or modernbert, each with -tiny, -mini, -small, -base or -large, as bert-mini),
            or the config.yaml of a run, which repeats it or goes on with it.
        config: Every field can be overridden.
    """
    from oarlock.train import pretrain

    result = pretrain(config, out)
    if result.finished:
        say(f"Finished step {result.step:,}. Report: {result.folder / 'report.html'}")
        say(f"Next: oarlock export {config.out} --out MODEL")
    else:
        say(f"Stopped after step {result.step:,} of {config.steps:,}; a checkpoint is saved.")
        say(f"To go on: oarlock train {result.folder / 'config.yaml'}")


def evaluate(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    /,
    data: str,
    max_sequences: int | None = None,
    as_json: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Loss and accuracy on a data set's validation split.

    Args:
        model: Run folder or Hugging Face folder.
        data: Folder (or URL) that `oarlock prepare` wrote with the model's tokenizer.
        max_sequences: Evaluate on the first so many sequences; None takes all.
        as_json: Print one JSON object.
    """
    from oarlock.state import evaluate_trained

    result = evaluate_trained(model, data, max_sequences)
    if as_json:
        print(json.dumps(result._asdict()))
        return
    say(f"loss     {result.eval_loss:.4f} nats a target (unigram baseline {result.unigram_baseline:.4f})")
    say(f"accuracy {result.eval_accuracy:.2%} of {result.num_targets:,} targets")


def export(
    run: Annotated[Positional[str], arg(metavar="RUN")],
    /,
    to: Annotated[Path, arg(name="out")],
    step: int | None = None,
    overwrite: bool = False,
) -> None:
    """Write a run's model as a Hugging Face folder, and check that folder.

    Args:
        run: Run folder.
        to: New folder.
        step: Step of the checkpoint to export; None takes the newest.
        overwrite: Replace a folder that is not empty.
    """
    from oarlock.state import export_run

    exported = export_run(run, to, step, overwrite)
    say(
        f"Wrote {exported.folder}; run by {exported.checked_with}, its logits differ from the run's by at most "
        f"{exported.largest_difference:.1e}"
    )
    say(f"Next: oarlock fill-mask {exported.folder} 'The people of the [MASK] States.'")


def fill_mask(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    text: Annotated[Positional[str], arg(metavar="TEXT")],
    /,
    top: int = 5,
) -> None:
    """Guess the masked words of a text.

    Args:
        model: Run folder or Hugging Face folder.
        text: Put [MASK] where a word should be filled in, whatever the tokenizer calls its own mask.
        top: Number of guesses for each mask.
    """
    from oarlock.report import guesses_table
    from oarlock.state import fill_mask_with

    out.print(guesses_table(fill_mask_with(model, text, top)))


def report(folder: Annotated[Positional[str], arg(metavar="FOLDER")], /) -> None:
    """Write a run's HTML report anew, or show the report of a data set.

    Args:
        folder: Run folder, or folder that `oarlock prepare` wrote.
    """
    from oarlock.corpus import DataReport
    from oarlock.report import data_report_table, write_report

    path = fetch(folder)
    if (path / "manifest.json").exists():
        out.print(data_report_table(DataReport.model_validate_json((path / "report.json").read_bytes())))
    else:
        say(str(write_report(path)))


def bench(
    what: Positional[Literal["data", "train"]],
    /,
    recipe_name: Annotated[str, arg(name="recipe")] = "bert-mini",
    workers: int = 2,
    to: Annotated[Path | None, arg(name="out")] = None,
) -> None:
    """Measure this machine, at the sequence lengths of BERT's Wikipedia data.

    Args:
        what: `data`: how fast batches are built; `train`: how fast a model trains, and its share of the GEMM rate.
        recipe_name: Model that `train` trains.
        workers: Processes with which `data` builds batches.
        to: JSON file for the figures.
    """
    if what == "data":
        from oarlock.batches.measure import measure_loader

        figures: dict[str, Any] = measure_loader(workers)
    else:
        from oarlock.step.measure import measure_training

        model = recipe(recipe_name, data="", out="", steps=1).model
        figures = measure_training(model.model_copy(update={"vocab_size": 30522}))
    for name, value in figures.items():
        say(f"{name.replace('_', ' '):28} {value:,.4g}" if isinstance(value, float) else f"{name:28} {value}")
    if to is not None:
        to.write_text(json.dumps(figures, indent=1) + "\n")


COMMANDS: dict[str, Callable[..., None]] = {
    command.__name__.replace("_", "-"): command
    for command in (prepare, train, evaluate, export, fill_mask, report, bench)
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code: 0, 1 (it failed), or 2 (it was not understood)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # Before torch is loaded: beside another program, threads that spin for long make a step 30 times as long.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    warnings.showwarning = _show_warning
    if arguments == ["--version"]:
        print(f"oarlock {version('oarlock')}")
        return 0
    code = 2
    try:
        command = _parse(arguments or ["--help"])
        code = 1
        command()
    except (ValueError, RuntimeError, OSError) as error:
        return _fail(error, code)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return 0


def say(text: str) -> None:
    """Print a line as it is: no markup, no wrapping."""
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def _parse(arguments: list[str]) -> Callable[[], None]:
    """The command, ready to run. What `train` starts from decides the defaults of its flags, so it is read first."""
    commands = {name: _deferred(command) for name, command in COMMANDS.items()}
    given = arguments[1:] if arguments[0] == "train" else []
    likely = [a for a in given if a in RECIPES or a.endswith(YAML)]
    source = next((a for a in (*given[:1], *likely) if not a.startswith("-")), RECIPES[1])
    commands["train"] = _with_default(commands["train"], _starting_point(source, "--out" in given))
    parsed: functools.partial[None] = tyro.extras.subcommand_cli_from_dict(
        commands,
        prog="oarlock",
        description=DESCRIPTION,
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
        registry=SECTIONS,
    )
    if given and parsed.args[0] != source:
        _starting_point(parsed.args[0], True)
        raise ValueError(f"put {parsed.args[0]} before all flags: oarlock train {parsed.args[0]} --data ...")
    return parsed


SECTIONS = ConstructorRegistry()


@SECTIONS.struct_rule
def _section_as_dict(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Leaves the validation of a section to the configuration around it, which tells what is wrong, and where."""
    if not isinstance(info.type, type) or not issubclass(info.type, Frozen) or info.type in (RunConfig, Prepare):
        return None
    fields = [
        StructFieldSpec(name=n, type=f.annotation, default=getattr(info.default, n), helptext=f.description)  # type: ignore[arg-type]
        for n, f in info.type.model_fields.items()
    ]
    return StructConstructorSpec(instantiate=dict, fields=tuple(fields))


def _deferred(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """A constructor with the command's signature and help that only notes its arguments.

    So an error in the command is not taken for one in its arguments.
    """

    @functools.wraps(command)
    def note(*args: Any, **kwargs: Any) -> Callable[[], None]:
        return functools.partial(command, *args, **kwargs)

    return note


def _with_default(command: Callable[..., Any], config: RunConfig) -> Callable[..., Any]:
    signature = inspect.signature(command)
    parameters = [p.replace(default=config) if p.name == "config" else p for p in signature.parameters.values()]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _starting_point(source: str, out_given: bool) -> RunConfig:
    """The configuration of a recipe, in which data, out and steps are still to be given, or that of a file."""
    if source.endswith(YAML):
        config = read_run_config(fetch(source))
        if not out_given:
            refuse_moved(fetch(source), config)
        return config
    known = recipe(source, data="-", out="-", steps=10**9)
    fields = {name: getattr(known, name) for name in RunConfig.model_fields}
    return RunConfig.model_construct(**fields | dict.fromkeys(("data", "out", "steps"), tyro.MISSING))


def _fail(problem: Exception | str, code: int) -> int:
    message = describe(problem) if isinstance(problem, ValidationError) else problem
    errors.print(f"oarlock: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    return code


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    """A warning as a person reads it: what it says, not where in the code it was said."""
    errors.print(f"oarlock: warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)
