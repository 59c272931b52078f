"""Each optimizer against an independent float64 version in numpy, written from the papers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from oarlock.config import OptimizerConfig
from oarlock.step.optimizers import build_optimizer, limit_gradients, set_learning_rate

Array = NDArray[np.float64]
STEPS = 50
TOLERANCE = 2e-6  # fp32 against float64, of the largest entry of a tensor
MUON_TOLERANCE = 0.01  # torch orthogonalises in bfloat16; of the distance travelled
SHAPES = {
    "embeddings.words.weight": (24, 8),
    "encoder.layers.0.mlp.up.weight": (16, 8),
    "encoder.layers.0.mlp.up.bias": (16,),
    "encoder.layers.1.mlp.down.weight": (8, 16),
    "final_norm.weight": (8,),
}
DECAYED = {name for name, shape in SHAPES.items() if len(shape) > 1}
MATRICES = {name for name in DECAYED if ".layers." in name}
NAMES = ["adamw", "stableadamw", "lamb", "muon"]


def config(name: str, **changes: object) -> OptimizerConfig:
    return OptimizerConfig.model_validate({"name": name, "learning_rate": 0.01, "weight_decay": 0.1, **changes})


def initial() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 0.5, shape).astype(np.float32).astype(np.float64) for name, shape in SHAPES.items()}


def gradients(step: int) -> dict[str, Array]:
    """Not a function of the weights, so that a difference in one step is not amplified by the next; with spikes."""
    rng = np.random.default_rng(step)
    scale = 8.0 if step % 7 == 3 else 1.0
    return {name: rng.normal(0.2, scale, shape).astype(np.float32).astype(np.float64) for name, shape in SHAPES.items()}


def share(step: int) -> float:
    return min(1.0, step / 10)


def model_parameters() -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.tensor(value, dtype=torch.float32)) for name, value in initial().items()}


def train(parameters: dict[str, nn.Parameter], optimizers: list[torch.optim.Optimizer], first: int, last: int) -> None:
    for step in range(first, last + 1):
        for name, gradient in gradients(step).items():
            parameters[name].grad = torch.tensor(gradient, dtype=torch.float32)
        set_learning_rate(optimizers, share(step))
        for optimizer in optimizers:
            optimizer.step()


def adam_update(g: Array, m: Array, v: Array, step: int, c: OptimizerConfig) -> Array:
    m[...] = c.beta1 * m + (1 - c.beta1) * g
    v[...] = c.beta2 * v + (1 - c.beta2) * g * g
    return (m / (1 - c.beta1**step)) / (np.sqrt(v / (1 - c.beta2**step)) + c.epsilon)


def numpy_adamw(name: str, w: Array, g: Array, m: Array, v: Array, step: int, c: OptimizerConfig) -> Array:
    rate = c.learning_rate * share(step)
    decay = c.weight_decay if name in DECAYED else 0.0
    return (1 - rate * decay) * w - rate * adam_update(g, m, v, step, c)


def numpy_stableadamw(name: str, w: Array, g: Array, m: Array, v: Array, step: int, c: OptimizerConfig) -> Array:
    beta1 = c.beta1 * (1 - c.beta1 ** (step - 1)) / (1 - c.beta1**step)
    beta2 = c.beta2 * (1 - c.beta2 ** (step - 1)) / (1 - c.beta2**step)
    m[...] = beta1 * m + (1 - beta1) * g
    v[...] = beta2 * v + (1 - beta2) * g * g
    rms = math.sqrt(np.mean(g * g / np.maximum(v, c.epsilon**2)))
    rate = c.learning_rate * share(step) / max(1.0, rms)
    decay = c.weight_decay if name in DECAYED else 0.0
    return w - rate * decay * w - rate * m / (np.sqrt(v) + c.epsilon)


def numpy_lamb(name: str, w: Array, g: Array, m: Array, v: Array, step: int, c: OptimizerConfig) -> Array:
    update = adam_update(g, m, v, step, c)
    trust = 1.0
    if name in DECAYED:
        update = update + c.weight_decay * w
        trust = float(np.linalg.norm(w) / np.linalg.norm(update))
    return w - c.learning_rate * share(step) * trust * update


def numpy_muon(name: str, w: Array, g: Array, m: Array, v: Array, step: int, c: OptimizerConfig) -> Array:
    """Jordan, 2024, https://kellerjordan.github.io/posts/muon: Nesterov momentum, five Newton-Schulz iterations."""
    if name not in MATRICES:
        return numpy_adamw(name, w, g, m, v, step, c)
    m[...] = c.muon_momentum * m + (1 - c.muon_momentum) * g
    x = c.muon_momentum * m + (1 - c.muon_momentum) * g
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    rate = c.muon_learning_rate * share(step)
    return (1 - rate * c.weight_decay) * w - rate * math.sqrt(max(1.0, w.shape[0] / w.shape[1])) * x


