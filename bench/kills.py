"""A run of two processes in which one after the other is killed, at random moments: how long until the next step, and
whether it ends with the weights of a run that nobody disturbs.

    python -m bench.kills --data DATA --kills 20 --json kills.json
"""

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console

from oarlock.report import machine_facts
from oarlock.state import load_newest
from oarlock.testing.jobs import Job, job

STEPS_A_KILL = 40
EVERY = 5  # steps between checkpoints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that `oarlock prepare` wrote")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    steps, draw, console = STEPS_A_KILL * (options.kills + 1), random.Random(options.seed), Console()
    flags = ("--steps", steps, "--checkpoint.every", EVERY, "--evaluation.every", steps)
    kills: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        plain, disturbed = Path(folder) / "plain", Path(folder) / "disturbed"
        with job(options.data, plain, *flags) as run:
            if run.process.wait() != 0:
                raise SystemExit(run.said())
        with job(options.data, disturbed, *flags) as run:
            for number in range(options.kills):
                run.reach(STEPS_A_KILL * number + draw.randint(1, STEPS_A_KILL))
                time.sleep(draw.random() * 0.2)
                kills.append(kill(run, rank=draw.randrange(2)))
                console.print(f"kill {number + 1}: rank {kills[-1]['rank']}, {kills[-1]['seconds']:.1f} s")
            if run.process.wait() != 0:
                raise SystemExit(run.said())
        equal = all(torch.equal(*pair) for pair in zip(*(weights(path) for path in (plain, disturbed)), strict=True))
    seconds = [one["seconds"] for one in kills]
    console.print(f"equal weights: {equal}; median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s")
    facts = {"machine": machine_facts(torch.device("cpu")), "equal_weights": equal, "kills": kills}
    options.json.write_text(json.dumps(facts, indent=1) + "\n")


def kill(run: Job, rank: int) -> dict[str, float]:
    """Kill a process, and wait for the next step."""
    killed = run.workers()
    os.kill(killed[rank], signal.SIGKILL)
    start = time.monotonic()
    run.until(lambda: len(run.workers()) == 2 and not set(killed) & set(run.workers()))
    lines = len(run.said().splitlines())
    metrics = run.run / "metrics.jsonl"
    # The new processes first cut the file back to their checkpoint, and then write the next step.
    run.until(lambda: len(run.said().splitlines()) > lines)
    before = metrics.read_bytes()
    run.until(lambda: metrics.read_bytes() != before)
    return {"rank": rank, "step": run.step(), "seconds": round(time.monotonic() - start, 2)}


def weights(run: Path) -> list[torch.Tensor]:
    """Of the newest checkpoint."""
    snapshot = load_newest(run)
    assert snapshot is not None
    return list(snapshot.weights.values())


if __name__ == "__main__":
    main()
