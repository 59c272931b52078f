"""The same training work by Oarlock and by its peers, in one run: useful tokens a second, and the memory of a step.

Everyone starts from the same weights and trains on the same batch (random tokens at the lengths of BERT's Wikipedia
data, 15 % of them targets), with dropout as the model's configuration asks, AdamW and clipping by the global norm.
Each does what it does as it comes: the peers pad to the longest sequence and make logits at every position. See
`ours.py`, `huggingface.py` and `paddlepaddle.py`. Before anything is timed, the losses of all are compared, without
dropout.

Each contestant is a process of its own, in an environment of its own; they do one step in turn, again and again, with
a measurement of the GEMM rate in each round, so that a change of the machine's load meets all. The first round, which
builds kernels and optimizer state, is not counted. Memory is the largest resident memory of the process from just
before its first step to the end.

    python -m bench.peers.run --models bert-mini bert-base modernbert-base --json bench/results/peers-MACHINE.json
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from bench.peers.work import pack_work, padded, shape, write_job
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from oarlock.ops import gemm_rate
from oarlock.parallel import DTYPES
from oarlock.report import machine_facts
from oarlock.step.measure import batch_flops_per_token

ROOT = Path(__file__).parents[2]
LOSS_TOLERANCE = 0.02  # of a forward pass in bf16
MEGABYTE = 1e6
GIGA = 1e9


class Contestant(NamedTuple):
    """Who takes part, and how it is started."""

    module: str
    arguments: tuple[str, ...]
    environment: str | None
    """Whose requirements file; None is the environment that this runs in."""
    kinds: tuple[str, ...]
    """Architectures that it has."""


ANY_KIND = ("bert", "roberta", "modernbert")
OURS = "oarlock bf16"
CONTESTANTS = {
    OURS: Contestant("bench.peers.ours", (), None, ANY_KIND),
    "transformers bf16": Contestant("bench.peers.huggingface", ("bf16",), "transformers", ANY_KIND),
    "transformers fp32": Contestant("bench.peers.huggingface", ("fp32",), "transformers", ANY_KIND),
    "paddlepaddle fp32": Contestant("bench.peers.paddlepaddle", (), "paddlepaddle", ("bert",)),
}


def main() -> None:
    options = parse_options()
    console = Console()
    pythons = {
        name: environment(options.environments / name, ROOT / f"bench/peers/requirements-{name}.txt", console)
        for name in sorted({c.environment for c in CONTESTANTS.values() if c.environment})
    }
    results = []
    for model in options.models:
        results.append(compare(model, options.sequences, options.repeats, pythons, console))
        console.print(table(results[-1]))
        if options.json:
            report = {"machine": machine_facts(torch.device("cpu")), "sequences": options.sequences, "results": results}
            options.json.write_text(json.dumps(report, indent=1) + "\n")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["bert-mini", "bert-base", "modernbert-base"])
    parser.add_argument("--sequences", type=int, default=16, help="in a batch")
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count")
    parser.add_argument("--environments", type=Path, default=ROOT / ".cache/peers", help="folder of the peers'")
    parser.add_argument("--json", type=Path, help="file for the results, written after each model")
    return parser.parse_args()


def environment(folder: Path, requirements: Path, console: Console) -> Path:
    """The Python of a virtual environment that has what a requirements file asks for; made where it is not there."""
    python, note = folder / "bin/python", folder / "installed.txt"
    if not note.exists() or note.read_text() != requirements.read_text():
        with console.status(f"installing {requirements.name} into {folder}"):
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", requirements], check=True)
        note.write_text(requirements.read_text())
    return python


class Process:
    """A contestant at work. Leaving its context ends it."""

    def __init__(self, name: str, job: Path, python: Path | str) -> None:
        contestant = CONTESTANTS[name]
        self._name = name
        self._log = job / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, "-m", contestant.module, job, *contestant.arguments],
                cwd=ROOT,
                env=os.environ | {"GOMP_SPINCOUNT": "5000"},  # as the `oarlock` command sets
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def answer(self) -> dict[str, Any]:
        """The next answer; ends the program where there is none."""
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} ended:\n{self._log.read_text()[-3000:]}")
        return json.loads(line)

    def ask(self, command: str) -> dict[str, Any]:
        """The answer to a command."""
        print(command, file=self._process.stdin, flush=True)
        return self.answer()


def compare(model: str, num_sequences: int, repeats: int, pythons: dict[str, Path], console: Console) -> dict[str, Any]:
    """Medians and all repeats of every contestant that has the model's architecture."""
    config, batch = shape(model), pack_work(model, num_sequences)
    names = [name for name, contestant in CONTESTANTS.items() if config.kind in contestant.kinds]
    found: dict[str, dict[str, Any]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    rates: dict[str, list[float]] = {precision: [] for precision in DTYPES}
    with ExitStack() as stack:
        job = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_job(model, num_sequences, job)
        progress = stack.enter_context(Progress(console=console, transient=True))
        bar = progress.add_task(model, total=len(names) * (repeats + 2))
        processes = {}
        for name in names:
            python = pythons.get(CONTESTANTS[name].environment or "", sys.executable)
            processes[name] = stack.enter_context(Process(name, job, python))
            found[name] = processes[name].answer()  # one after the other: each has the machine to itself
            progress.advance(bar)
        check_equal({name: values["loss"] for name, values in found.items()})
        for round_ in range(repeats + 1):
            for name, process in processes.items():
                spent = process.ask("step")["seconds"]
                seconds[name] += [spent] if round_ else []
                progress.advance(bar)
            for precision, dtype in DTYPES.items():
                rates[precision].append(gemm_rate(torch.device("cpu"), dtype, repeats=1))
        for name, process in processes.items():
            found[name] |= process.ask("memory")
    gemm = {precision: statistics.median(values) for precision, values in rates.items()}
    ours = statistics.median(seconds[OURS])
    flops = batch.num_tokens * batch_flops_per_token(config, batch)
    for name, values in found.items():
        median = statistics.median(seconds[name])
        values |= {
            "useful_tokens_per_second": round(batch.num_tokens / median, 1),
            "times_as_fast_as_it": round(median / ours, 2),
            "gemm_share": round(flops / median / gemm[name.split()[-1]], 3),
            "memory_of_ours": round(found[OURS]["peak"] / values["peak"], 3),
            "seconds": [round(value, 4) for value in seconds[name]],
        }
    return {
        "model": model,
        "useful_tokens": batch.num_tokens,
        "padded_tokens": padded(batch)["input_ids"].numel(),
        "gemm_gflops": {precision: round(rate / GIGA) for precision, rate in gemm.items()},
        "gemm_gflops_repeats": {p: [round(rate / GIGA) for rate in values] for p, values in rates.items()},
        "contestants": found,
    }


def check_equal(losses: dict[str, float]) -> None:
    """All compute the same loss: a figure is printed only for equal work."""
    if not max(losses.values()) - min(losses.values()) <= LOSS_TOLERANCE:
        raise SystemExit(f"they do not compute the same: losses {losses}")


def table(result: dict[str, Any]) -> Table:
    """The figures of one model."""
    gemm = ", ".join(f"{precision} {rate:,} GFLOP/s" for precision, rate in result["gemm_gflops"].items())
    grid = Table(
        title=f"{result['model']}: {result['useful_tokens']:,} useful tokens, {result['padded_tokens']:,} padded; "
        f"GEMM {gemm}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    grid.add_column(no_wrap=True)
    for heading in ("useful/s", "spread", "ours", "of GEMM", "peak MB", "step MB"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for name, values in result["contestants"].items():
        median = statistics.median(values["seconds"])
        spread = (max(values["seconds"]) - min(values["seconds"])) / 2 / median
        grid.add_row(
            name,
            f"{values['useful_tokens_per_second']:,.0f}",
            f"±{spread:.0%}",
            f"{values['times_as_fast_as_it']:.2f}x",
            f"{values['gemm_share']:.1%}",
            f"{values['peak'] / MEGABYTE:,.0f}",
            f"{(values['peak'] - values['before']) / MEGABYTE:,.0f}",
        )
    return grid


if __name__ == "__main__":
    main()