UPDATES: dict[str, Callable[[str, Array, Array, Array, Array, int, OptimizerConfig], Array]] = {
    "adamw": numpy_adamw,
    "stableadamw": numpy_stableadamw,
    "lamb": numpy_lamb,
    "muon": numpy_muon,
}


def numpy_train(c: OptimizerConfig) -> tuple[dict[str, Array], dict[str, Array]]:
    """Weights and first moments after all steps."""
    weights = initial()
    first = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    second = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(1, STEPS + 1):
        for name, gradient in gradients(step).items():
            weights[name] = UPDATES[c.name](name, weights[name], gradient, first[name], second[name], step, c)
    return weights, first


@pytest.mark.parametrize("name", NAMES)
def test_equals_an_independent_version(name: str) -> None:
    parameters = model_parameters()
    optimizers = build_optimizer(parameters.items(), config(name))
    train(parameters, optimizers, 1, STEPS)
    weights, first = numpy_train(config(name))
    state = {id(p): s for optimizer in optimizers for p, s in optimizer.state.items()}

    start = initial()
    for key, parameter in parameters.items():
        error = np.abs(parameter.detach().numpy() - weights[key]).max()
        if name == "muon" and key in MATRICES:
            assert error < MUON_TOLERANCE * np.abs(weights[key] - start[key]).max(), key
        else:
            assert error < TOLERANCE * np.abs(weights[key]).max(), key
        moment = state[id(parameter)].get("exp_avg", state[id(parameter)].get("momentum_buffer"))
        assert moment is not None
        assert np.abs(moment.numpy() - first[key]).max() < TOLERANCE * np.abs(first[key]).max(), key


@pytest.mark.parametrize("name", NAMES)
def test_biases_and_norms_have_no_decay(name: str) -> None:
    """With a gradient of zero, only weight decay moves a weight."""
    parameters = model_parameters()
    optimizers = build_optimizer(parameters.items(), config(name))
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    for key, value in initial().items():
        moved = not np.array_equal(parameters[key].detach().numpy(), value)
        assert moved == (key in DECAYED), key


def test_lamb_gives_biases_and_norms_no_trust_ratio_even_without_decay() -> None:
    parameters = model_parameters()
    lamb = build_optimizer(parameters.items(), config("lamb", weight_decay=0.0))
    train(parameters, lamb, 10, 10)
    for key, value in initial().items():
        moved = np.abs(parameters[key].detach().numpy() - value)
        if key in DECAYED:
            assert np.linalg.norm(moved) == pytest.approx(0.01 * np.linalg.norm(value), rel=1e-5)
        else:
            assert moved == pytest.approx(np.full_like(moved, 0.01), rel=1e-3)  # a first update of Adam is the sign


def test_lamb_moves_a_tensor_of_zeros() -> None:
    weight = nn.Parameter(torch.zeros(3, 4))
    weight.grad = torch.ones(3, 4)
    build_optimizer([("a.0.weight", weight)], config("lamb"))[0].step()
    assert torch.allclose(weight, torch.full((3, 4), -0.01))


def test_muon_takes_the_matrices_of_layers_and_adamw_the_rest() -> None:
    parameters = model_parameters()
    muon, adamw = build_optimizer(parameters.items(), config("muon"))
    assert isinstance(muon, torch.optim.Muon)
    assert {id(p) for group in muon.param_groups for p in group["params"]} == {id(parameters[n]) for n in MATRICES}
    rest = {id(p) for name, p in parameters.items() if name not in MATRICES}
    assert {id(p) for group in adamw.param_groups for p in group["params"]} == rest
    assert [group["lr"] for group in muon.param_groups] == [0.02]


def test_muon_refuses_a_model_without_layers() -> None:
    with pytest.raises(ValueError, match=r"muon .* choose optimizer\.name adamw"):
        build_optimizer([("bias", nn.Parameter(torch.zeros(3)))], config("muon"))


