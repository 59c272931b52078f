"""fp32 master weights behind a model that computes in bf16.

The model holds bf16 copies, written once a step, so that no weight is cast again within it. Each copy's gradient
moves to its master, in fp32, as soon as backward has it: micro-batches add up in fp32, and no second set of gradients
stays in memory.
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def master_weights(model: nn.Module, precision: str) -> dict[str, nn.Parameter]:
    """The fp32 weights that the optimizer acts on, by name: the model's own, or masters of its new bf16 copies."""
    masters = {}
    for name, parameter in model.named_parameters():
        masters[name] = parameter
        if precision == "bf16":
            masters[name] = nn.Parameter(parameter.detach().clone())
            parameter.data = parameter.data.to(torch.bfloat16)
            parameter.register_post_accumulate_grad_hook(partial(_move_gradient, masters[name]))
    return masters


def write_copies(model: nn.Module, masters: Iterable[nn.Parameter]) -> None:
    """Bring the model's copies up to date with their masters."""
    with torch.no_grad():
        for copy, master in zip(model.parameters(), masters, strict=True):
            if copy is not master:
                copy.copy_(master)


def _move_gradient(master: nn.Parameter, copy: Tensor) -> None:
    assert copy.grad is not None
    if master.grad is None:
        master.grad = copy.grad.float()
    else:
        master.grad += copy.grad
    copy.grad = None
