"""The commands but `bench`: each is a few lines that call the rooms, which are imported when they are needed."""

import json
import os
from pathlib import Path
from typing import Annotated

from pydantic import Field
from tyro.conf import Positional, Suppress, arg

from oarlock.cli.console import out, say
from oarlock.config import RunConfig
from oarlock.config.folders import fetch
from oarlock.corpus.options import PrepareConfig


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
        many = os.environ.get("LOCAL_WORLD_SIZE", "1")
        launch_ = f"launch --nproc {many} " if many != "1" else ""
        say(f"To go on: oarlock {launch_}train {result.folder / 'config.yaml'}")


def launch(
    nproc: int,
    nodes: str = "1",
    rendezvous: str | None = None,
    restarts: int = 3,
    command: Annotated[tuple[str, ...], Suppress] = (),
    config: Annotated[RunConfig | None, Suppress] = None,
) -> None:
    """Train with several processes: oarlock launch --nproc 4 train RECIPE ...

    All that follows `train` is as it is without `launch`; `--plan` says how the processes share the work. When one of
    them dies, all are started anew from the newest checkpoint.

    Args:
        nproc: Processes on this machine.
        nodes: Machines; MIN:MAX starts with MIN, and goes on with fewer or more as they come and go.
        rendezvous: HOST:PORT where machines meet, one of them; give the same on each.
        restarts: How often all are started anew.
    """
    from oarlock.corpus import open_dataset
    from oarlock.launch import run_job
    from oarlock.recipes.fit import fit_to_data

    if config is None:
        raise ValueError("say what to launch: oarlock launch --nproc 4 train RECIPE --data DATA --out RUN --steps 1000")
    if nproc < 1 or restarts < 0:
        raise ValueError(f"--nproc {nproc} and --restarts {restarts}: at least 1 process, and no negative number")
    if nodes != "1" and rendezvous is None:
        raise ValueError("several machines need a place to meet: --rendezvous HOST:PORT, the same on each")
    if nodes == "1":
        config.plan.resolved(nproc)
    fit_to_data(config, open_dataset(config.data))  # else every process would refuse it, at every restart
    run_job(command, config.out, processes=nproc, nodes=nodes, rendezvous=rendezvous, restarts=restarts)


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
