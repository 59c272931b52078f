"""Output projection and cross entropy on a GPU: cuBLAS multiplies, and a kernel turns a chunk's logits into gradients.

A chunk's logits are fp32; their gradient is in the type of the hidden states, for the two products that follow.

Suffixes: M targets, D hidden, V vocabulary (padded).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from oarlock.ops.cross_entropy import reference
from oarlock.ops.cuda_common import serves
from oarlock.ops.linear import cuda as linear

CHUNK_BYTES = 512 << 20  # of fp32 logits: few, large products
COLUMNS = 4096


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
    if not serves(hidden, weight, bias):
        return reference.forward(hidden, weight, bias, targets, vocab_size, denominator, with_gradients)
    hidden, weight, bias, targets = hidden.contiguous(), weight.contiguous(), bias.contiguous(), targets.contiguous()
    num_targets, num_columns, scale = hidden.shape[0], weight.shape[0], 1.0 / denominator
    losses = torch.empty(num_targets, dtype=torch.float32, device=hidden.device)
    hits = torch.empty(num_targets, dtype=torch.int64, device=hidden.device)
    grad_hidden, grad_weight, grad_bias = reference.empty_gradients(hidden, weight, bias, with_gradients)
    rows = max(1, CHUNK_BYTES // (4 * num_columns))
    for start in range(0, num_targets, rows):
        chunk = hidden[start : start + rows]
        logits = linear.product(chunk, weight.T)
        grad_logits = torch.empty_like(logits, dtype=hidden.dtype) if with_gradients else logits
        _softmax[(chunk.shape[0],)](
            logits, bias, targets[start:], losses[start:], hits[start:], grad_logits, num_columns, vocab_size, scale,
            WITH_GRADIENTS=with_gradients, COLUMNS=COLUMNS, num_warps=8,
        )  # fmt: skip
        if with_gradients:
            torch.mm(grad_logits, weight, out=grad_hidden[start : start + rows])
            grad_weight += linear.weight_gradient(grad_logits, chunk)
            grad_bias += linear.column_sums(grad_logits)
    num_hits = hits.new_zeros(()) if with_gradients else hits.sum()
    return losses.sum() * scale, num_hits, grad_hidden, grad_weight, grad_bias


@triton.jit
def _softmax(
    logits, bias, targets, losses, hits, grad_logits, num_columns, vocab_size, scale,
    WITH_GRADIENTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One row: its loss, whether its largest logit is the target's (the first of equals), and its gradient."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    largest, total, likeliest = -float("inf"), 0.0, 0
    for first in range(0, vocab_size, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = columns < vocab_size
        value = tl.load(logits + row * num_columns + columns, mask=inside, other=0.0)
        value += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value, -float("inf"))
        largest_here, place = tl.max(value, axis=0, return_indices=True)
        likeliest = tl.where(largest_here > largest, first + place, likeliest)
        before, largest = largest, tl.maximum(largest, largest_here)
        total = total * tl.exp(before - largest) + tl.sum(tl.exp(value - largest), axis=0)
    log_total = largest + tl.log(total)
    target_logit = tl.load(logits + row * num_columns + target) + tl.load(bias + target).to(tl.float32)
    tl.store(losses + row, log_total - target_logit)
    tl.store(hits + row, (likeliest == target).to(tl.int64))
    if WITH_GRADIENTS:
        for first in range(0, num_columns, COLUMNS):
            columns = first + tl.arange(0, COLUMNS)
            inside = columns < vocab_size
            value = tl.load(logits + row * num_columns + columns, mask=inside, other=0.0)
            value += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
            value = tl.exp(value - log_total) - (columns == target).to(tl.float32)
            value = tl.where(inside, value * scale, 0.0).to(grad_logits.dtype.element_ty)
            tl.store(grad_logits + row * num_columns + columns, value, mask=columns < num_columns)
