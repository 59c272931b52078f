"""What processes send each other is what the formulas say."""

from tests.parallel.parity import STEPS, setting, train_all

from oarlock.config import Plan
from oarlock.testing.distributed import run_distributed

WORLD_SIZE = 4
PLANS = [Plan(), *(Plan(shard=size, shard_stage=stage) for size in (2, 4) for stage in (1, 2, 3))]


def expected(plan: Plan, num_microbatches: int) -> dict[str, int]:
    """Bytes that a process sends in 20 steps of fp32, by the formulas of `parallel/sharded.py`."""
    sharing, replicas = plan.shard, WORLD_SIZE // plan.shard
    model = setting("bert", "adamw", Plan()).learner.model
    layers = [sum(p.numel() for p in layer.parameters()) for layer in model.encoder.layers]
    rest = sum(p.numel() for p in model.parameters()) - sum(layers)
    rest, *layers = (4 * sharing * -(-size // sharing) for size in (rest, *layers))
    total = rest + sum(layers)
    # Gradients of the shares, the loss of all processes, and the square of the norm of those that share.
    a_step = 2 * total // sharing * (replicas - 1) // replicas + 2 * 4 * (WORLD_SIZE - 1) // WORLD_SIZE
    a_step += 2 * 8 * (sharing - 1) // sharing
    # In stage 3 the last layer is kept for its backward pass, and the others are fetched twice.
    fetched = STEPS * rest + num_microbatches * (2 * sum(layers) - layers[-1])
    found = {
        "all_reduce": STEPS * a_step,
        "reduce_scatter": (num_microbatches if plan.shard_stage > 1 else STEPS) * total * (sharing - 1) // sharing,
        "all_gather": (fetched if plan.shard_stage == 3 else STEPS * total) * (sharing - 1) // sharing,
    }
    return {name: count for name, count in found.items() if count}


def test_bytes_are_those_of_the_formulas() -> None:
    by_rank = run_distributed(train_all, WORLD_SIZE, [("bert", "adamw", plan) for plan in PLANS])
    for plan, *runs in zip(PLANS, *by_rank, strict=True):
        for run in runs:
            assert run.sent == expected(plan, run.num_microbatches), plan


def test_bytes_of_parts_of_layers() -> None:
    """Four sums of [T, D] in a layer, and each part's own gradients over two replicas."""
    width, inner, step = 32, 48, 4
    by_rank = run_distributed(train_all, WORLD_SIZE, [("bert", "adamw", Plan(tensor=2))])
    model = setting("bert", "adamw", Plan()).learner.model
    layers = [sum(p.numel() for p in layer.parameters()) for layer in model.encoder.layers]
    cut = 4 * width * width + 3 * width + 2 * width * inner + inner  # of a layer: halved
    for rank, (run,) in enumerate(by_rank):
        biases = 2 * width if rank % 2 else 0  # that only the first part has
        gradients = sum(p.numel() for p in model.parameters()) - len(layers) * (cut // 2 + biases)
        sums = len(layers) * 4 * run.num_tokens * width
        numbers = STEPS * step  # the losses, over two replicas
        squares = STEPS * 8  # of the norms, over two parts
        assert run.sent == {"all_reduce": step * (STEPS * gradients + sums) + numbers + squares}
