"""What is saved, under which names, and how it is put back: C43 and exactness, without a disk."""

import copy

import pytest
import torch
from torch import Tensor, nn

from oarlock.config import OptimizerConfig
from oarlock.state import Snapshot, optimizer_state, plain_name, restore, take_snapshot
from oarlock.step.optimizers import build_optimizer, set_learning_rate

OPTIMIZERS = ["adamw", "stableadamw", "lamb", "muon"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.unused = nn.Linear(4, 4)  # like a pooler without a loss: it never has a gradient, nor optimizer state

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.words(ids)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return hidden.square().sum()


def model(seed: int) -> Model:
    torch.manual_seed(seed)
    return Model()


def optimizers_of(module: nn.Module, name: str) -> list[torch.optim.Optimizer]:
    return build_optimizer(module.named_parameters(), OptimizerConfig.model_validate({"name": name}))


def train(module: nn.Module, optimizers: list[torch.optim.Optimizer], first: int, last: int) -> None:
    for step in range(first, last + 1):
        ids = torch.randint(7, (5,), generator=torch.Generator().manual_seed(step))
        module.zero_grad()
        module(ids).backward()
        set_learning_rate(optimizers, step / 10)
        for optimizer in optimizers:
            optimizer.step()


def snapshot_of(module: nn.Module, optimizers: list[torch.optim.Optimizer], step: int = 5) -> Snapshot:
    progress = {"useful_tokens": 12.0, "seconds": 0.5}
    return take_snapshot(
        step, module.named_parameters(), optimizers, progress=progress, seed=3, config_digest="of this test"
    )


def assert_same(one: Snapshot, other: Snapshot) -> None:
    assert one.weights.keys() == other.weights.keys()
    assert one.optimizer.keys() == other.optimizer.keys()
    for name, weight in one.weights.items():
        assert torch.equal(weight, other.weights[name]), name
        assert weight.dtype == other.weights[name].dtype
    for name, state in one.optimizer.items():
        assert state.keys() == other.optimizer[name].keys()
        for key, value in state.items():
            assert torch.equal(value, other.optimizer[name][key]), (name, key)
            assert value.dtype == other.optimizer[name][key].dtype


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stopped_and_restored_equals_straight_bit_for_bit(name: str) -> None:
    straight = model(0)
    straight_optimizers = optimizers_of(straight, name)
    train(straight, straight_optimizers, 1, 10)

    first = model(0)
    first_optimizers = optimizers_of(first, name)
    train(first, first_optimizers, 1, 5)
    snapshot = snapshot_of(first, first_optimizers)
    train(first, first_optimizers, 6, 7)  # goes on, which must not change the snapshot

    second = model(99)
    second_optimizers = optimizers_of(second, name)
    restore(snapshot, second.named_parameters(), second_optimizers)
    assert_same(snapshot, snapshot_of(second, second_optimizers))
    train(second, second_optimizers, 6, 10)
    assert_same(snapshot_of(straight, straight_optimizers), snapshot_of(second, second_optimizers))


def test_restoring_twice_from_one_snapshot() -> None:
    """The optimizer gets copies: training after the first restore must not reach into the snapshot."""
    module = model(0)
    optimizers = optimizers_of(module, "adamw")
    train(module, optimizers, 1, 3)
    snapshot = snapshot_of(module, optimizers)
    kept = copy.deepcopy((snapshot.weights, snapshot.optimizer))
    restore(snapshot, module.named_parameters(), optimizers)
    train(module, optimizers, 4, 6)
    assert torch.equal(snapshot.weights["words.weight"], kept[0]["words.weight"])
    assert torch.equal(snapshot.optimizer["words.weight"]["step"], kept[1]["words.weight"]["step"])


def test_restore_forgets_what_the_optimizer_had_and_keeps_its_learning_rate() -> None:
    fresh = model(0)
    snapshot = snapshot_of(fresh, optimizers_of(fresh, "adamw"), step=0)
    assert snapshot.optimizer == {}
    used = model(1)
    optimizers = optimizers_of(used, "adamw")
    train(used, optimizers, 1, 2)
    gradient = next(used.parameters()).grad
    restore(snapshot, used.named_parameters(), optimizers)
    assert optimizer_state(optimizers, dict(used.named_parameters())) == {}
    assert optimizers[0].param_groups[0]["lr"] == pytest.approx(0.2 * 1e-3)
    assert next(used.parameters()).grad is gradient


@pytest.mark.parametrize(
    "wrapped",
    [
        "_orig_mod.encoder.layers.0.mlp.up.weight",
        "module._orig_mod.encoder.layers.0.mlp.up.weight",
        "encoder.layers.0._orig_mod._checkpoint_wrapped_module.mlp.up.weight",
        "_fsdp_wrapped_module.encoder.layers.0._fsdp_wrapped_module.mlp.up.weight",
        "encoder.layers.0.mlp.up.weight",
    ],
)
def test_c43_wrappers_leave_the_name(wrapped: str) -> None:
    assert plain_name(wrapped) == "encoder.layers.0.mlp.up.weight"


@pytest.mark.parametrize("saved_compiled", [True, False])
def test_c43_saved_wrapped_loads_plain_and_the_other_way_round(saved_compiled: bool) -> None:
    plain, inner = model(0), model(1)
    inner.layers[0] = torch.compile(inner.layers[0], backend="eager")  # type: ignore[call-overload]
    wrapped: nn.Module = torch.compile(inner, backend="eager")  # type: ignore[assignment]
    assert any(name.count("_orig_mod") == 2 for name, _ in wrapped.named_parameters())

    source, target = (wrapped, plain) if saved_compiled else (plain, wrapped)
    source_optimizers, target_optimizers = optimizers_of(source, "adamw"), optimizers_of(target, "adamw")
    train(source, source_optimizers, 1, 2)
    snapshot = snapshot_of(source, source_optimizers)
    assert snapshot.weights.keys() == dict(model(0).named_parameters()).keys()
    restore(snapshot, target.named_parameters(), target_optimizers)
    assert_same(snapshot, snapshot_of(target, target_optimizers))


def test_two_parameters_of_one_plain_name_are_refused() -> None:
    weight = torch.zeros(2)
    with pytest.raises(ValueError, match=r"called a\.w .* module\.a\.w"):
        take_snapshot(1, [("a.w", weight), ("module.a.w", weight)], [], progress={}, seed=0, config_digest="")


def test_weights_that_do_not_fit_are_named_and_nothing_changes() -> None:
    source = model(0)
    snapshot = snapshot_of(source, [])
    snapshot.weights["extra"] = torch.zeros(1)
    del snapshot.weights["words.weight"]
    snapshot.weights["layers.0.bias"] = torch.zeros(9)
    snapshot.weights["layers.1.bias"] = torch.zeros(4, dtype=torch.float64)
    target = model(1)
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(ValueError) as refused:
        restore(snapshot, target.named_parameters(), [])
    for words in [
        "extra is unexpected",
        "words.weight is missing",
        "layers.0.bias has shape (9,), not (4,)",
        "layers.1.bias is torch.float64, not torch.float32",
    ]:
        assert words in str(refused.value)
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_optimizer_state_that_does_not_fit_is_named() -> None:
    source = model(0)
    optimizers = optimizers_of(source, "adamw")
    train(source, optimizers, 1, 1)
    snapshot = snapshot_of(source, optimizers)
    snapshot.optimizer["words.weight"]["momentum_buffer"] = snapshot.optimizer["words.weight"].pop("exp_avg")
    snapshot.optimizer["layers.0.bias"]["exp_avg"] = torch.zeros(5)
    snapshot.optimizer["nobody"] = {"step": torch.zeros(())}
    target = model(1)
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(ValueError) as refused:
        restore(snapshot, target.named_parameters(), optimizers_of(target, "adamw"))
    for words in [
        "words.weight.exp_avg is missing",
        "words.weight.momentum_buffer is unexpected",
        "layers.0.bias.exp_avg has shape (5,), not (4,)",
        "nobody: no optimizer updates it",
    ]:
        assert words in str(refused.value)
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


@pytest.mark.parametrize("saved, loaded", [("adamw", "muon"), ("muon", "adamw")])
def test_state_of_another_optimizer_is_refused(saved: str, loaded: str) -> None:
    source, target = model(0), model(0)
    optimizers = optimizers_of(source, saved)
    train(source, optimizers, 1, 1)
    with pytest.raises(ValueError, match=r"layers\.0\.weight\.momentum_buffer is"):
        restore(snapshot_of(source, optimizers), target.named_parameters(), optimizers_of(target, loaded))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adafactor, torch.optim.NAdam])
