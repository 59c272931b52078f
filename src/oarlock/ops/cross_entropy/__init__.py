"""Output projection and cross entropy over target positions that never holds all logits.

For rows h of hidden states, weights W and bias b:

    loss = sum_m (logsumexp(W h_m + b) - (W h_m + b)[t_m]) / denominator

The gradient of the logits is `(softmax - onehot) / denominator`, so a chunk of rows is projected, read and turned into
gradients while it is at hand; the backward pass only multiplies by the incoming scalar. The denominator is an integer,
the targets of a global batch: a compiled model takes it as a symbol, and would be compiled anew for each float.

Suffixes: M targets, D hidden, V vocabulary (padded; columns from `vocab_size` on do not exist for the loss).
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library, native
from oarlock.ops.cross_entropy import cpu, reference

library.define(
    "cross_entropy_forward",
    "(Tensor hidden, Tensor weight, Tensor bias, Tensor targets, SymInt vocab_size, SymInt denominator,"
    " bool with_gradients)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference.forward,
)
native.register("cross_entropy", {"cross_entropy_forward": cpu.forward})
library.register_cuda("cross_entropy", "triton", {"cross_entropy_forward": "forward"})


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        vocab_size: int,
        denominator: int,
        form: str,
    ) -> Tensor:
        loss, _, *grads = library.namespace(form).cross_entropy_forward(
            hidden, weight, bias, targets, vocab_size, denominator, any(ctx.needs_input_grad)
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
    denominator: int,
    form: str = "auto",
) -> Tensor:
    """The sum of the cross entropies of the targets over `denominator`, a 0-d fp32 tensor. Differentiate it once."""
    loss: Tensor = library.apply(_CrossEntropy, hidden_MD, weight_VD, bias_V, targets_M, vocab_size, denominator, form)
    return loss


def cross_entropy_and_hits(
    hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_M: Tensor, vocab_size: int, form: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Summed cross entropy (0-d fp32) and number of targets whose likeliest id is right (0-d int64), for evaluation."""
    loss, hits, *_ = library.namespace(form).cross_entropy_forward(
        hidden_MD, weight_VD, bias_V, targets_M, vocab_size, 1, False
    )
    return loss, hits
