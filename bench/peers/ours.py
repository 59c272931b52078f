"""Training with Oarlock: packed, bf16 with fp32 masters, the step that the command line uses."""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from bench.peers.protocol import LEARNING_RATE, serve
from bench.peers.work import build, pack_work

from oarlock.config import OptimizerConfig
from oarlock.launch import prepare_process
from oarlock.step import build_learner, evaluate, train_step
from oarlock.step.measure import step_of


def main(job: Path) -> None:
    prepare_process()  # as the command does
    work = json.loads((job / "work.json").read_text())
    model, batch = build(work["model"]), pack_work(work["model"], work["sequences"])
    learner = build_learner(model, OptimizerConfig(learning_rate=LEARNING_RATE), "bf16")
    step = step_of(batch, torch.device("cpu"))
    about = {
        "loss": evaluate(model, [batch]).loss.item(),
        "version": f"oarlock {version('oarlock')}, torch {torch.__version__}",
    }
    serve(about, lambda: train_step(learner, step, 1.0).loss.item())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
