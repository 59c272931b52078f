"""What the Triton kernels share: GELU, dropout's decisions, sizes of tiles.

Every kernel loads to fp32, computes there, and rounds what it stores. Sums over rows go through partial sums of fixed
pieces, added in order: no atomic additions, so results repeat. No launcher reads a value from the device.

Suffixes: R rows, C columns, Q groups of four columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from oarlock.ops import random_bits

LOG2_E = tl.constexpr(1.4426950408889634)
_GOLDEN = tl.constexpr(-7046029254386353131)
_MIX1 = tl.constexpr(-4658895280553007687)
_MIX2 = tl.constexpr(-7723592293110705685)
_ROOT_HALF = tl.constexpr(0.7071067811865476)
_ROOT_2_OVER_PI = tl.constexpr(0.7978845608028654)
_CUBIC = tl.constexpr(0.044715)


def serves(*tensors: Tensor | None) -> bool:
    """Whether kernels compute with these: what is wider than fp32 is left to the reference."""
    return all(tensor is None or tensor.dtype != torch.float64 for tensor in tensors)


def dropout_numbers(probability: float) -> tuple[int, float]:
    """What a kernel needs to know of a probability: the first lane value that is dropped, and the scale of the rest."""
    return 16384 - random_bits.num_dropped(probability), random_bits.keep_scale(probability)


def row_tile(num_columns: int, elements: int) -> dict[str, int]:
    """Rows and columns (a power of two, at least four) of a tile of whole rows, and warps for it."""
    columns = max(4, triton.next_power_of_2(num_columns))
    rows = max(1, elements // columns)
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": 4 if rows * columns <= 2048 else 8}


@triton.jit
def erf_gelu(x):
    """`x Phi(x)`."""
    return 0.5 * x * (1 + tl.erf(x * _ROOT_HALF))


@triton.jit
def erf_gelu_slope(x):
    """`Phi(x) + x phi(x)`."""
    return 0.5 * (1 + tl.erf(x * _ROOT_HALF)) + x * tl.exp(-0.5 * x * x) * (0.5 * _ROOT_2_OVER_PI)


@triton.jit
def tanh(x):
    """Hyperbolic tangent; right at both ends, where the power is 0 or infinite."""
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def tanh_gelu(x):
    """GELU by its tanh approximation."""
    return 0.5 * x * (1 + tanh(_ROOT_2_OVER_PI * (x + _CUBIC * x * x * x)))


@triton.jit
def tanh_gelu_slope(x):
    """Derivative of `tanh_gelu`."""
    bent = tanh(_ROOT_2_OVER_PI * (x + _CUBIC * x * x * x))
    return 0.5 * (1 + bent) + 0.5 * x * (1 - bent * bent) * _ROOT_2_OVER_PI * (1 + 3 * _CUBIC * x * x)


@triton.jit
def mix(x):
    """Mix 64-bit integers, as `random_bits._mix`."""
    x = x * _MIX1
    x = x + (x >> 31)
    x = x * _MIX2
    return x + (x >> 29)


@triton.jit
def head_keys(keys_R, head):
    """Row keys of queries in a head, as `random_bits.head_keys`."""
    return mix(keys_R + (head + 1).to(tl.int64) * _MIX2)


@triton.jit
def kept(keys_R, first_column, first_dropped, NUM_COLUMNS: tl.constexpr):
    """Which elements dropout keeps, bool [R, NUM_COLUMNS], as `random_bits.keep_bits`.

    A hash decides on four columns, so `first_column` is divisible by 4; `join` and `reshape` lay its lanes in a row.
    """
    groups_Q = first_column // 4 + tl.arange(0, NUM_COLUMNS // 4)
    entries_Q = mix((groups_Q.to(tl.int64) + 1) * _GOLDEN)
    hashes_RQ = (keys_R[:, None] ^ entries_Q[None, :]) * _MIX1
    hashes_RQ = hashes_RQ + (hashes_RQ >> 31)
    even = tl.join(hashes_RQ.to(tl.int16), (hashes_RQ >> 32).to(tl.int16))
    odd = tl.join((hashes_RQ >> 16).to(tl.int16), (hashes_RQ >> 48).to(tl.int16))
    lanes_RC = tl.reshape(tl.join(even, odd), (keys_R.shape[0], NUM_COLUMNS))
    return (lanes_RC >> 1) < first_dropped
