"""fp32 master weights behind a model that computes in bf16.

The model holds bf16 copies, written once a step, so that no weight is cast again within it. A copy's gradient is fp32
from where an operator sums it to where the optimizer reads it: autograd adds micro-batches up in that type, and the
master takes the sum over without copying it.
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
            parameter.grad_dtype = torch.float32
            parameter.register_post_accumulate_grad_hook(partial(_hand_over_gradient, masters[name]))
    return masters


@torch.no_grad()
def write_copies(model: nn.Module, masters: Iterable[nn.Parameter]) -> None:
    """Bring the model's copies up to date with their masters."""
    pairs = [(copy, master) for copy, master in zip(model.parameters(), masters, strict=True) if copy is not master]
    if pairs:
        torch._foreach_copy_([copy for copy, _ in pairs], [master for _, master in pairs])


def _hand_over_gradient(master: nn.Parameter, copy: Tensor) -> None:
    # One tensor serves both until the step clears it, so that the next micro-batch adds to it.
    master.grad = copy.grad
