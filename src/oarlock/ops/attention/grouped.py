"""Attention as batched matrix products of torch over sequences grouped by length: where no compiled kernel serves.

A sequence's tokens are copied into a block [3, H, n, L, d] of sequences of equal length, so that softmax and products
run over large contiguous pieces. Lengths are rounded up to a grid, which makes groups of near-equal lengths and keeps
the number of distinct matrix shapes (each costs oneDNN a kernel) bounded. What a sequence computes depends on its own
length alone, never on its neighbours. Pieces are kept small enough for a core's cache.

Compared (2 cores with AMX, bf16, forward and backward, 12 heads of 64): torch's own CPU flash attention is slower at
lengths to 256; see docs/diary.md.

Suffixes: H heads, n sequences of a group, L tokens of a group's sequences, d head size.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from oarlock.ops.attention.reference import band, sequences
from oarlock.ops.random_bits import head_keys, keep_, keep_bits, keep_scale

_MAX_SCORES = 1 << 21
_QUERY_BLOCK = 128
_MASKED = -1e30  # finite: a row whose keys are all masked stays free of NaN


class _Run(NamedTuple):
    """Sequences of equal length that lie side by side in the pack: one copy serves them all."""

    start: int
    num: int
    length: int


class _Group(NamedTuple):
    """Runs that are computed together, each sequence at the group's length."""

    runs: list[_Run]
    size: int
    """Number n of sequences."""
    length: int
    """Number L of tokens at which each is computed."""


class _Block(NamedTuple):
    """Queries [q0, q1) read keys [k0, k1)."""

    q0: int
    q1: int
    k0: int
    k1: int


