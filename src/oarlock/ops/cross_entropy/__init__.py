"""Output projection and cross entropy over target positions that never holds all logits.

For rows h of hidden states, weights W and bias b: `loss = scale * sum_m (logsumexp(W h_m + b) - (W h_m + b)[t_m])`. The
gradient of the logits is `scale * (softmax - onehot)`, so a chunk of rows is projected, read and turned into gradients
while it is at hand; the backward pass only multiplies by the incoming scalar.

Suffixes: M targets, D hidden, V vocabulary (padded; columns from `vocab_size` on do not exist for the loss).
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library
from oarlock.ops.cross_entropy import reference

library.define(
    "cross_entropy_forward",
    "(Tensor hidden, Tensor weight, Tensor bias, Tensor targets, SymInt vocab_size, float scale, bool with_gradients)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference.forward,
)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        vocab_size: int,
        scale: float,
        form: str,
    ) -> Tensor:
        loss, _, *grads = library.namespace(form).cross_entropy_forward(
            hidden, weight, bias, targets, vocab_size, scale, any(ctx.needs_input_grad)
        )
        ctx.save_for_backward(*grads)
        result: Tensor = loss
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # The incoming gradient is a scalar on the device: multiplying in place costs no host read and no copy.
        hidden, weight, bias = (saved.mul_(grads[0]) for saved in ctx.saved_tensors)
        return hidden, weight, bias, None, None, None, None


def cross_entropy(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    targets_M: Tensor,
    vocab_size: int,
    scale: float,
    form: str = "auto",
) -> Tensor:
    """`scale` times the sum of the cross entropies of the targets, a 0-d fp32 tensor. Differentiate it once."""
    return library.apply(_CrossEntropy, hidden_MD, weight_VD, bias_V, targets_M, vocab_size, scale, form)


def cross_entropy_and_hits(
    hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_M: Tensor, vocab_size: int, form: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Summed cross entropy (0-d fp32) and number of targets whose likeliest id is right (0-d int64), for evaluation."""
    loss, hits, *_ = library.namespace(form).cross_entropy_forward(
        hidden_MD, weight_VD, bias_V, targets_M, vocab_size, 1.0, False
    )
    return loss, hits
