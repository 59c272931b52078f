"""From a configuration to a model with its initial weights."""

from itertools import count

import torch
from torch import nn

from oarlock.config import ModelConfig
from oarlock.model import bert, modernbert, roberta
from oarlock.model.dropout import Dropout
from oarlock.model.encoder import MaskedLM
from oarlock.ops import OPERATORS, check_choices

BUILDERS = {"bert": bert.build, "roberta": roberta.build, "modernbert": modernbert.build}


def build_model(config: ModelConfig, seed: int = 0) -> MaskedLM:
    """A model in fp32 on the CPU; its initial weights follow from `seed` alone.

    Raises:
        ValueError: the vocabulary's size is not set, or a recipe names an unknown operator or form.
    """
    if config.vocab_size == 0:
        raise ValueError("model.vocab_size is 0; set it, or take it from a data set")
    check_choices(config.ops, OPERATORS)
    sites = count()
    with torch.device("meta"):
        model = BUILDERS[config.kind](config, lambda probability: Dropout(probability, next(sites)))
    for module in model.modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            memory = torch.empty_like(parameter, device="cpu")
            setattr(module, leaf, nn.Parameter(memory, parameter.requires_grad))
    initialise(model, seed)
    return model


def initialise(model: MaskedLM, seed: int) -> None:
    """Normal weights of `initializer_range`, zero biases, unit norms.

    In a pre-norm encoder the matrices that write to the residual stream are scaled by 1 / sqrt(2 num_layers), so that
    its variance at the start does not grow with depth (Radford et al., 2019).
    """
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    deep = (2 * config.num_layers) ** -0.5 if config.kind == "modernbert" else 1.0
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            owner, _, leaf = name.rpartition(".")
            if leaf == "bias":
                parameter.zero_()
            elif owner in norms:
                parameter.fill_(1.0)
            else:
                scale = deep if owner.endswith((".attention.out", ".mlp.down")) else 1.0
                parameter.normal_(std=config.initializer_range * scale, generator=generator)
