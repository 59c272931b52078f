"""The gradients of a linear layer's parameters in plain torch, summed in fp32 (fp64 where they come so)."""

from torch import Tensor

from oarlock.ops.random_bits import accumulator


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """`grad^T x`, [O, I], fp32."""
    wide = accumulator(x.dtype)
    return grad.to(wide).T @ x.to(wide)


def column_sums(x: Tensor) -> Tensor:
    """Sums over the tokens, [O], fp32."""
    return x.sum(dim=0, dtype=accumulator(x.dtype))
