"""The step: the same however a global batch is split, and exact where there is little or nothing to learn from."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from oarlock.batches import GlobalBatch, pack, training_batches
from oarlock.batches.pack import add_filler
from oarlock.config import BatchConfig, MaskingConfig, ModelConfig, OptimizerConfig
from oarlock.model import build_model
from oarlock.step import Learner, build_learner, evaluate, train_step
from oarlock.testing.datasets import toy_dataset

RELATIVE = 1e-6
SHAPE = ModelConfig(
    vocab_size=90, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_length=64, dropout=0.1
)
SPLITS = ([16], [4] * 4, [2] * 8, [1, 2, 5, 8])
NUM_SEQUENCES = 16


def learner(precision: str = "fp32", config: ModelConfig = SHAPE, **options: object) -> Learner:
    return build_learner(build_model(config, seed=3), OptimizerConfig(**options), precision)  # type: ignore[arg-type]


def sequences() -> list[list[int]]:
    """16 sequences of 3 to 60 tokens."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.linspace(3, 60, NUM_SEQUENCES).long()[torch.randperm(NUM_SEQUENCES, generator=generator)]
    return [torch.randint(5, 90, (int(n),), generator=generator).tolist() for n in lengths]


def global_batch(split: list[int], targets: list[list[int]] | None = None) -> GlobalBatch:
    """The 16 sequences in micro-batches of the given sizes; by default every fifth token is a target."""
    ids = sequences()
    targets = targets or [list(range(1, len(one), 5)) for one in ids]
    num_targets = sum(map(len, targets))
    starts = torch.tensor([0, *split]).cumsum(0).tolist()
    microbatches = [
        pack(ids[a:b], targets=targets[a:b], num_targets=num_targets, sample_ids=list(range(a, b)), dropout_key=12345)
        for a, b in pairwise(starts)
    ]
    tokens = sum(map(len, ids))
    return GlobalBatch(1, 0, tuple(microbatches), NUM_SEQUENCES, tokens, num_targets, 1.0)


def gradients(trained: Learner, batch: GlobalBatch) -> tuple[Tensor, dict[str, Tensor]]:
    loss = torch.zeros(())
    for microbatch in batch.microbatches:
        partial = trained.model(microbatch)
        partial.backward()
        loss = loss + partial.detach()
    return loss, {name: master.grad for name, master in trained.masters.items() if master.grad is not None}


def flat(trained: Learner) -> Tensor:
    """All weights as one vector: a key's bias has no gradient but rounding, which AdamW makes visible in it alone."""
    return torch.cat([master.detach().flatten() for master in trained.masters.values()])


def close(ours: Tensor, expected: Tensor) -> None:
    assert torch.linalg.norm((ours - expected).double()) <= RELATIVE * max(1e-3, torch.linalg.norm(expected.double()))


@pytest.mark.parametrize("split", SPLITS[1:], ids=str)
def test_c01_any_split_gives_the_same_step(split: list[int]) -> None:
    """With dropout on: its decisions do not depend on the split either."""
    whole, parts = learner(), learner()
    loss, expected = gradients(whole, global_batch(SPLITS[0]))
    split_loss, found = gradients(parts, global_batch(split))
    close(split_loss, loss)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        close(gradient, expected[name])

    whole, parts = learner(), learner()
    result = train_step(whole, global_batch(SPLITS[0]), 1.0)
    split_result = train_step(parts, global_batch(split), 1.0)
    close(split_result.loss, result.loss)
    close(split_result.grad_norm, result.grad_norm)
    close(flat(parts), flat(whole))


def test_a_filler_changes_no_loss_and_no_gradient() -> None:
    plain, filled = learner(), learner()
    batch = global_batch(SPLITS[0])
    (whole,) = batch.microbatches
    loss, expected = gradients(plain, batch)
    more = add_filler(whole)
    assert more.num_tokens > whole.num_tokens
    filled_loss, found = gradients(filled, replace(batch, microbatches=(more,)))
    close(filled_loss, loss)
    for name, gradient in found.items():
        close(gradient, expected[name])


def test_c01_the_loss_is_the_mean_over_all_targets() -> None:
    trained = learner(config=SHAPE.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0}))
    batch = global_batch(SPLITS[3])
    loss, _ = gradients(trained, batch)
    with torch.no_grad():
        logits = torch.cat([trained.model.logits(microbatch) for microbatch in batch.microbatches])
        true_ids = torch.cat([microbatch.target_ids_M for microbatch in batch.microbatches])
    assert loss.item() == pytest.approx(cross_entropy(logits, true_ids).item(), rel=RELATIVE)


@pytest.mark.parametrize("precision", ("fp32", "bf16"))
def test_c02_a_microbatch_without_targets(precision: str) -> None:
    targets = [[] if i < 4 else [1, 2] for i in range(NUM_SEQUENCES)]
    whole, parts = learner(precision), learner(precision)
    result = train_step(whole, global_batch(SPLITS[0], targets), 1.0)
    split_result = train_step(parts, global_batch(SPLITS[1], targets), 1.0)
    assert torch.isfinite(split_result.loss)
    assert torch.isfinite(split_result.grad_norm)
    if precision == "fp32":
        close(split_result.loss, result.loss)
        close(flat(parts), flat(whole))


