"""The gradients of a linear layer's parameters on a GPU: cuBLAS sums products of bf16 in fp32, and returns that."""

import torch
from torch import Tensor

from oarlock.ops.linear import reference

HALVES = (torch.bfloat16, torch.float16)


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """`grad^T x`, [O, I], fp32."""
    return product(grad.T, x)


def column_sums(x: Tensor) -> Tensor:
    """Sums over the tokens, [O], fp32."""
    return reference.column_sums(x)


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` in fp32 (fp64 where they are)."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.dtype in HALVES else a @ b
