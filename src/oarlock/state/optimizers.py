"""The state of any torch optimizer, by parameter name."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

OptimizerState = dict[str, dict[str, Tensor]]  # parameter name -> state key -> tensor


def optimizer_state(optimizers: Iterable[Optimizer], parameters: Mapping[str, Tensor]) -> OptimizerState:
    """The state that `optimizers` hold for `parameters` (by plain name): the tensors themselves, not copies.

    A parameter that was never updated has no state, and no entry. Raises ValueError where an optimizer has state for a
    parameter without a name, or state that is no tensor.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    found: OptimizerState = {}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            name = names.get(id(parameter))
            kind = type(optimizer).__name__
            if name is None:
                raise ValueError(
                    f"{kind} holds a parameter of shape {tuple(parameter.shape)} that is none of the named"
                )
            for key, value in state.items():
                if not isinstance(value, Tensor):
                    raise ValueError(
                        f"{kind} keeps {key} of {name} as a {type(value).__name__}; only tensors are saved"
                    )
            if state:
                found[name] = dict(state)
    return dict(sorted(found.items()))


@torch.no_grad()
def load_optimizer_state(
    optimizers: Iterable[Optimizer], parameters: Mapping[str, Tensor], saved: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Put `saved` into `optimizers`, by parameter name and bit for bit; a parameter without saved state starts anew.

    Hyper-parameters, the learning rate among them, stay those of `optimizers`. The state is first made by a step with
    gradients of zero at learning rate 0, so that what each optimizer expects is known and every difference is told.

    Raises ValueError that names every state that is missing, unexpected or of another shape or type.
    """
    optimizers = list(optimizers)
    for optimizer in optimizers:
        _make_state(optimizer)
    expected = optimizer_state(optimizers, parameters)
    problems = [f"{name}: no optimizer updates it" for name in saved if name not in expected]
    for name in saved.keys() & expected.keys():
        problems += _differences(name, expected[name], saved[name])
    if problems:
        raise ValueError("the saved optimizer state does not fit: " + "; ".join(sorted(problems)))

    for name, state in expected.items():
        for key, value in state.items():
            if name in saved:
                value.copy_(saved[name][key])
    for optimizer in optimizers:
        for name, parameter in parameters.items():
            if name not in saved:
                optimizer.state.pop(parameter, None)


def _differences(name: str, expected: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> list[str]:
    found = [f"{name}.{key} is missing" for key in expected.keys() - saved.keys()]
    found += [f"{name}.{key} is unexpected" for key in saved.keys() - expected.keys()]
    for key in expected.keys() & saved.keys():
        found += tensor_differences(f"{name}.{key}", expected[key], saved[key])
    return found


def tensor_differences(name: str, expected: Tensor, saved: Tensor) -> list[str]:
    """What keeps `saved` from being copied exactly into `expected`, in words; empty where nothing does."""
    found = []
    if expected.shape != saved.shape:
        found.append(f"{name} has shape {tuple(saved.shape)}, not {tuple(expected.shape)}")
    if expected.dtype != saved.dtype:
        found.append(f"{name} is {saved.dtype}, not {expected.dtype}")
    return found


def _make_state(optimizer: Optimizer) -> None:
    groups = optimizer.param_groups
    rates = [group["lr"] for group in groups]
    gradients = [(p, p.grad) for group in groups for p in group["params"]]
    for group in groups:
        group["lr"] = 0.0
    for parameter, _ in gradients:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    for parameter, gradient in gradients:
        parameter.grad = gradient