def test_any_torch_optimizer_resumes_bit_for_bit(kind: type[torch.optim.Optimizer]) -> None:
    options = {"momentum": 0.9} if kind in (torch.optim.SGD, torch.optim.RMSprop) else {}

    def make(module: nn.Module) -> list[torch.optim.Optimizer]:
        optimizer = kind(module.parameters(), lr=0.01, **options)
        for group in optimizer.param_groups:
            group["peak_learning_rate"] = group["lr"]
        return [optimizer]

    straight, first, second = model(0), model(0), model(5)
    straight_optimizers, first_optimizers, second_optimizers = make(straight), make(first), make(second)
    train(straight, straight_optimizers, 1, 6)
    train(first, first_optimizers, 1, 3)
    restore(snapshot_of(first, first_optimizers), second.named_parameters(), second_optimizers)
    train(second, second_optimizers, 4, 6)
    assert_same(snapshot_of(straight, straight_optimizers), snapshot_of(second, second_optimizers))


def test_state_that_is_no_tensor_is_refused() -> None:
    module = model(0)
    optimizers = optimizers_of(module, "adamw")
    optimizers[0].state[module.words.weight] = {"count": 3}
    with pytest.raises(ValueError, match=r"AdamW keeps count of words\.weight as a int"):
        snapshot_of(module, optimizers)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_snapshot_of_a_gpu_does_not_wait_and_does_not_change() -> None:
    module = model(0).cuda()
    optimizers = optimizers_of(module, "adamw")
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers[0].step()
    kept = {name: parameter.detach().cpu() for name, parameter in module.named_parameters()}
    torch.cuda.set_sync_debug_mode("error")
    try:
        snapshot = snapshot_of(module, optimizers)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    snapshot.wait()
    assert all(torch.equal(snapshot.weights[name], value) for name, value in kept.items())
    restore(snapshot, module.named_parameters(), optimizers)
    assert_same(snapshot, snapshot_of(module, optimizers))
