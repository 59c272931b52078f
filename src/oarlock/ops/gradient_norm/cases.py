"""Cases of the gradient norm."""

import math

import torch
from torch import Tensor

from oarlock.ops.case import Case, Inputs, OperatorCases, random
from oarlock.ops.gradient_norm import gradient_norm

BERT_BASE_LAYER = ((2304, 768), (2304,), (768, 768), (768,), (3072, 768), (3072,), (768, 3072), (768,), (768,), (768,))


def _case(
    name: str, *shapes: tuple[int, ...], odd_one: float = 1.0, scale: float = 1.0, benchmark: bool = False
) -> Case:
    def inputs(device: torch.device, dtype: torch.dtype) -> Inputs:
        tensors = [
            random(*shape, seed=seed, device=device, dtype=dtype, scale=scale) for seed, shape in enumerate(shapes)
        ]
        if tensors[-1].numel() > 0:
            tensors[-1].view(-1)[-1] *= odd_one
        return {"gradients": tensors}

    return Case(name, inputs, benchmark)


def _plain(gradients: list[Tensor]) -> Tensor:
    return torch.nn.utils.get_total_norm(gradients)


CASES = OperatorCases(
    gradient_norm,
    _plain,
    (
        _case("one element", (1,)),
        _case("an empty tensor", (7,), (0, 5)),
        _case("zeros", (63,), (3, 37), scale=0.0),
        _case("odd sizes", *((n, 37) for n in range(1, 64))),
        _case("an infinite element", (5,), (300, 301), (63,), odd_one=math.inf),
        _case("an element that is no number", (5,), (63,), odd_one=math.nan),
        _case("a large tensor", (1031, 1033)),
        _case("12 layers of BERT-base", *(BERT_BASE_LAYER * 12), benchmark=True),
    ),
)