def forward(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, window: int, scale: float, keys: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    """Output [T, H, d], and the logarithm of each row's sum of exponentials, fp32 [H, T]."""
    num_heads = qkv.shape[2]
    out = qkv.new_empty(qkv.shape[0], *qkv.shape[2:])
    logsumexp = qkv.new_empty(num_heads, qkv.shape[0], 1, dtype=torch.float32)
    for group in _groups(cu_seqlens, num_heads, window):
        q, k, v = _gather(qkv.permute(1, 2, 0, 3), group).flatten(1, 2)
        q *= scale
        o, sums = torch.empty_like(q), q.new_empty((*q.shape[:2], 1), dtype=torch.float32)
        for block in _blocks(group, window, num_heads):
            q0, q1, k0, k1 = block
            scores = _scores(q, k, block, group, window)
            sums[:, q0:q1] = scores.logsumexp(dim=-1, keepdim=True)
            p = scores.softmax(dim=-1)
            if dropout:
                keep_(p, _kept(keys, block, group, num_heads, dropout))
            torch.bmm(p, v[:, k0:k1], out=o[:, q0:q1])
        if dropout:
            o *= keep_scale(dropout)
        _scatter(o.unflatten(0, (num_heads, group.size)), out.transpose(0, 1), group)
        _scatter(sums.unflatten(0, (num_heads, group.size)), logsumexp, group)
    return out, logsumexp[..., 0]


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
    """Gradient of qkv [T, 3, H, d]; softmax is computed anew, which is one pass where `logsumexp` would take two."""
    num_heads = qkv.shape[2]
    grad_pack = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    for group in _groups(cu_seqlens, num_heads, window):
        q, k, v = _gather(qkv.permute(1, 2, 0, 3), group).flatten(1, 2)
        grad_o = _gather(grad.transpose(0, 1), group).flatten(0, 1)
        q *= scale
        if dropout:
            grad_o *= keep_scale(dropout)
        blocks = _blocks(group, window, num_heads)
        # Blocks of a window overlap in their keys and add up; a single block writes.
        grad_qkv = q.new_empty((3, *q.shape)) if len(blocks) == 1 else q.new_zeros((3, *q.shape))
        beta = 0 if len(blocks) == 1 else 1
        grad_q, grad_k, grad_v = grad_qkv
        for block in blocks:
            q0, q1, k0, k1 = block
            p = _scores(q, k, block, group, window).softmax(dim=-1)
            grad_p = torch.bmm(grad_o[:, q0:q1], v[:, k0:k1].mT)
            kept = p
            if dropout:
                bits = _kept(keys, block, group, num_heads, dropout)
                keep_(grad_p, bits)
                kept = keep_(p.clone(), bits)
            grad_s = torch._softmax_backward_data(grad_p, p, -1, p.dtype)
            torch.bmm(grad_s, k[:, k0:k1], out=grad_q[:, q0:q1])
            grad_k[:, k0:k1].baddbmm_(grad_s.mT, q[:, q0:q1], beta=beta)
            grad_v[:, k0:k1].baddbmm_(kept.mT, grad_o[:, q0:q1], beta=beta)
        grad_q *= scale
        _scatter(grad_qkv.unflatten(1, (num_heads, group.size)), grad_pack.permute(1, 2, 0, 3), group)
    return grad_pack


def _groups(cu_seqlens: Tensor, num_heads: int, window: int) -> Iterator[_Group]:
    by_length = defaultdict(list)
    for start, end in sequences(cu_seqlens):
        by_length[_grid(end - start)].append((start, end - start))
    for length, members in by_length.items():
        reach = length if window < 0 else min(length, 2 * window + _QUERY_BLOCK)
        together = max(1, _MAX_SCORES // (num_heads * min(length, reach) * reach))
        for first in range(0, len(members), together):
            some = members[first : first + together]
            yield _Group(_runs(some), len(some), length)


def _runs(members: list[tuple[int, int]]) -> list[_Run]:
    runs: list[_Run] = []
    for start, length in members:
        last = runs[-1] if runs else _Run(0, 0, 0)
        if last.length == length and last.start + last.num * length == start:
            runs[-1] = last._replace(num=last.num + 1)
        else:
            runs.append(_Run(start, 1, length))
    return runs


def _grid(length: int) -> int:
    """The length at which a sequence is computed: its own, up to the next multiple of an eighth of its power of two."""
    step = max(16, 1 << max(0, length.bit_length() - 4))
    return -(-length // step) * step


def _blocks(group: _Group, window: int, num_heads: int) -> list[_Block]:
    length = group.length
    if 0 <= window < length - 1:
        starts = range(0, length, _QUERY_BLOCK)
        ends = [min(start + _QUERY_BLOCK, length) for start in starts]
        return [
            _Block(q0, q1, max(0, q0 - window), min(length, q1 + window)) for q0, q1 in zip(starts, ends, strict=True)
        ]
    queries = max(64, _MAX_SCORES // (num_heads * group.size * length))
    return [_Block(q0, min(q0 + queries, length), 0, length) for q0 in range(0, length, queries)]


def _gather(source: Tensor, group: _Group) -> Tensor:
    """Copy the group's tokens from [..., H, T, d] into [..., H, n, L, d], with zeros after each sequence."""
    *lead, _, size = source.shape
    block = source.new_empty((*lead, group.size, group.length, size))
    for piece, rest, tokens in _pieces(block, source, group):
        piece.copy_(tokens)
        if rest.shape[-2]:
            rest.zero_()
    return block


def _scatter(block: Tensor, into: Tensor, group: _Group) -> None:
    """Copy the group's tokens from [..., H, n, L, d] into [..., H, T, d]."""
    for piece, _, tokens in _pieces(block, into, group):
        tokens.copy_(piece)


def _pieces(block: Tensor, pack: Tensor, group: _Group) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each run: its tokens in the block, what follows them there, and its tokens in the pack."""
    i = 0
    for start, count, length in group.runs:
        rows = block[..., i : i + count, :, :]
        tokens = pack[..., start : start + count * length, :].unflatten(-2, (count, length))
        yield rows[..., :length, :], rows[..., length:, :], tokens
        i += count


def _scores(q: Tensor, k: Tensor, block: _Block, group: _Group, window: int) -> Tensor:
    """A block's scores [H * n, queries, keys]; q is scaled already."""
    q0, q1, k0, k1 = block
    scores = torch.bmm(q[:, q0:q1], k[:, k0:k1].mT)
    by_sequence = scores.unflatten(0, (-1, group.size))
    i = 0
    for _, count, length in group.runs:
        if length < k1:
            by_sequence[:, i : i + count, :, max(0, length - k0) :] = _MASKED
        i += count
    if 0 <= window < group.length - 1:
        scores.masked_fill_(band(q1 - q0, q0, k1 - k0, k0, window, q.device), _MASKED)
    return scores


def _kept(keys: Tensor, block: _Block, group: _Group, num_heads: int, dropout: float) -> Tensor:
    """Which probabilities of a block dropout keeps, as `keep_bits`, [H * n, queries, keys]."""
    rows = _gather(head_keys(keys, num_heads).T[..., None], group)[:, :, block.q0 : block.q1, 0]
    bits = keep_bits(rows.flatten(), block.k1, dropout)
    return bits.view(num_heads * group.size, block.q1 - block.q0, -1)[..., block.k0 : block.k1]