def test_c02_an_empty_microbatch_changes_nothing() -> None:
    batch, with_empty = global_batch(SPLITS[1]), global_batch([4, 0, 4, 4, 4])
    plain, padded = learner(), learner()
    train_step(plain, batch, 1.0)
    train_step(padded, with_empty, 1.0)
    for name, master in plain.masters.items():
        assert torch.equal(master, padded.masters[name])


def test_c03_a_batch_without_targets_leaves_everything_as_it_was() -> None:
    trained = learner()
    train_step(trained, global_batch(SPLITS[1]), 1.0)
    before = {name: master.detach().clone() for name, master in trained.masters.items()}
    moments = [value.clone() for state in trained.optimizers[0].state.values() for value in state.values()]
    result = train_step(trained, global_batch(SPLITS[1], [[] for _ in range(NUM_SEQUENCES)]), 1.0)
    assert result.loss.item() == 0.0
    assert all(torch.equal(before[name], master) for name, master in trained.masters.items())
    after = [value for state in trained.optimizers[0].state.values() for value in state.values()]
    assert all(map(torch.equal, moments, after))


def test_c04_the_last_window_of_an_epoch_is_normalised_by_its_own_targets() -> None:
    dataset = toy_dataset(70, vocab_size=90)
    options = BatchConfig(sequences=32, max_tokens_per_microbatch=256)
    batches = training_batches(dataset, options, MaskingConfig(), seed=0, first_step=1, last_step=3, quadratic=1000)
    last = list(batches)[-1]
    assert last.num_sequences == 6
    assert last.num_targets == sum(microbatch.target_ids_M.numel() for microbatch in last.microbatches)
    trained = learner(config=SHAPE.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0}))
    loss, _ = gradients(trained, last)
    with torch.no_grad():
        logits = torch.cat([trained.model.logits(microbatch) for microbatch in last.microbatches])
        true_ids = torch.cat([microbatch.target_ids_M for microbatch in last.microbatches])
    assert loss.item() == pytest.approx(cross_entropy(logits, true_ids).item(), rel=RELATIVE)


MEASURE_PEAK = """
import resource, sys, torch
from oarlock.batches import GlobalBatch, pack
from oarlock.config import ModelConfig, OptimizerConfig
from oarlock.model import build_model
from oarlock.step import build_learner, train_step
torch.set_num_threads(1)
config = ModelConfig(vocab_size=500, hidden_size=128, num_layers=4, num_heads=2, intermediate_size=512)
learner = build_learner(build_model(config), OptimizerConfig(), "fp32")
ids = [[7] * 256 for _ in range(32)]
batch = pack(ids, targets=[[3] for _ in ids])
count = int(sys.argv[1])
train_step(learner, GlobalBatch(1, 0, (batch,) * count, 1, 1, 32 * count, 1.0), 1.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_c05_accumulating_peaks_at_the_memory_of_one() -> None:
    # A fixed threshold makes the C library give large blocks back, so that resident memory is what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}

    def peak(num_microbatches: int) -> int:
        command = [sys.executable, "-c", MEASURE_PEAK, str(num_microbatches)]
        return int(subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout)

    one, eight = peak(1), peak(8)
    assert one > 500_000, "the activations should outweigh the interpreter, else this test cannot fail"
    assert eight <= 1.1 * one


def test_bf16_copies_follow_fp32_masters() -> None:
    trained = learner("bf16")
    start = {name: master.detach().clone() for name, master in trained.masters.items()}
    train_step(trained, global_batch(SPLITS[1]), 1e-4)  # steps so small that bf16 weights would swallow them
    copies = dict(trained.model.named_parameters())
    for name, master in trained.masters.items():
        assert master.dtype == torch.float32
        assert copies[name].dtype == torch.bfloat16
        assert torch.equal(copies[name], master.bfloat16())
        assert master.grad is None
        assert copies[name].grad is None
        if "pooler" not in name:
            assert not torch.equal(master, start[name]), name


def test_bf16_microbatches_add_up_in_fp32() -> None:
    """100 equal micro-batches give 100 times the gradient of one."""
    one, many = learner("bf16"), learner("bf16")
    batch = global_batch(SPLITS[0]).microbatches[0]
    _, expected = gradients(one, GlobalBatch(1, 0, (batch,), 1, 1, 1, 1.0))
    _, found = gradients(many, GlobalBatch(1, 0, (batch,) * 100, 1, 1, 1, 1.0))
    for name, gradient in found.items():
        assert torch.allclose(gradient / 100, expected[name], rtol=1e-5, atol=1e-8), name


def test_evaluation_does_not_depend_on_the_batch_size() -> None:
    trained = learner()
    results = [evaluate(trained.model, global_batch(split).microbatches) for split in SPLITS]
    assert trained.model.training
    for result in results[1:]:
        close(result.loss, results[0].loss)
        assert result.accuracy == results[0].accuracy


@pytest.mark.parametrize("name", ("adamw", "stableadamw", "lamb", "muon"))
@pytest.mark.parametrize("precision", ("fp32", "bf16"))
def test_every_optimizer_learns_and_repeats_itself(name: str, precision: str) -> None:
    runs = []
    for _ in range(2):
        trained = learner(precision, name=name, learning_rate=1e-2)
        runs.append([train_step(trained, global_batch(SPLITS[1]), 1.0).loss.item() for _ in range(12)])
    assert runs[0] == runs[1]
    assert runs[0][-1] < runs[0][0] - 0.2
