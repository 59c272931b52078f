"""How fast batches are built: what `oarlock bench data` prints."""

import time
from collections.abc import Callable

import torch

from oarlock.batches.lengths import wikipedia_lengths
from oarlock.batches.loader import training_batches
from oarlock.batches.synthetic import synthetic_dataset
from oarlock.config import BatchConfig, MaskingConfig
from oarlock.corpus import Dataset

NUM_SAMPLES = 200_000
VOCAB_SIZE = 30_522
SEQUENCES = 448
WARMUP_STEPS = 8


def measure_loader(
    workers: int,
    *,
    dataset: Dataset | None = None,
    steps: int = 200,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float | int]:
    """Useful tokens/s that one consumer draws from `workers` processes; 0 builds batches in the consumer itself.

    Batches are of 448 sequences, by default of random tokens at the lengths of BERT's Wikipedia data. The first few are
    drawn before the clock starts. `imbalance` is the mean over the steps of the largest over the mean number of tokens
    of a micro-batch. `on_progress` is told how many steps are done, of how many.
    """
    batches = training_batches(
        dataset or synthetic_dataset(wikipedia_lengths(NUM_SAMPLES, seed=0), [], VOCAB_SIZE, seed=0),
        BatchConfig(sequences=SEQUENCES, workers=workers),
        MaskingConfig(),
        seed=0,
        first_step=1,
        last_step=WARMUP_STEPS + steps,
        device=torch.device("cpu"),
    )
    tokens, imbalance, start = 0, 0.0, 0.0
    for batch in batches:
        if batch.step > WARMUP_STEPS:
            tokens += batch.num_tokens
            imbalance += batch.imbalance
        else:
            start = time.perf_counter()
        on_progress(batch.step, WARMUP_STEPS + steps)
    seconds = time.perf_counter() - start
    return {
        "useful_tokens_per_second": tokens / seconds,
        "batches_per_second": steps / seconds,
        "workers": workers,
        "sequences_per_batch": SEQUENCES,
        "imbalance": imbalance / steps,
    }
