"""How fast this machine trains a model, at the sequence lengths of BERT's Wikipedia data.

Suffixes: S sequences.
"""

import statistics
import time

import numpy as np

from oarlock.batches import Batch, GlobalBatch, pack
from oarlock.batches.lengths import wikipedia_lengths
from oarlock.batches.masking import num_targets
from oarlock.config import MaskingConfig, ModelConfig, OptimizerConfig
from oarlock.model import build_model, flops_per_token
from oarlock.ops import gemm_rate
from oarlock.step.device import choose_device
from oarlock.step.precision import DTYPES
from oarlock.step.step import build_learner, train_step


def measure_training(
    config: ModelConfig, *, num_sequences: int = 32, precision: str = "bf16", repeats: int = 5, seed: int = 0
) -> dict[str, float]:
    """Median rate of whole optimizer steps on a packed batch of random tokens, beside the machine's GEMM rate."""
    device = choose_device("auto")
    learner = build_learner(build_model(config, seed).to(device), OptimizerConfig(), precision)
    batch = wikipedia_batch(config, num_sequences, seed).to(device)
    step = GlobalBatch(1, 0, (batch,), num_sequences, batch.num_tokens, batch.num_targets, 1.0)
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        train_step(learner, step, 1.0).loss.item()
        seconds.append(time.perf_counter() - start)
    rate = batch.num_tokens / statistics.median(seconds[1:])  # the first step builds kernels and optimizer state
    machine = gemm_rate(device, DTYPES[precision])
    flops = rate * batch_flops_per_token(config, batch)
    return {
        "useful_tokens_per_second": rate,
        "sequences_per_second": rate * num_sequences / batch.num_tokens,
        "flops_per_second": flops,
        "gemm_rate": machine,
        "gemm_share": flops / machine,
    }


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


def batch_flops_per_token(config: ModelConfig, batch: Batch) -> float:
    """`flops_per_token` at the lengths of a batch."""
    lengths_S = batch.cu_seqlens_S1.diff().double()
    share = batch.num_targets / batch.num_tokens
    return flops_per_token(config, float(lengths_S.mean()), float((lengths_S**2).mean()), share)
