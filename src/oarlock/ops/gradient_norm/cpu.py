"""Global gradient norm on a CPU: one compiled pass over all tensors."""

import torch
from torch import Tensor

from oarlock.ops import native
from oarlock.ops.gradient_norm import reference

_norm = native.kernel("gradient_norm", "lttii")


def norm(gradients: list[Tensor]) -> Tensor:
    """Square root of the sum of all squares."""
    if not native.serves(*gradients):
        return reference.norm(gradients)
    gradients = [gradient.contiguous() for gradient in gradients]
    sizes = torch.tensor([gradient.numel() for gradient in gradients])
    out = torch.empty((), dtype=torch.float32)
    _norm(gradients, sizes, out, len(gradients), gradients[0].dtype == torch.float32)
    return out
