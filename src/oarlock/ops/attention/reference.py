"""Attention in plain torch: one sequence at a time, every intermediate in fp32.

Suffixes: L one sequence's tokens, H heads, d head size.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from oarlock.ops.random_bits import head_keys, keep_bits, keep_scale


def forward(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, window: int, scale: float, keys: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    """Output [T, H, d], and the logarithm of each row's sum of exponentials, fp32 [H, T]."""
    out = qkv.new_empty(qkv.shape[0], *qkv.shape[2:])
    logsumexp = qkv.new_empty(qkv.shape[2], qkv.shape[0], dtype=torch.float32)
    for start, end in sequences(cu_seqlens):
        q, k, v = qkv[start:end].float().permute(1, 2, 0, 3)
        kept = _kept(keys[start:end], qkv.shape[2], end - start, dropout)
        scores = _scores(q, k, window, scale)
        out[start:end] = ((scores.softmax(dim=-1) * kept) @ v).transpose(0, 1)
        logsumexp[:, start:end] = scores.logsumexp(dim=-1)
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
    """Gradient of qkv [T, 3, H, d], by the chain rule written out."""
    grad_qkv = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    for start, end in sequences(cu_seqlens):
        q, k, v = qkv[start:end].float().permute(1, 2, 0, 3)
        grad_o = grad[start:end].float().transpose(0, 1)
        kept = _kept(keys[start:end], qkv.shape[2], end - start, dropout)
        p = (_scores(q, k, window, scale) - logsumexp[:, start:end, None]).exp()
        grad_v = (p * kept).mT @ grad_o
        grad_p = (grad_o @ v.mT) * kept
        # Row sums of grad_p * p equal those of grad * out, with dropout too.
        grad_s = p * (grad_p - (grad_o * out[start:end].float().transpose(0, 1)).sum(dim=-1, keepdim=True)) * scale
        grad_qkv[start:end] = torch.stack((grad_s @ k, grad_s.mT @ q, grad_v)).permute(2, 0, 1, 3)
    return grad_qkv


def sequences(cu_seqlens: Tensor) -> Iterator[tuple[int, int]]:
    """Start and end of every sequence that is not empty."""
    if type(cu_seqlens) is not Tensor:
        return iter(())  # a fake tensor: only shapes are asked for
    bounds = cu_seqlens.tolist()
    return ((start, end) for start, end in pairwise(bounds) if end > start)


def band(
    num_queries: int, first_query: int, num_keys: int, first_key: int, window: int, device: torch.device
) -> Tensor:
    """Which keys lie outside the window of which queries, bool [queries, keys]."""
    query = torch.arange(first_query, first_query + num_queries, device=device)
    key = torch.arange(first_key, first_key + num_keys, device=device)
    return (query[:, None] - key[None, :]).abs() > window


def _scores(q: Tensor, k: Tensor, window: int, scale: float) -> Tensor:
    scores = (q @ k.mT) * scale
    if 0 <= window < q.shape[1] - 1:
        scores.masked_fill_(band(q.shape[1], 0, k.shape[1], 0, window, q.device), float("-inf"))
    return scores


def _kept(keys: Tensor, num_heads: int, length: int, dropout: float) -> Tensor | float:
    if dropout == 0.0:
        return 1.0
    bits = keep_bits(head_keys(keys, num_heads).T.flatten(), length, dropout)
    return (bits != 0).view(num_heads, length, length) * keep_scale(dropout)
