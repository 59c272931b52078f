"""The command line: `main` reads it and runs the command."""

import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import tyro
from pydantic import ValidationError
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from oarlock.cli.commands import Prepare, evaluate, export, fill_mask, launch, prepare, report, train
from oarlock.cli.console import errors
from oarlock.cli.measure import bench
from oarlock.config import Frozen, RunConfig, describe, read_run_config, refuse_moved
from oarlock.config.folders import fetch
from oarlock.launch import end_with_parent, prepare_process
from oarlock.recipes import RECIPES, recipe

YAML = (".yaml", ".yml")
DESCRIPTION = """Pretrain Transformer encoders on your own text, without padding.

The path: `oarlock prepare` turns text into a data set, `oarlock train` trains, `oarlock export` writes a folder that
transformers loads. `oarlock COMMAND --help` tells what each can be told."""

COMMANDS: dict[str, Callable[..., None]] = {
    command.__name__.replace("_", "-"): command
    for command in (prepare, train, launch, evaluate, export, fill_mask, report, bench)
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code: 0, 1 (it failed), or 2 (it was not understood)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    prepare_process()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
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


def _parse(arguments: list[str]) -> functools.partial[None]:
    """The command, ready to run. What `train` starts from decides the defaults of its flags, so it is read first."""
    commands = {name: _deferred(command) for name, command in COMMANDS.items()}
    if arguments[0] == "launch" and "train" in arguments:
        start = arguments.index("train")
        training = _parse(arguments[start:])  # a mistake is told once, before anything starts
        launched = _parse(arguments[:start])
        return functools.partial(launched, command=tuple(arguments[start:]), config=training.keywords["config"])
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
