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

from collections.abc import Callable

from torch import Tensor

from oarlock.ops import library, native
from oarlock.ops.lamb import cpu, reference

library.define(
    "lamb_measure_",
    "(Tensor[] weights, Tensor[] gradients, Tensor(a!)[] first, Tensor(b!)[] second, Tensor(c!)[] steps,"
    " Tensor grad_scale, Tensor found_inf, float beta1, float beta2, float epsilon, float weight_decay) -> Tensor",
    reference.measure_,
)
library.define(
    "lamb_apply_",
    "(Tensor(a!)[] weights, Tensor[] first, Tensor[] second, Tensor[] steps, Tensor squares, Tensor found_inf,"
    " float lr, float beta1, float beta2, float epsilon, float weight_decay, bool trust) -> ()",
    reference.apply_,
)
native.register("lamb", {"lamb_measure_": cpu.measure_, "lamb_apply_": cpu.apply_})
library.register_cuda("lamb", "triton", {"lamb_measure_": "measure_", "lamb_apply_": "apply_"})


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
    over_all: Callable[[Tensor], Tensor] | None = None,
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
        over_all: where the tensors are parts of others, makes the squared norms of those, [2, tensors], of these.
        form: `auto` or `reference`.
    """
    operators, settings = library.namespace(form), (*betas, epsilon, weight_decay)
    squares = operators.lamb_measure_(weights, gradients, first, second, steps, grad_scale, found_inf, *settings)
    squares = over_all(squares) if over_all is not None and trust else squares
    operators.lamb_apply_(weights, first, second, steps, squares, found_inf, lr, *settings, trust)
