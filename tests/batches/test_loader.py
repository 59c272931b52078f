"""Training batches, as a run draws them."""

import multiprocessing
import re
from contextlib import closing
from pathlib import Path

import pytest
import torch

from oarlock.batches import training_batches
from oarlock.config import BatchConfig, MaskingConfig
from oarlock.corpus import open_dataset
from oarlock.testing.batches import equal_global_batches
from oarlock.testing.datasets import toy_dataset, write_toy_dataset


def batches(dataset, last_step, first_step=1, workers=0, **batch):
    return training_batches(
        dataset,
        BatchConfig(**{"sequences": 16, "workers": workers, **batch}),
        MaskingConfig(),
        seed=3,
        first_step=first_step,
        last_step=last_step,
    )


@pytest.mark.parametrize("size", [{"sequences": 16}, {"tokens": 500, "max_tokens_per_microbatch": 200}])
def test_c13_batches_are_the_same_for_any_number_of_workers(size):
    dataset = toy_dataset(100)
    alone = list(batches(dataset, 20, **size))
    assert [batch.step for batch in alone] == list(range(1, 21))
    assert alone[0].epoch < alone[-1].epoch
    for workers in (1, 4):
        assert all(map(equal_global_batches, alone, batches(dataset, 20, workers=workers, **size)))


def test_c13_memory_mapped_data_gives_the_same_batches(tmp_path):
    dataset = toy_dataset(100, special_inside=True)
    opened = open_dataset(str(write_toy_dataset(tmp_path / "data", dataset).folder))
    for workers in (0, 2):
        assert all(map(equal_global_batches, batches(dataset, 9), batches(opened, 9, workers=workers)))


@pytest.mark.parametrize("workers", [0, 2])
def test_c41_a_resumed_run_draws_what_a_straight_one_would(workers):
    dataset = toy_dataset(100)
    straight = list(batches(dataset, 20))[10:]
    resumed = list(batches(dataset, 20, first_step=11, workers=workers))
    assert len(resumed) == 10
    assert all(map(equal_global_batches, straight, resumed))
    assert list(batches(dataset, 20, first_step=21, workers=workers)) == []


def test_random_state_of_the_program_is_left_alone():
    before = torch.get_rng_state()
    list(batches(toy_dataset(100), 3, workers=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_does_not_fit_is_refused_before_a_batch_is_drawn():
    with pytest.raises(ValueError, match=r"batch\.tokens 20 cannot hold"):
        batches(toy_dataset(100), 3, tokens=20)
    with pytest.raises(ValueError, match="no sequences"):
        batches(toy_dataset(0), 3)


def private_bytes(pid: int | str) -> int:
    """Memory of a process that no file backs."""
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def test_c58_memory_is_flat_over_10_000_batches():
    dataset = toy_dataset(400)
    with closing(batches(dataset, 13_000, workers=2, tokens=600, max_tokens_per_microbatch=300)) as drawn:
        for batch in drawn:
            if batch.step == 2_000:
                processes = ["self", *(worker.pid for worker in multiprocessing.active_children())]
                before = [private_bytes(pid) for pid in processes]
            if batch.step == 12_000:
                after = [private_bytes(pid) for pid in processes]
                break
    assert len(after) == 3
    for first, last in zip(before, after, strict=True):
        assert last < 1.05 * first


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_copied_to_a_gpu_without_waiting(workers):
    dataset, device = toy_dataset(100), torch.device("cuda")
    on_host = list(batches(dataset, 12))
    size = BatchConfig(sequences=16, workers=workers)
    drawn = training_batches(dataset, size, MaskingConfig(), seed=3, first_step=1, last_step=12, device=device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        on_device = list(drawn)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(batch.microbatches[0].ids_T.is_cuda for batch in on_device)
    assert all(map(equal_global_batches, on_host, (batch.to(torch.device("cpu")) for batch in on_device)))
