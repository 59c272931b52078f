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


WIDTH, INNER, NUMBER = 32, 48, 4  # the last: bytes of one in fp32
CUT = 4 * WIDTH * WIDTH + 3 * WIDTH + 2 * WIDTH * INNER + INNER  # numbers of a layer that are shared out


def sizes() -> tuple[int, int, int, int]:
    """Of the model: layers, parameters, and of those the words' (and their biases) and one layer's."""
    model = setting("bert", "adamw", Plan()).learner.model
    layers = model.encoder.layers
    words = model.output_weight.numel() + model.head.bias.numel()
    count = [sum(p.numel() for p in part.parameters()) for part in (model, layers[0])]
    return len(layers), count[0], words, count[1]


def test_bytes_of_parts_of_layers() -> None:
    """Four sums of [T, D] in a layer, one of the words looked up, one of [M, D], and each part's own gradients over two
    replicas.
    """
    num_layers, parameters, words, _ = sizes()
    by_rank = run_distributed(train_all, WORLD_SIZE, [("bert", "adamw", Plan(tensor=2))])
    for rank, (run,) in enumerate(by_rank):
        biases = 2 * WIDTH if rank % 2 else 0  # that only the first part has
        gradients = parameters - words // 2 - num_layers * (CUT // 2 + biases)
        sums = ((4 * num_layers + 1) * run.num_tokens + run.num_targets) * WIDTH
        numbers = STEPS * NUMBER  # the losses, over two replicas
        squares = STEPS * 2 * NUMBER  # of the norms, over two parts
        assert run.sent == {
            "all_reduce": NUMBER * (STEPS * gradients + sums) + numbers + squares,
            "all_gather": 2 * NUMBER * run.num_targets,
        }


def test_bytes_of_shared_tokens() -> None:
    """As many as without, and the gradients of what all have whole."""
    num_layers, parameters, words, _ = sizes()
    plan = Plan(tensor=2, sequence_parallel=True)
    for rank, (run,) in enumerate(run_distributed(train_all, WORLD_SIZE, [("bert", "adamw", plan)])):
        biases = 2 * WIDTH if rank % 2 else 0
        gradients = parameters - words // 2 - num_layers * (CUT // 2 + biases)
        head = WIDTH * WIDTH + 3 * WIDTH
        pooler = WIDTH * WIDTH + WIDTH
        whole = parameters - words - head - pooler - num_layers * (CUT + 2 * WIDTH)
        part = run.num_tokens * WIDTH * NUMBER // 2
        a_step = NUMBER * gradients + 3 * NUMBER  # and losses and squares
        alike = NUMBER * whole * run.num_microbatches  # in stage 2, after each of them
        assert run.sent == {
            "reduce_scatter": (4 * num_layers + 1) * part,
            "all_gather": (4 * num_layers + 2) * part + 2 * NUMBER * run.num_targets,
            "all_reduce": STEPS * a_step + alike + NUMBER * run.num_targets * WIDTH,
        }


def test_bytes_of_a_pipeline() -> None:
    """States one way, their gradients the other, each stage's own gradients over two replicas, and the tied ones."""
    num_layers, parameters, words, layer = sizes()
    for kind, states in (("bert", 1), ("modernbert", 2)):
        for schedule, borders in (("1f1b", 1), ("interleaved", 3)):
            by_rank = run_distributed(train_all, WORLD_SIZE, [(kind, "adamw", Plan(pipe=2, schedule=schedule))])
            sent = [run.sent["send"] for (run,) in by_rank]
            tokens = by_rank[0][0].num_tokens
            assert sent[0] + sent[2] == borders * 2 * states * tokens * WIDTH * NUMBER
            if kind == "bert":
                tied = words - words // (WIDTH + 1)
                head = WIDTH * WIDTH + 3 * WIDTH + words // (WIDTH + 1) + WIDTH * WIDTH + WIDTH  # and the pooler
                first = parameters - head - num_layers // 2 * layer
                last = head + tied + num_layers // 2 * layer
                for (run,), own in zip(by_rank, (first, first, last, last), strict=True):
                    numbers = NUMBER * (1 + 1 + 2)  # the loss, over replicas and stages, and the norm's square
                    assert run.sent["all_reduce"] == STEPS * (NUMBER * (own + tied) + numbers)
