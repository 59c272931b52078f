"""Output projection and cross entropy in plain torch, a chunk of rows at a time.

Suffixes: M targets, D hidden, V vocabulary (padded).
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from oarlock.ops import library
from oarlock.ops.random_bits import accumulator

CHUNK_BYTES = 64 << 20  # of fp32 logits


def forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    vocab_size: int,
    denominator: int,
    with_gradients: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Scaled summed loss; number of hits (without gradients); gradients of hidden, weight and bias (both in fp32)."""
    wide, scale = accumulator(hidden.dtype), 1.0 / denominator
    loss = torch.zeros((), dtype=wide, device=hidden.device)
    hits = torch.zeros((), dtype=torch.int64, device=hidden.device)
    grad_hidden, grad_weight, grad_bias = empty_gradients(hidden, weight, bias, with_gradients)
    if library.is_symbolic(hidden) or library.is_symbolic(weight):
        return loss, hits, grad_hidden, grad_weight, grad_bias
    rows = max(1, CHUNK_BYTES // (4 * weight.shape[0]))
    for start in range(0, hidden.shape[0], rows):
        chunk, target = hidden[start : start + rows], targets[start : start + rows, None]
        logits = linear(chunk, weight, bias)[:, :vocab_size].to(wide)
        log_probabilities = logits.log_softmax(dim=-1)
        loss -= log_probabilities.gather(1, target).sum()
        if not with_gradients:
            hits += (logits.argmax(dim=-1, keepdim=True) == target).sum()
        else:
            grad_logits = torch.zeros(chunk.shape[0], weight.shape[0], dtype=wide, device=hidden.device)
            probabilities = log_probabilities.exp_()
            probabilities.scatter_add_(1, target, torch.full_like(target, -1, dtype=wide))
            grad_logits[:, :vocab_size] = probabilities.mul_(scale)
            grad_hidden[start : start + rows] = grad_logits @ weight.to(wide)
            grad_weight.addmm_(grad_logits.T, chunk.to(wide))
            grad_bias += grad_logits.sum(dim=0)
    return loss * scale, hits, grad_hidden, grad_weight, grad_bias


def empty_gradients(hidden: Tensor, weight: Tensor, bias: Tensor, wanted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros for the gradients of hidden, in its type, and of weight and bias, in fp32; or three empty tensors."""
    wide = accumulator(hidden.dtype)
    if not wanted:
        return hidden.new_empty(0), hidden.new_empty(0, dtype=wide), hidden.new_empty(0, dtype=wide)
    grad_weight, grad_bias = (torch.zeros_like(x, dtype=wide) for x in (weight, bias))
    return torch.zeros_like(hidden), grad_weight, grad_bias
