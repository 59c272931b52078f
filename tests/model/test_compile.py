"""A compiled model: few compilations however lengths vary, no silent return to eager code, the same numbers."""

import random

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from oarlock.batches import Batch, pack
from oarlock.config import ModelConfig
from oarlock.model import build_model

NUM_BATCHES = 1000
MOST_COMPILATIONS = 8
COMPARED_EVERY = 100
SMALL = {"vocab_size": 90, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32}


def random_batch(random_: random.Random) -> Batch:
    """1 to 12 sequences of 3 to 24 tokens, each with targets; of a larger global batch."""
    lengths = [random_.randint(3, 24) for _ in range(random_.randint(1, 12))]
    return pack(
        [[random_.randrange(5, 90) for _ in range(length)] for length in lengths],
        targets=[sorted(random_.sample(range(1, length - 1), max(1, (length - 2) // 7))) for length in lengths],
        num_targets=random_.randint(50, 100),
        dropout_key=random_.getrandbits(64),
    )


@pytest.mark.parametrize("kind", ("bert", "modernbert"))
@torch._dynamo.config.patch(fail_on_recompile_limit_hit=True)
def test_a_thousand_random_batches_compile_a_bounded_number_of_times(kind: str) -> None:
    torch._dynamo.reset()
    config = ModelConfig(kind=kind, max_length=64, local_window=8, dropout=0.1, **SMALL)  # type: ignore[arg-type]
    model = build_model(config)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    random_ = random.Random(0)
    for i in range(NUM_BATCHES):
        batch = random_batch(random_)
        model.zero_grad()
        loss = compiled(batch)
        loss.backward()
        if i % COMPARED_EVERY == 0:
            found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
            model.zero_grad()
            plain = model(batch)
            plain.backward()
            torch.testing.assert_close(loss, plain, rtol=1e-6, atol=1e-6)
            assert found.keys() == {name for name, p in model.named_parameters() if p.grad is not None}
            for name, gradient in found.items():
                torch.testing.assert_close(gradient, model.get_parameter(name).grad, rtol=1e-5, atol=1e-6)
    assert counter.frame_count <= MOST_COMPILATIONS
