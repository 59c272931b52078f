"""Attention on a GPU: one launch over the whole pack, a program for each block of a sequence's tokens and each head.

The grid has room for `max_seqlen` tokens in every sequence; programs beyond a sequence's end stop at once, so the host
reads no length. Blocks begin at a sequence's first token, so what a sequence gets does not depend on its neighbours.
The backward pass has a kernel that owns keys and one that owns queries: no atomic additions, so results repeat.

Suffixes: M queries, N keys, D features of a head (padded to a power of two).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from oarlock.ops.attention import flash, reference
from oarlock.ops.cuda_common import LOG2_E, dropout_numbers, head_keys, kept, serves

# (tokens that a program owns, tokens of the other side at a time, warps, stages of loads in flight)
Blocks = tuple[int, int, int, int]
FORWARD: Blocks = (128, 64, 8, 3)
BACKWARD: Blocks = (128, 64, 8, 2)
WIDE: Blocks = (32, 32, 4, 1)  # fp32, whose products take no tensor cores, and heads of more than 128 features
DELTA_ROWS = 32
FLASH = False  # whether torch's flash attention serves what has no dropout; `bench/gpu.sh` measures both


def forward(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, window: int, scale: float, keys: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    """Output [T, H, d], and the logarithm of each row's sum of exponentials [H, T], fp32."""
    if not serves(qkv):
        return reference.forward(qkv, cu_seqlens, max_seqlen, window, scale, keys, dropout)
    if FLASH and flash.serves(qkv, dropout):
        return flash.forward(qkv, cu_seqlens, max_seqlen, window, scale)
    qkv = qkv.contiguous()
    num_tokens, _, num_heads, head_size = qkv.shape
    out = qkv.new_empty(num_tokens, num_heads, head_size)
    logsumexp = torch.empty(num_heads, num_tokens, dtype=torch.float32, device=qkv.device)
    launch = _Launch(qkv, cu_seqlens, max_seqlen, window, scale, keys, dropout)
    launch(_forward, FORWARD, qkv, out, logsumexp)
    return out, logsumexp


def backward(
    grad: Tensor,
    qkv: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    window: int,
    scale: float,
    keys: Tensor,
    dropout: float,
) -> Tensor:
    """Gradient of qkv [T, 3, H, d]."""
    if not serves(grad, qkv):
        return reference.backward(grad, qkv, out, logsumexp, cu_seqlens, max_seqlen, window, scale, keys, dropout)
    if FLASH and flash.serves(qkv, dropout):
        return flash.backward(grad, qkv, out, logsumexp, cu_seqlens, max_seqlen, window, scale)
    grad, qkv = grad.contiguous(), qkv.contiguous()
    num_tokens, num_heads, head_size = out.shape
    grad_qkv = torch.empty_like(qkv)
    delta = torch.empty_like(logsumexp)
    _delta[triton.cdiv(num_tokens, DELTA_ROWS), num_heads](
        grad, out, delta, num_tokens, num_heads, head_size, ROWS=DELTA_ROWS, FEATURES=_features(head_size)
    )
    launch = _Launch(qkv, cu_seqlens, max_seqlen, window, scale, keys, dropout)
    launch(_backward_keys, BACKWARD, qkv, grad, logsumexp, delta, grad_qkv)
    launch(_backward_queries, BACKWARD, qkv, grad, logsumexp, delta, grad_qkv)
    return grad_qkv


class _Launch:
    """Starts kernels on a pack: what their grids and last arguments have in common."""

    def __init__(
        self, qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, window: int, scale: float, keys: Tensor, dropout: float
    ) -> None:
        num_tokens, _, self.num_heads, head_size = qkv.shape
        self.num_sequences, self.max_seqlen = cu_seqlens.numel() - 1, max_seqlen
        self.wide = qkv.dtype == torch.float32 or head_size > 128
        self.arguments = (
            cu_seqlens.contiguous(), keys.contiguous(), num_tokens, self.num_heads, head_size, window, scale,
            *dropout_numbers(dropout),
        )  # fmt: skip
        self.constants = {
            "FEATURES": _features(head_size),
            "WINDOW": 0 <= window < max_seqlen - 1,
            "DROPOUT": dropout > 0,
        }

    def __call__(self, kernel: Any, blocks: Blocks, *tensors: Tensor) -> None:
        own, other, warps, stages = WIDE if self.wide else blocks
        fitting = max(16, triton.next_power_of_2(self.max_seqlen))
        own, other = min(own, fitting), min(other, fitting)
        num_blocks = triton.cdiv(self.max_seqlen, own)
        kernel[self.num_sequences * num_blocks, self.num_heads](
            *tensors, *self.arguments, num_blocks,
            **self.constants, OWN=own, OTHER=other, num_warps=warps, num_stages=stages,
        )  # fmt: skip


