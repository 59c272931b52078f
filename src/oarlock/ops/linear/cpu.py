"""The gradients of a linear layer's parameters on a CPU.

The weight's is a kernel of ours in bf16, where the processor multiplies that, else torch's product.
"""

import torch
from torch import Tensor

from oarlock.ops import native
from oarlock.ops.linear import reference
from oarlock.ops.random_bits import accumulator

_product = native.kernel("product", "tttiiiii")
_column_sums = native.kernel("column_sums", "ttiii")


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """`grad^T x`, [O, I], fp32."""
    if not serves_products(grad, x):
        return weight_product(grad, x)
    out = grad.new_empty(grad.shape[1], x.shape[1], dtype=torch.float32)
    add_weight_gradient(grad, x, out, add=False)
    return out


def serves_products(*tensors: Tensor) -> bool:
    """Whether tile products serve matrices of these types."""
    return native.multiplies_tiles() and all(tensor.dtype == torch.bfloat16 for tensor in tensors)


def add_weight_gradient(grad: Tensor, x: Tensor, out: Tensor, add: bool) -> None:
    """Write, or `add`, `grad^T x` to `out`, fp32 [O, I]; call it where `serves_products`."""
    _product(grad.contiguous(), x.contiguous(), out, *grad.shape, x.shape[1], False, add)


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a b` in fp32, for many terms: torch's depends on the number of threads then; call it where `serves_products`."""
    out = a.new_empty(a.shape[0], b.shape[1], dtype=torch.float32)
    _product(a.contiguous(), b.contiguous(), out, a.shape[1], a.shape[0], b.shape[1], True, False)
    return out


def weight_product(grad: Tensor, x: Tensor) -> Tensor:
    """The same by torch, which rounds it to bf16 where its operands are."""
    return (grad.T @ x).to(accumulator(x.dtype))


def column_sums(x: Tensor) -> Tensor:
    """Sums over the tokens, [O], fp32."""
    if not native.serves(x):
        return reference.column_sums(x)
    x = x.contiguous()
    out = x.new_empty(x.shape[1], dtype=torch.float32)
    _column_sums(x, out, *x.shape, x.dtype == torch.float32)
    return out
