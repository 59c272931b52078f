"""Global gradient norm on a GPU: torch's multi-tensor kernels read each gradient once."""

import torch
from torch import Tensor

from oarlock.ops.gradient_norm import reference


def norm(gradients: list[Tensor]) -> Tensor:
    """Square root of the sum of all squares."""
    if any(gradient.dtype == torch.float64 for gradient in gradients):
        return reference.norm(gradients)
    norms = torch._foreach_norm(gradients, 2, torch.float32)
    out: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return out