def _features(head_size: int) -> int:
    padded: int = triton.next_power_of_2(head_size)
    return max(16, padded)


@triton.jit
def _load(tensor, tokens, here, stride, head, features, head_size):
    """Rows of a head [tokens, D], zero where there is none."""
    at = tokens.to(tl.int64)[:, None] * stride + head * head_size + features[None, :]
    return tl.load(tensor + at, mask=here[:, None] & (features < head_size)[None, :], other=0.0)


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _visible(rows, columns, length, window, WINDOW: tl.constexpr):
    """Which pairs of a query and a key there are, bool [M, N]."""
    there = (rows < length)[:, None] & (columns < length)[None, :]
    if WINDOW:
        there = there & (tl.abs(rows[:, None] - columns[None, :]) <= window)
    return there


@triton.jit
def _reach(first, OWN: tl.constexpr, OTHER: tl.constexpr, length, window, WINDOW: tl.constexpr):
    """The range of the other side that tokens from `first` on may see, from a multiple of OTHER."""
    low, high = 0, length
    if WINDOW:
        low = tl.maximum(first - window, 0) // OTHER * OTHER
        high = tl.minimum(first + OWN + window, length)
    return low, high


@triton.jit(do_not_specialize=["num_tokens", "num_blocks", "first_dropped"])
def _forward(
    qkv, out, logsumexp,
    cu_seqlens, keys, num_tokens, num_heads, head_size, window, scale, first_dropped, keep_scale, num_blocks,
    FEATURES: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0) // num_blocks, tl.program_id(1)
    first = tl.program_id(0) % num_blocks * OWN
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    if first >= length:
        return
    features, stride = tl.arange(0, FEATURES), 3 * num_heads * head_size
    rows = first + tl.arange(0, OWN)
    q = _load(qkv, start + rows, rows < length, stride, head, features, head_size)
    keys_M = tl.zeros((OWN,), tl.int64)
    if DROPOUT:
        keys_M = head_keys(tl.load(keys + start + rows, mask=rows < length, other=0), head)
    top = tl.full((OWN,), -float("inf"), tl.float32)
    total = tl.zeros((OWN,), tl.float32)
    mixed = tl.zeros((OWN, FEATURES), tl.float32)
    low, high = _reach(first, OWN, OTHER, length, window, WINDOW)
    for begin in range(low, high, OTHER):
        columns = begin + tl.arange(0, OTHER)
        k = _load(qkv, start + columns, columns < length, stride, num_heads + head, features, head_size)
        v = _load(qkv, start + columns, columns < length, stride, 2 * num_heads + head, features, head_size)
        scores = _dot(q, tl.trans(k)) * (scale * LOG2_E)
        scores = tl.where(_visible(rows, columns, length, window, WINDOW), scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shift = tl.where(new_top == -float("inf"), 0.0, new_top)  # a row may see nothing of the window's first block
        p = tl.exp2(scores - shift[:, None])
        shrink = tl.exp2(top - shift)
        total = total * shrink + tl.sum(p, axis=1)
        if DROPOUT:
            p = tl.where(kept(keys_M, begin, first_dropped, OTHER), p, 0.0)
        mixed = mixed * shrink[:, None] + _dot(p.to(v.dtype), v)
        top = new_top
    inside = (rows < length)[:, None] & (features < head_size)[None, :]
    at = (start + rows).to(tl.int64)[:, None] * (num_heads * head_size) + head * head_size + features[None, :]
    tl.store(out + at, (mixed * (keep_scale / total)[:, None]).to(out.dtype.element_ty), mask=inside)
    place = logsumexp + head.to(tl.int64) * num_tokens + start + rows
    tl.store(place, (top + tl.log2(total)) / LOG2_E, mask=rows < length)


@triton.jit(do_not_specialize=["num_tokens"])
def _delta(grad, out, delta, num_tokens, num_heads, head_size, ROWS: tl.constexpr, FEATURES: tl.constexpr):
    """`sum over features of grad * out`: what each row's gradients of probabilities weigh, dropout included."""
    tokens, head, features = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1), tl.arange(0, FEATURES)
    here, stride = tokens < num_tokens, num_heads * head_size
    g = _load(grad, tokens, here, stride, head, features, head_size).to(tl.float32)
    o = _load(out, tokens, here, stride, head, features, head_size).to(tl.float32)
    tl.store(delta + head.to(tl.int64) * num_tokens + tokens, tl.sum(g * o, axis=1), mask=here)


