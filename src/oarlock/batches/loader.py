"""The training batches of a run: built ahead by worker processes, and copied to the device ahead of their use."""

from collections.abc import Generator
from contextlib import closing

import torch

from oarlock.batches.balance import BERT_BASE_QUADRATIC
from oarlock.batches.batch import GlobalBatch
from oarlock.batches.global_batches import GlobalBatches
from oarlock.batches.workers import build_ahead
from oarlock.config import BatchConfig, MaskingConfig
from oarlock.corpus import Dataset

CPU = torch.device("cpu")
GPU_WORKERS = 2


def training_batches(
    dataset: Dataset,
    batch: BatchConfig,
    masking: MaskingConfig,
    *,
    seed: int,
    first_step: int,
    last_step: int,
    quadratic: int = BERT_BASE_QUADRATIC,
    device: torch.device = CPU,
    **share: int,
) -> Generator[GlobalBatch, None, None]:
    """The global batches of the steps `first_step` (from 1) to `last_step`, on `device`: a process's `share`, of
    which `GlobalBatches` tells.

    `quadratic` is the length at which attention costs as much as the linear layers (`quadratic_length` of the model, by
    default BERT-base's): balance weighs sequences by it.
    The first batch costs the same whatever the step. Close the generator to end its processes.

    Raises ValueError at once where the training split is empty or does not fit `batch`; while running, as
    `build_ahead` does.
    """
    batches = GlobalBatches(dataset, batch, masking, seed=seed, quadratic=quadratic, **share)
    workers = batch.workers if batch.workers is not None else GPU_WORKERS if device.type == "cuda" else 0
    built = build_ahead(batches.build, range(first_step, last_step + 1), workers)
    return built if device.type == "cpu" else _copied_ahead(built, device)


def _copied_ahead(
    batches: Generator[GlobalBatch, None, None], device: torch.device
) -> Generator[GlobalBatch, None, None]:
    """Each batch on the device; the copy of the next one runs beside the work on this one."""
    copies = torch.Stream(device)
    with closing(batches):
        ahead: tuple[GlobalBatch, torch.Event] | None = None
        for batch in batches:
            with copies:
                coming = (batch.pin_memory().to(device), copies.record_event())
            if ahead is not None:
                yield _hand_over(*ahead, device)
            ahead = coming
        if ahead is not None:
            yield _hand_over(*ahead, device)


def _hand_over(batch: GlobalBatch, copied: torch.Event, device: torch.device) -> GlobalBatch:
    stream = torch.accelerator.current_stream(device)
    stream.wait_event(copied)
    batch.record_stream(stream)
    return batch
