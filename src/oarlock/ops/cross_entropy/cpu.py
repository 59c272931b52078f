"""Output projection and cross entropy on a CPU: torch's products, and one compiled pass over a chunk's logits.

Suffixes: M targets, D hidden, V vocabulary (padded).
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from oarlock.ops import native
from oarlock.ops.cross_entropy import reference
from oarlock.ops.linear.cpu import add_weight_gradient, product, serves_products

ROWS = 32
CHUNK_BYTES = 64 << 20
"""Of logits: every chunk adds to the gradient of all weights, which costs more than logits that leave the cache."""

_rows = native.kernel("cross_entropy", "ttttttiiifii")


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
    if not native.serves(hidden, weight, bias):
        return reference.forward(hidden, weight, bias, targets, vocab_size, denominator, with_gradients)
    hidden, weight, bias, targets = (x.contiguous() for x in (hidden, weight, bias, targets))
    if targets.numel() > 0 and not 0 <= int(targets.min()) <= int(targets.max()) < vocab_size:
        raise ValueError(f"a target lies outside of the vocabulary of {vocab_size:,} ids")
    num_columns, scale = weight.shape[0], 1.0 / denominator
    loss, hits = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
    grad_hidden, grad_weight, grad_bias = reference.empty_gradients(hidden, weight, bias, with_gradients)
    if serves_products(hidden) and grad_hidden.numel() > 0:
        grad_weight = torch.empty_like(grad_weight)  # the first chunk writes it
    num_targets = hidden.shape[0]
    num_rows = min(num_targets, max(1, CHUNK_BYTES // (hidden.element_size() * num_columns)))
    # Few numbers of rows, for torch builds a product for each anew.
    even_rows = pad(hidden, (0, 0, 0, -num_targets % ROWS))
    buffer = hidden.new_empty(num_rows + ROWS, num_columns)
    sums = torch.empty_like(grad_bias)
    for start in range(0, num_targets, max(1, num_rows)):
        chunk = hidden[start : start + num_rows]
        some_rows = even_rows[start : start + -(-chunk.shape[0] // ROWS) * ROWS]
        logits = torch.mm(some_rows, weight.T, out=buffer[: some_rows.shape[0]])[: chunk.shape[0]]
        target, wide = targets[start : start + num_rows], hidden.dtype == torch.float32
        _rows(logits, bias, target, loss, hits, sums, *logits.shape, vocab_size, scale, with_gradients, wide)
        if with_gradients:
            grad_bias += sums
            if serves_products(hidden):
                grad_hidden[start : start + num_rows] = product(logits, weight)
                add_weight_gradient(logits, chunk, grad_weight, add=start > 0)
            else:
                torch.mm(logits, weight, out=grad_hidden[start : start + num_rows])
                grad_weight += logits.T @ chunk
    return (loss * scale).float(), hits, grad_hidden, grad_weight, grad_bias