@triton.jit(do_not_specialize=["num_tokens", "num_blocks", "first_dropped"])
def _backward_keys(
    qkv, grad, logsumexp, delta, grad_qkv,
    cu_seqlens, keys, num_tokens, num_heads, head_size, window, scale, first_dropped, keep_scale, num_blocks,
    FEATURES: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values; everything is transposed, [N, M]."""
    sequence, head = tl.program_id(0) // num_blocks, tl.program_id(1)
    first = tl.program_id(0) % num_blocks * OWN
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    if first >= length:
        return
    features, stride = tl.arange(0, FEATURES), 3 * num_heads * head_size
    columns = first + tl.arange(0, OWN)
    k = _load(qkv, start + columns, columns < length, stride, num_heads + head, features, head_size)
    v = _load(qkv, start + columns, columns < length, stride, 2 * num_heads + head, features, head_size)
    grad_k = tl.zeros((OWN, FEATURES), tl.float32)
    grad_v = tl.zeros((OWN, FEATURES), tl.float32)
    of_head = head.to(tl.int64) * num_tokens + start
    low, high = _reach(first, OWN, OTHER, length, window, WINDOW)
    for begin in range(low, high, OTHER):
        rows = begin + tl.arange(0, OTHER)
        q = _load(qkv, start + rows, rows < length, stride, head, features, head_size)
        g = _load(grad, start + rows, rows < length, num_heads * head_size, head, features, head_size)
        log_total = tl.load(logsumexp + of_head + rows, mask=rows < length, other=0.0) * LOG2_E
        p = tl.exp2(_dot(k, tl.trans(q)) * (scale * LOG2_E) - log_total[None, :])
        p = tl.where(_visible(columns, rows, length, window, WINDOW), p, 0.0)
        grad_p = _dot(v, tl.trans(g))
        p_kept = p
        if DROPOUT:
            keys_M = head_keys(tl.load(keys + start + rows, mask=rows < length, other=0), head)
            keep = tl.trans(kept(keys_M, first, first_dropped, OWN))
            p_kept = tl.where(keep, p * keep_scale, 0.0)
            grad_p = tl.where(keep, grad_p * keep_scale, 0.0)
        grad_v += _dot(p_kept.to(g.dtype), g)
        grad_s = p * (grad_p - tl.load(delta + of_head + rows, mask=rows < length, other=0.0)[None, :])
        grad_k += _dot(grad_s.to(q.dtype), q)
    inside = (columns < length)[:, None] & (features < head_size)[None, :]
    at = (start + columns).to(tl.int64)[:, None] * stride + (num_heads + head) * head_size + features[None, :]
    tl.store(grad_qkv + at, (grad_k * scale).to(grad_qkv.dtype.element_ty), mask=inside)
    tl.store(grad_qkv + at + num_heads * head_size, grad_v.to(grad_qkv.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_tokens", "num_blocks", "first_dropped"])
def _backward_queries(
    qkv, grad, logsumexp, delta, grad_qkv,
    cu_seqlens, keys, num_tokens, num_heads, head_size, window, scale, first_dropped, keep_scale, num_blocks,
    FEATURES: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries."""
    sequence, head = tl.program_id(0) // num_blocks, tl.program_id(1)
    first = tl.program_id(0) % num_blocks * OWN
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    if first >= length:
        return
    features, stride = tl.arange(0, FEATURES), 3 * num_heads * head_size
    rows = first + tl.arange(0, OWN)
    q = _load(qkv, start + rows, rows < length, stride, head, features, head_size)
    g = _load(grad, start + rows, rows < length, num_heads * head_size, head, features, head_size)
    of_head = head.to(tl.int64) * num_tokens + start
    log_total = tl.load(logsumexp + of_head + rows, mask=rows < length, other=0.0) * LOG2_E
    delta_M = tl.load(delta + of_head + rows, mask=rows < length, other=0.0)
    keys_M = tl.zeros((OWN,), tl.int64)
    if DROPOUT:
        keys_M = head_keys(tl.load(keys + start + rows, mask=rows < length, other=0), head)
    grad_q = tl.zeros((OWN, FEATURES), tl.float32)
    low, high = _reach(first, OWN, OTHER, length, window, WINDOW)
    for begin in range(low, high, OTHER):
        columns = begin + tl.arange(0, OTHER)
        k = _load(qkv, start + columns, columns < length, stride, num_heads + head, features, head_size)
        v = _load(qkv, start + columns, columns < length, stride, 2 * num_heads + head, features, head_size)
        p = tl.exp2(_dot(q, tl.trans(k)) * (scale * LOG2_E) - log_total[:, None])
        p = tl.where(_visible(rows, columns, length, window, WINDOW), p, 0.0)
        grad_p = _dot(g, tl.trans(v))
        if DROPOUT:
            grad_p = tl.where(kept(keys_M, begin, first_dropped, OTHER), grad_p * keep_scale, 0.0)
        grad_q += _dot((p * (grad_p - delta_M[:, None])).to(k.dtype), k)
    inside = (rows < length)[:, None] & (features < head_size)[None, :]
    at = (start + rows).to(tl.int64)[:, None] * stride + head * head_size + features[None, :]
    tl.store(grad_qkv + at, (grad_q * scale).to(grad_qkv.dtype.element_ty), mask=inside)
