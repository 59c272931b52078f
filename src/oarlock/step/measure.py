"""How fast this machine trains a model, at the sequence lengths of BERT's Wikipedia data, and where a step's time goes.

Suffixes: S sequences.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypedDict

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from oarlock.batches import Batch, GlobalBatch, pack
from oarlock.batches.lengths import wikipedia_lengths
from oarlock.batches.masking import num_targets
from oarlock.batches.pack import add_filler
from oarlock.config import MaskingConfig, ModelConfig, OptimizerConfig
from oarlock.model import build_model, flops_per_token
from oarlock.ops import gemm_rate
from oarlock.parallel import DTYPES
from oarlock.step.device import choose_device
from oarlock.step.step import build_learner, train_step

OUR_OPERATORS = ("oarlock::", "oarlock_reference::")
MATRIX_PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul"))
OPTIMIZER = "Optimizer.step#"
OTHER = "other torch operations"
REST = "Python, and waiting"
PROFILED_STEPS = 2


class TrainingFigures(TypedDict):
    """What `measure_training` finds."""

    useful_tokens_per_second: float
    """Median over the steps."""
    sequences_per_second: float
    flops_per_second: float
    """Matrix products of forward and backward, without padding, recomputation or unmasked positions of the head."""
    gemm_rate: float
    """FLOP/s of a matrix product, measured between the steps."""
    gemm_share: float
    useful_tokens: int
    """In a step."""
    step_seconds: list[float]
    """Of every step, in order."""
    shares: dict[str, float]
    """Parts of a step's time, largest first; they add up to 1."""


def measure_training(
    config: ModelConfig,
    *,
    num_sequences: int = 32,
    precision: str = "bf16",
    repeats: int = 5,
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> TrainingFigures:
    """Rate of whole optimizer steps on a packed batch of random tokens, beside the machine's GEMM rate, and the parts
    of a step.

    Steps and matrix products are timed in turn. `on_progress` is told how many parts of the work are done, of how many.

    Raises ValueError where there is no sequence or no step to measure.
    """
    if num_sequences < 1 or repeats < 1:
        raise ValueError(
            f"{repeats} steps of {num_sequences} sequences are nothing to measure; give at least 1 of each"
        )
    device = choose_device("auto")
    learner = build_learner(build_model(config, seed).to(device), OptimizerConfig(), precision)
    batch = wikipedia_batch(config, num_sequences, seed)
    step = step_of(batch, device)
    seconds, rates = [], []

    def run() -> None:
        train_step(learner, step, 1.0).loss.item()

    for repeat in range(repeats + 1):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
        rates.append(gemm_rate(device, DTYPES[precision], repeats=1))
        on_progress(repeat + 1, repeats + 2)
    shares = time_shares(run, device)
    on_progress(repeats + 2, repeats + 2)
    del seconds[0], rates[0]  # the first step builds kernels and optimizer state
    rate = batch.num_tokens / statistics.median(seconds)
    machine = statistics.median(rates)
    flops = rate * batch_flops_per_token(config, batch)
    return {
        "useful_tokens_per_second": rate,
        "sequences_per_second": rate * num_sequences / batch.num_tokens,
        "flops_per_second": flops,
        "gemm_rate": machine,
        "gemm_share": flops / machine,
        "useful_tokens": batch.num_tokens,
        "step_seconds": seconds,
        "shares": shares,
    }


def time_shares(run: Callable[[], None], device: torch.device) -> dict[str, float]:
    """How the time of `run` (which waits for the device) divides over Oarlock's operators by name, torch's matrix
    products, the optimizer, other torch operations, and what is outside of torch; largest first, in all 1.

    What an operator calls is counted with it. On a GPU the parts are the times of kernels, and the last is the time in
    which the GPU has nothing to do.
    """
    gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        start = time.perf_counter()
        for _ in range(PROFILED_STEPS):
            run()
        total = 1e6 * (time.perf_counter() - start)
    spent: dict[str, float] = defaultdict(float)
    todo = [(event, "") for event in profiler.events() if event.cpu_parent is None]
    while todo:
        event, around = todo.pop()
        part = around or _part(event.name)
        spent[part or OTHER] += event.self_device_time_total if gpu else event.self_cpu_time_total
        todo += [(child, part) for child in event.cpu_children]
    spent[REST] = total - sum(spent.values())
    return {part: spent[part] / total for part in sorted(spent, key=spent.__getitem__, reverse=True)}


def _part(name: str) -> str:
    """The part of a step that an event of the profiler stands for, or "" where it is none by itself."""
    if name.startswith(OUR_OPERATORS):
        return name.partition("::")[2]
    if name.startswith(OPTIMIZER):
        return "optimizer"
    return "matrix products" if name in MATRIX_PRODUCTS else ""


def wikipedia_batch(config: ModelConfig, num_sequences: int, seed: int) -> Batch:
    """Random tokens at the Wikipedia lengths, longest sequence first, with 15 % targets."""
    generator = np.random.default_rng(seed)
    lengths_S = -np.sort(-wikipedia_lengths(num_sequences, seed))
    counts_S = num_targets(lengths_S - 2, MaskingConfig())
    return pack(
        [generator.integers(config.vocab_size, size=length) for length in lengths_S],
        targets=[
            np.sort(generator.choice(length - 2, count, replace=False)) + 1
            for length, count in zip(lengths_S, counts_S, strict=True)
        ],
    )


def step_of(batch: Batch, device: torch.device) -> GlobalBatch:
    """A step of one micro-batch, with the filler that training gives it too; only the batch's tokens are useful."""
    num_sequences = len(batch.sample_ids_S)
    return GlobalBatch(1, 0, (add_filler(batch).to(device),), num_sequences, batch.num_tokens, batch.num_targets, 1.0)


def batch_flops_per_token(config: ModelConfig, batch: Batch) -> float:
    """`flops_per_token` at the lengths of a batch."""
    lengths_S = batch.cu_seqlens_S1.diff().double()
    share = batch.num_targets / batch.num_tokens
    return flops_per_token(config, float(lengths_S.mean()), float((lengths_S**2).mean()), share)
