"""Cases of LAMB. Its tensors are fp32 in every case; their numbers are rounded to the case's type."""

import torch
from torch import Tensor

from oarlock.ops.case import TOLERANCES, Case, Inputs, OperatorCases, random
from oarlock.ops.lamb import lamb_

SMALL = ((1,), (63,), (3, 37), (300, 301), (0, 4))
BERT_BASE_LAYER = ((2304, 768), (2304,), (768, 768), (768,), (3072, 768), (3072,), (768, 3072), (768,), (768,), (768,))


def _case(
    name: str,
    shapes: tuple[tuple[int, ...], ...] = SMALL,
    *,
    steps: int = 3,
    grad_scale: float = 1.0,
    gradient: float = 0.1,
    skip: bool = False,
    weight_scale: float = 0.02,
    weight_decay: float = 0.01,
    trust: bool = True,
    benchmark: bool = False,
) -> Case:
    def inputs(device: torch.device, dtype: torch.dtype) -> Inputs:
        def tensors(first_seed: int, scale: float) -> list[Tensor]:
            return [
                random(*shape, seed=first_seed + i, device=device, dtype=dtype, scale=scale).float()
                for i, shape in enumerate(shapes)
            ]

        return {
            "weights": tensors(0, weight_scale),
            "gradients": tensors(1000, gradient * grad_scale),
            "first": tensors(2000, 0.1 if steps else 0.0),
            "second": [x.square_() for x in tensors(3000, 0.1 if steps else 0.0)],
            "steps": [torch.tensor(float(steps), device=device) for _ in shapes],
            "grad_scale": torch.tensor(grad_scale, device=device),
            "found_inf": torch.tensor(float(skip), device=device),
            "lr": 1e-2,
            "betas": (0.9, 0.999),
            "epsilon": 1e-6,
            "weight_decay": weight_decay,
            "trust": trust,
        }

    return Case(name, inputs, benchmark)


def _plain(
    weights: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
    grad_scale: Tensor,
    found_inf: Tensor,
    lr: float,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
    trust: bool,
) -> None:
    if found_inf.item():
        return
    beta1, beta2 = betas
    for w, gradient, m, v, step in zip(weights, gradients, first, second, steps, strict=True):
        gradient = gradient / grad_scale
        step += 1
        m.lerp_(gradient, 1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        update = (m / (1 - beta1**step)).div_((v / (1 - beta2**step)).sqrt_().add_(epsilon)).add_(w, alpha=weight_decay)
        weight_norm, update_norm = w.norm(), update.norm()
        ratio = weight_norm / update_norm if trust and weight_norm > 0 and update_norm > 0 else torch.ones(())
        w.sub_(update.mul_(ratio), alpha=lr)


CASES = OperatorCases(
    lamb_,
    _plain,
    (
        _case("first step", steps=0),
        _case("fourth step"),
        _case("without trust", trust=False),
        _case("zero weights", weight_scale=0.0),
        _case("zero weights and no updates", weight_scale=0.0, steps=0, gradient=0.0),
        _case("scaled gradients", grad_scale=1024.0),
        _case("skipped", skip=True),
        _case("no decay, a large tensor", ((1031, 1033), (7,)), weight_decay=0.0),
        _case("12 layers of BERT-base", BERT_BASE_LAYER * 12, benchmark=True),
    ),
    changed=("weights", "first", "second", "steps"),
    tolerances=dict.fromkeys(TOLERANCES, TOLERANCES[torch.float32]),
)