def test_frozen_parameters_are_left_out() -> None:
    parameters = model_parameters()
    parameters["final_norm.weight"].requires_grad_(False)
    (optimizer,) = build_optimizer(parameters.items(), config("adamw"))
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(SHAPES) - 1


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_without_a_gradient_stays_and_counts_its_own_updates(name: str) -> None:
    parameters = model_parameters()
    optimizers = build_optimizer(parameters.items(), config(name))
    late = "embeddings.words.weight"
    for step in range(1, 4):
        for key, gradient in gradients(step).items():
            parameters[key].grad = None if key == late and step < 3 else torch.tensor(gradient, dtype=torch.float32)
        for optimizer in optimizers:
            optimizer.step()
        if step < 3:
            assert np.array_equal(parameters[late].detach().numpy(), initial()[late])
    state = next(s for optimizer in optimizers for p, s in optimizer.state.items() if p is parameters[late])
    assert float(state["step"]) == 1.0


@pytest.mark.parametrize("name", ["stableadamw", "lamb", "adamw"])
def test_a_gradient_that_is_not_finite_spoils_its_tensor_and_no_other(name: str) -> None:
    """Documented, not hidden: nothing in an optimizer reads the device to find out."""
    parameters = model_parameters()
    optimizers = build_optimizer(parameters.items(), config(name))
    for key, gradient in gradients(1).items():
        parameters[key].grad = torch.tensor(gradient, dtype=torch.float32)
    spoiled = "encoder.layers.0.mlp.up.weight"
    gradient_of_it = parameters[spoiled].grad
    assert gradient_of_it is not None
    gradient_of_it[0, 0] = math.nan
    for optimizer in optimizers:
        optimizer.step()
    for key, parameter in parameters.items():
        assert bool(parameter.isfinite().all()) == (key != spoiled)


def step_with(name: str, max_norm: float | None, spoil: float = 0.0, before: int = 0) -> tuple[Any, float]:
    """Weights and state after `before` steps and one more that is limited; and the norm it had."""
    parameters = model_parameters()
    optimizers = build_optimizer(parameters.items(), config(name))
    train(parameters, optimizers, 1, before)
    for key, gradient in gradients(before + 1).items():
        parameters[key].grad = torch.tensor(gradient + spoil, dtype=torch.float32)
    norm = limit_gradients(optimizers, max_norm)
    assert norm.ndim == 0
    for optimizer in optimizers:
        optimizer.step()
    state = {key: s for optimizer in optimizers for key, p in parameters.items() if (s := optimizer.state.get(p))}
    return (parameters, state), float(norm)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_norm", [None, 0.5, 1e6])
def test_clips_by_the_global_norm(name: str, max_norm: float | None) -> None:
    """The moments tell what the optimizer took for the gradient."""
    expected = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients(1).values()))
    (_, state), norm = step_with(name, max_norm)
    assert norm == pytest.approx(expected, rel=1e-6)
    (_, plain), _ = step_with(name, None)
    factor = 1.0 if max_norm is None else min(1.0, max_norm / expected)
    for key in state:
        moment = "momentum_buffer" if "momentum_buffer" in state[key] else "exp_avg"
        torch.testing.assert_close(state[key][moment], plain[key][moment] * factor, rtol=3e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
@pytest.mark.parametrize("spoil", [math.nan, math.inf])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_step_that_is_not_finite_is_skipped(name: str, spoil: float, max_norm: float | None) -> None:
    (weights, state), norm = step_with(name, max_norm, spoil, before=2)
    assert not math.isfinite(norm)
    untouched = model_parameters()
    optimizers = build_optimizer(untouched.items(), config(name))
    train(untouched, optimizers, 1, 2)
    for key, parameter in untouched.items():
        assert torch.equal(weights[key], parameter), key
        for what, value in optimizers[0].state[parameter].items():
            assert torch.equal(state[key][what], value), (key, what)


@pytest.mark.parametrize("name", ["stableadamw", "muon"])
def test_a_step_that_is_not_finite_leaves_other_optimizers_finite(name: str) -> None:
    (weights, _), norm = step_with(name, 1.0, math.nan, before=2)
    assert not math.isfinite(norm)
    assert all(bool(weight.isfinite().all()) for weight in weights.values())


def test_parameters_without_a_gradient_do_not_count() -> None:
    parameters = model_parameters()
    optimizers = build_optimizer(parameters.items(), config("adamw"))
    parameters["final_norm.weight"].grad = torch.full((8,), 2.0)
    assert float(limit_gradients(optimizers, None)) == pytest.approx(math.sqrt(32.0), rel=1e-6)
