"""Two stages of a pipeline beside one process, where memory is short: more than twice as fast.

    python -m bench.superlinear --json superlinear.json

A micro-batch of one long sequence cannot be cut further. Under a cap on its memory one process must therefore compute
its layers again in the backward pass, while two stages, with half of the state each, need not. Each process has one
thread. Printed beside it: the ratio without the cap, where nobody computes anything again.
"""

import argparse
import json
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from oarlock.batches import GlobalBatch, pack
from oarlock.batches.pack import add_filler
from oarlock.config import ModelConfig, OptimizerConfig, Plan
from oarlock.launch import prepare_process
from oarlock.model import build_model
from oarlock.parallel import connect
from oarlock.report import machine_facts
from oarlock.step import build_learner, train_step
from oarlock.testing.distributed import run_distributed

MODEL = ModelConfig(
    kind="modernbert", vocab_size=4096, hidden_size=384, num_layers=24, num_heads=6, intermediate_size=576,
    max_length=2048, dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
LENGTH, MICROBATCHES = 1536, 8
CAP = 1_000_000_000
"""Bytes of a process's private memory, over what it has before the model is built."""
ONE, STAGES = Plan(), Plan(pipe=2, schedule="1f1b", microbatches=MICROBATCHES)
RUNS = {
    "1 process, capped, recomputing": (1, Plan(recompute=True), CAP),
    "2 stages, capped": (2, STAGES, CAP),
    "1 process, no cap": (1, ONE, None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    console = Console()
    fits = all("memory" not in one for one in run_distributed(one_step, 1, ONE, CAP))
    console.print(f"1 process, capped, keeping activations: {'fits' if fits else 'out of memory'}")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
    for _ in track(range(options.rounds), "rounds", console=console):
        for name, (size, plan, cap) in RUNS.items():
            found[name].append(run_distributed(one_step, size, plan, cap)[-1])
    seconds = {name: statistics.median(one["seconds"] for one in runs) for name, runs in found.items()}
    losses = {name: runs[0]["loss"] for name, runs in found.items()}
    for name in RUNS:
        console.print(f"{name}: {seconds[name]:.2f} s a step, loss {losses[name]:.6f}")
    recomputing, stages, plain = seconds.values()
    ratios = {"capped": recomputing / stages, "no cap": plain / stages}
    console.print(f"two stages are {ratios['capped']:.2f}x one process under the cap, {ratios['no cap']:.2f}x without")
    facts = {"machine": machine_facts(torch.device("cpu")), "one_process_fits_without_recomputing": fits}
    options.json.write_text(json.dumps(facts | {"ratios": ratios, "runs": found}, indent=1) + "\n")


def one_step(plan: Plan, cap: int | None) -> dict[str, Any]:
    """Seconds and loss of the second step; or the message, where the cap does not allow it."""
    prepare_process()
    groups = connect(resolved := plan.resolved(2 if plan.pipe > 1 else 1), torch.device("cpu"))
    if cap is not None:
        status = Path("/proc/self/status").read_text()
        before = 1024 * int(status.partition("VmData:")[2].split()[0])
        resource.setrlimit(resource.RLIMIT_DATA, (before + cap, before + cap))
    try:
        learner = build_learner(build_model(MODEL), OptimizerConfig(), "bf16", resolved, groups)
        train_step(learner, batch(0), 1.0)
        groups.wait()
        start = time.perf_counter()
        loss = train_step(learner, batch(1), 1.0).loss.item()
        groups.wait()
    except (RuntimeError, MemoryError) as error:
        if "memory" not in str(error):
            raise
        return {"memory": str(error)}
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": time.perf_counter() - start, "loss": loss, "peak_bytes": peak}


def batch(step: int) -> GlobalBatch:
    """Micro-batches of one sequence each."""
    generator = np.random.default_rng(step)
    targets = np.arange(3, LENGTH, 7)
    total = MICROBATCHES * len(targets)
    microbatches = tuple(
        add_filler(pack([generator.integers(MODEL.vocab_size, size=LENGTH)], targets=[targets], num_targets=total))
        for _ in range(MICROBATCHES)
    )
    return GlobalBatch(step + 1, 0, microbatches, MICROBATCHES, MICROBATCHES * LENGTH, total, 1.0)


if __name__ == "__main__":
    main()
