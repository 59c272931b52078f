"""One update by LAMB (You et al., 2020, arXiv:1904.00962, algorithm 2) of many tensors, in place.

With g = gradient / grad_scale, and m, v its moments, t the updates of a tensor, bias-corrected as in the MLPerf BERT
reference:

    m = beta1 m + (1 - beta1) g                     v = beta2 v + (1 - beta2) g^2
    u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay w
    w = w - lr r u                                  r = |w| / |u|, or 1 where either norm is 0, or without `trust`

Clipping comes in as `grad_scale`, as the protocol of torch's gradient scaler has it, and a step whose gradients are not
finite leaves everything as it was (`found_inf` 1): both are tensors on the device, and no host waits for them.

AdamW has no operator of ours: torch's fused form takes `grad_scale` and `found_inf` too.
"""

from torch import Tensor

from oarlock.ops import library, native
from oarlock.ops.lamb import cpu, reference

library.define(
    "lamb_",
    "(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] first, Tensor(c!)[] second, Tensor(d!)[] steps,"
    " Tensor grad_scale, Tensor found_inf, float lr, float beta1, float beta2, float epsilon, float weight_decay,"
    " bool trust) -> ()",
    reference.update_,
)
native.register("lamb", {"lamb_": cpu.update_})
library.register_cuda("lamb", "triton", {"lamb_": "update_"})


def lamb_(
    weights: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
    *,
    grad_scale: Tensor,
    found_inf: Tensor,
    lr: float,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
    trust: bool,
    form: str = "auto",
) -> None:
    """Update `weights`, their moments (of the same shapes, fp32) and their counters (0-d, fp32) in place.

    Args:
        weights: fp32 tensors.
        gradients: of the weights' shapes and type.
        first: running means of the gradient.
        second: running means of the squared gradient.
        steps: how often each tensor was updated.
        grad_scale: what gradients are divided by, 0-d fp32.
        found_inf: 1 where the step is to be skipped, else 0; 0-d fp32.
        lr: learning rate.
        betas: decay of the two means.
        epsilon: added to the root of the second moment.
        weight_decay: share of the weights in the update.
        trust: whether updates are scaled to the size of the weights.
        form: `auto` or `reference`.
    """
    library.namespace(form).lamb_(
        weights, gradients, first, second, steps, grad_scale, found_inf, lr, *betas, epsilon, weight_decay, trust
    )
