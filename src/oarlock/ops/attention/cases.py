"""Cases of attention.

Suffixes: T tokens, H heads, d head size.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from oarlock.ops.attention import attention
from oarlock.ops.case import TOLERANCES, Case, Inputs, OperatorCases, Tolerance, bounds, keys, random

_ODD = (1, 63, 512, 7, 130, 64, 65, 0, 200)
_WIKIPEDIA = (512, 34, 61, 512, 88, 110, 147, 512, 180, 203, 236, 272, 512, 301, 372, 44)


def _case(
    name: str,
    lengths: tuple[int, ...],
    num_heads: int = 3,
    size: int = 32,
    window: int | None = None,
    dropout: float = 0.0,
    scale: float = 1.0,
    benchmark: bool = False,
) -> Case:
    def inputs(device: torch.device, dtype: torch.dtype) -> Inputs:
        return {
            "qkv_T3Hd": random(sum(lengths), 3, num_heads, size, seed=1, device=device, dtype=dtype, scale=scale),
            "cu_seqlens_S1": bounds(lengths, device),
            "max_seqlen": max(lengths, default=0),
            "window": window,
            "dropout": dropout,
            "keys_T": keys(lengths, device),
        }

    return Case(name, inputs, benchmark)


def _plain(
    qkv_T3Hd: Tensor,
    cu_seqlens_S1: Tensor,
    max_seqlen: int,
    window: int | None,
    dropout: float,
    keys_T: Tensor,
) -> Tensor:
    """torch's own attention, on a batch where the lengths are equal, else one sequence at a time."""
    cuts = cu_seqlens_S1.tolist()
    lengths = [end - start for start, end in pairwise(cuts)]
    if lengths and len(set(lengths)) == 1:
        q, k, v = qkv_T3Hd.unflatten(0, (len(lengths), lengths[0])).permute(2, 0, 3, 1, 4)
        return _attend(q, k, v, window, dropout).transpose(1, 2).flatten(0, 1)
    pieces = (qkv_T3Hd[start:end].permute(1, 2, 0, 3)[:, None] for start, end in pairwise(cuts) if end > start)
    return torch.cat([_attend(q, k, v, window, dropout)[0].transpose(0, 1) for q, k, v in pieces])


def _attend(q: Tensor, k: Tensor, v: Tensor, window: int | None, dropout: float) -> Tensor:
    mask = None
    if window is not None:
        index = torch.arange(q.shape[-2], device=q.device)
        mask = (index[:, None] - index[None, :]).abs() <= window
    return scaled_dot_product_attention(q, k, v, mask, dropout)


CASES = OperatorCases(
    attention,
    _plain,
    (
        _case("no sequences", ()),
        _case("one empty sequence", (0,)),
        _case("one token", (1,), size=64),
        _case("odd lengths, 32", _ODD),
        _case("odd lengths, 32, dropout", _ODD, dropout=0.1),
        _case("odd lengths, 16, window 3, dropout", _ODD, size=16, window=3, dropout=0.1),
        _case("odd lengths, 64, window 64", _ODD, size=64, window=64),
        _case("odd lengths, 64, window 64, dropout", _ODD, size=64, window=64, dropout=0.1),
        _case("odd lengths, 64, steep", _ODD, size=64, scale=2.0),
        _case("1 x 300, 96, window 0", (300,), size=96, window=0),
        _case("2 x 150, 80, dropout", (150, 150), size=80, dropout=0.3),
        _case("1 x 90, 130", (90,), size=130),
        _case("1 x 700, 128, window 200", (700,), num_heads=1, size=128, window=200),
        *(
            _case(f"12 heads of 64, {count} x {length}", count * (length,), 12, 64, benchmark=True)
            for count, length in ((64, 64), (32, 128), (16, 256), (8, 512))
        ),
        _case("12 heads of 64, 8 x 512, dropout", 8 * (512,), 12, 64, dropout=0.1, benchmark=True),
        _case("12 heads of 64, 8 x 512, window 64", 8 * (512,), 12, 64, window=64, benchmark=True),
        _case("12 heads of 64, Wikipedia", _WIKIPEDIA, 12, 64, benchmark=True),
        _case("4 heads of 64, Wikipedia", _WIKIPEDIA, 4, 64, benchmark=True),
    ),
    differentiable=("qkv_T3Hd",),
    # Probabilities and the gradients of scores are rounded to bf16 between products: two roundings (2^-9 each) more
    # than TOLERANCES knows, and the difference `grad_p - row sum` enlarges what its terms lost.
    tolerances=TOLERANCES | {torch.bfloat16: Tolerance(2e-2, 2e-2)},
)
