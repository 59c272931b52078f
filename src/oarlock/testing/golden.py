"""The golden loss curve: what a short fp32 run on one CPU thread logs, commit to commit.

`python -m oarlock.testing.golden` writes it anew; a change of it needs a line in the changelog that says why.
"""

import json
import platform
import re
from pathlib import Path

import torch

from oarlock.batches import evaluation_batches, training_batches
from oarlock.batches.balance import quadratic_length
from oarlock.model import build_model
from oarlock.ops import native
from oarlock.recipes import recipe
from oarlock.recipes.fit import fit_to_data
from oarlock.step import build_learner, evaluate, learning_rate_share, train_step
from oarlock.testing.datasets import toy_dataset

FILE = Path(__file__).parents[3] / "tests" / "golden" / "bert_tiny.json"
STEPS = 20
CPU_FIELDS = ("vendor_id", "cpu family", "model", "stepping")


def golden_losses() -> list[float]:
    """The losses of `STEPS` steps of a bert-tiny with dropout and several micro-batches a step, then the evaluation's.

    From batches, masks and dropout to the optimizer and its schedule, everything that training computes has a part.
    """
    dataset = toy_dataset(400)
    config = fit_to_data(recipe("bert-tiny", data="toy", out="none", steps=STEPS, precision="fp32", seed=3), dataset)
    batch = config.batch.model_copy(update={"sequences": 32, "max_tokens_per_microbatch": 512})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        learner = build_learner(build_model(config.model, config.seed), config.optimizer, config.precision)
        steps = training_batches(
            dataset,
            batch,
            config.masking,
            seed=config.seed,
            first_step=1,
            last_step=STEPS,
            quadratic=quadratic_length(config.model),
        )
        losses = [
            train_step(learner, step, learning_rate_share(step.step, STEPS, config.schedule)).loss for step in steps
        ]
        held_out = evaluation_batches(
            dataset, config.masking, seed=config.seed, max_tokens_per_microbatch=512, max_sequences=None
        )
        return [loss.item() for loss in (*losses, evaluate(learner.model, held_out).loss)]
    finally:
        torch.set_num_threads(threads)


def machine_kind() -> str:
    """What last bits depend on: torch's build and the processor, which choose its kernels, and the build of ours."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    fields = [match[1] for name in CPU_FIELDS if (match := re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE))]
    processor = " ".join(fields) or platform.processor() or platform.machine()
    matrices = " amx" if re.search(r"\bamx_tile\b", text) else ""
    torch_kernels = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}{matrices}"
    return f"{torch_kernels}, kernels {native.level()}, {processor}"


def read_golden(path: Path = FILE) -> dict[str, list[float]]:
    """The golden losses by machine kind."""
    curves: dict[str, list[float]] = json.loads(path.read_text()) if path.exists() else {}
    return curves


def write_golden(path: Path = FILE) -> None:
    """Write this machine kind's losses; where they changed, those of other kinds are of older code and are dropped."""
    kind, losses, before = machine_kind(), golden_losses(), read_golden(path)
    others = before if before.get(kind, losses) == losses else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**others, kind: losses}, indent=1) + "\n")


if __name__ == "__main__":
    write_golden()
    print(f"wrote {FILE}")
