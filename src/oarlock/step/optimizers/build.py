"""From the configuration to optimizers: which parameter gets which update."""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from oarlock.config import OptimizerConfig
from oarlock.parallel import Layout
from oarlock.step.optimizers.lamb import Lamb
from oarlock.step.optimizers.stable_adamw import StableAdamW

IN_A_LAYER = re.compile(r"\.\d+\.")  # `encoder.layers.3.mlp.up.weight`: only layers are numbered


def build_optimizer(
    named_parameters: Iterable[tuple[str, Tensor]],
    config: OptimizerConfig,
    layout: Layout | None = None,
) -> list[Optimizer]:
    """The optimizers that together update every parameter that requires a gradient: two for Muon, else one.

    Biases and norm weights, that is parameters of fewer than two dimensions, have no weight decay. Each group starts at
    its peak learning rate and remembers it for `set_learning_rate`. Give fp32 parameters: they are what is updated.
    With a layout, what is updated are its masters, which may be flat parts of parameters.

    Raises ValueError when Muon is asked for and no parameter is a matrix of a layer.
    """
    parameters = {name: parameter for name, parameter in named_parameters if parameter.requires_grad}
    if config.name == "muon":
        matrices = {name: p for name, p in parameters.items() if p.ndim == 2 and IN_A_LAYER.search(name)}
        if not matrices:
            raise ValueError(
                f"muon updates the matrices of numbered layers, but the model has none among its {len(parameters)} "
                "parameters; choose optimizer.name adamw"
            )
        rest = {name: p for name, p in parameters.items() if name not in matrices}
        optimizers = [_muon(list(matrices.values()), config), _adamw(_split(rest, config, layout), config)]
    else:
        build = {"adamw": _adamw, "stableadamw": _stable_adamw, "lamb": _lamb}[config.name]
        optimizers = [build(_split(parameters, config, layout), config)]
    for group in _groups(optimizers):
        group["peak_learning_rate"] = group["lr"]
    return optimizers


def set_learning_rate(optimizers: Iterable[Optimizer], share: float) -> None:
    """Set each group's learning rate to `share`, in [0, 1], of its peak."""
    for group in _groups(optimizers):
        group["lr"] = group["peak_learning_rate"] * share


def _groups(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def _split(parameters: Mapping[str, Tensor], config: OptimizerConfig, layout: Layout | None) -> list[dict[str, Any]]:
    """Two groups: matrices, and the biases and norms, which have no weight decay."""
    shapes = layout.shapes if layout else {name: p.shape for name, p in parameters.items()}
    matrices = {name: p for name, p in parameters.items() if len(shapes[name]) >= 2}
    vectors = [p for name, p in parameters.items() if name not in matrices]
    groups: list[dict[str, Any]] = [
        {"params": list(matrices.values()), "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if config.name == "lamb":
        groups[0]["over_all"] = partial(layout.whole_sums, names=list(matrices)) if layout else None
        groups[1]["trust"] = False
    return [group for group in groups if group["params"]]


def _adam_options(config: OptimizerConfig) -> dict[str, Any]:
    return {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "eps": config.epsilon,
        "weight_decay": config.weight_decay,
    }


def _adamw(groups: list[dict[str, Any]], config: OptimizerConfig) -> Optimizer:
    return torch.optim.AdamW(groups, fused=True, **_adam_options(config))


def _stable_adamw(groups: list[dict[str, Any]], config: OptimizerConfig) -> Optimizer:
    return StableAdamW(groups, **_adam_options(config))


def _lamb(groups: list[dict[str, Any]], config: OptimizerConfig) -> Optimizer:
    return Lamb(groups, **_adam_options(config))


def _muon(parameters: list[Tensor], config: OptimizerConfig) -> Optimizer:
    """Muon with Jordan's scaling by sqrt(max(1, rows / columns)), for which a learning rate near 0.02 is usual."""
    return torch.optim.Muon(
        parameters,
        lr=config.muon_learning_rate,
        weight_decay=config.weight_decay,
        momentum=config.muon_momentum,
        adjust_lr_fn="original",
    )
