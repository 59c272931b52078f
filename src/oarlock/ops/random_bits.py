"""Counter-based random decisions for dropout.

The decision at (key, sample, site, row, column) is a pure function of those numbers: the same in forward, backward
and recomputation, for any split of a batch, on every device, in every form of an operator. `key` follows from (seed,
step), `site` names the place in the model, a row is a token (or a head's query), a column a feature (or a key).

One 64-bit hash gives four lanes of 15 bits, so a probability is rounded to 1/32,768. Keys and columns are mixed as in
the finaliser of splitmix64 (Steele, Lea and Flood, 2014), and the two meet in one round of xor, multiply and shift.

Suffixes: R rows, C columns.
"""

import functools

import torch
from torch import Tensor

from oarlock.ops import library

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB
_LANES = 4
_HALF = 1 << 14  # a lane, less its lowest bit, lies in [-_HALF, _HALF)
_CHUNK = 1 << 16  # 64-bit hashes at a time: half a megabyte stays in a core's cache


def _mix(x: Tensor) -> Tensor:
    """Mix 64-bit integers in place."""
    # Added, not xor-ed: torch shifts arithmetically, and xor with the sign would leave the top bit 0.
    x *= _MIX1
    x += x >> 31
    x *= _MIX2
    x += x >> 29
    return x


def row_keys(key: Tensor, site: int, sample_ids_R: Tensor, rows_R: Tensor) -> Tensor:
    """A 64-bit key for each row, int64 [R], from the batch's key, the site, the sample and the row in the sample.

    The batch's key is a tensor, int64 [1]: a compiled model then reads it, and is not compiled anew for its value.
    """
    start = key * _GOLDEN + _signed(site * 0xD1B54A32D192ED03)
    keys = _mix(sample_ids_R * _GOLDEN + start)
    keys += rows_R * _MIX1
    return _mix(keys)


def head_keys(keys_T: Tensor, num_heads: int) -> Tensor:
    """Row keys of every token's query in every head, int64 [T, H]."""
    heads = torch.arange(1, num_heads + 1, device=keys_T.device) * _MIX2
    return _mix(keys_T[:, None] + heads)


def from_head(keys_T: Tensor, first_head: int) -> Tensor:
    """Keys of tokens [T] of which `head_keys` makes those of the heads from `first_head` on."""
    return keys_T + _signed(first_head * _MIX2)


def keep_bits(keys_R: Tensor, num_columns: int, probability: float) -> Tensor:
    """Which elements dropout keeps, each with 1 - `probability`: int16 [R, num_columns], all bits set or none."""
    num_hashes = -(-num_columns // _LANES)
    bits = torch.empty(keys_R.numel(), num_hashes * _LANES, dtype=torch.int16, device=keys_R.device)
    if library.is_symbolic(bits):
        return bits[:, :num_columns]
    columns = _column_table(num_hashes, keys_R.device)
    first_dropped = _HALF - num_dropped(probability)
    step = max(1, _CHUNK // max(1, num_hashes))
    for start in range(0, keys_R.numel(), step):
        hashes = torch.bitwise_xor(keys_R[start : start + step, None], columns)
        hashes *= _MIX1
        hashes += hashes >> 31
        lanes = hashes.view(torch.int16)
        lanes >>= 1
        lanes -= first_dropped  # below 0 is kept, and the sign fills the lane
        torch.bitwise_right_shift(lanes, 15, out=bits[start : start + step])
    return bits[:, :num_columns]


def dropped(x_RC: Tensor, keys_R: Tensor, probability: float) -> Tensor:
    """`x` after dropout in plain torch: what is kept is scaled by `keep_scale`; `x` itself at probability 0."""
    if probability == 0.0:
        return x_RC
    kept = keep_bits(keys_R, x_RC.shape[1], probability) != 0
    return torch.where(kept, x_RC * keep_scale(probability), 0.0)


def keep_(x: Tensor, bits: Tensor) -> Tensor:
    """Set to zero, in place, what the bits do not keep."""
    if x.element_size() == bits.element_size():
        x.view(torch.int16).bitwise_and_(bits)
        return x
    return x.masked_fill_(bits == 0, 0.0)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The type in which an operator adds up: fp32, or fp64 for fp64."""
    return torch.promote_types(dtype, torch.float32)


def num_dropped(probability: float) -> int:
    """How many of the 32,768 values of a lane are dropped."""
    return round(probability * 2 * _HALF)


def keep_scale(probability: float) -> float:
    """What kept elements are multiplied by, so that the mean stays: exact for the rounded probability."""
    return 2 * _HALF / (2 * _HALF - num_dropped(probability))


@functools.cache
def _column_table(num_hashes: int, device: torch.device) -> Tensor:
    return _mix(torch.arange(1, num_hashes + 1, device=device) * _GOLDEN)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
