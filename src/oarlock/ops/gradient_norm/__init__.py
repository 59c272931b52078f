"""The global Euclidean norm of many tensors, left on their device: `sqrt(sum over tensors and elements of g^2)`.

Suffixes: none; the tensors have any shapes.
"""

from torch import Tensor

from oarlock.ops import library, native
from oarlock.ops.gradient_norm import cpu, reference

library.define("gradient_norm", "(Tensor[] gradients) -> Tensor", reference.norm)
native.register("gradient_norm", {"gradient_norm": cpu.norm})
library.register_cuda("gradient_norm", "foreach", {"gradient_norm": "norm"})


def gradient_norm(gradients: list[Tensor], form: str = "auto") -> Tensor:
    """Norm over all tensors, a 0-d fp32 tensor; not finite where an element is not. At least one tensor is needed."""
    out: Tensor = library.namespace(form).gradient_norm(gradients)
    return out
