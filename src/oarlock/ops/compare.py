"""What a form of an operator computes of a case, and whether it is what the reference computes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from oarlock.ops.case import TOLERANCES, Case, Inputs, OperatorCases, Tolerance


def check_equal(
    operator: OperatorCases, case: Case, function: Callable[..., Any], device: torch.device, dtype: torch.dtype
) -> None:
    """Compare all that `function` computes of a case with what the reference computes in fp32 of the same numbers.

    Raises RuntimeError where something differs by more than the operator's tolerance.
    """
    tolerance = (operator.tolerances or TOLERANCES)[dtype]
    found = results(operator, function, case.inputs(device, dtype))
    expected = reference_results(operator, case, device, dtype)
    for what, tensor in expected.items():
        if (excess := excess_of(found[what], tensor, tolerance)) > 1:
            raise RuntimeError(f"{case.name}: {what} in {dtype} is {excess:.3g} times its tolerance off the reference")


def reference_results(
    operator: OperatorCases, case: Case, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """`results` of the reference, in fp32 from inputs rounded to `dtype`."""
    inputs = {name: _widened(value) for name, value in case.inputs(device, dtype).items()}
    return results(operator, partial(operator.function, form="reference"), inputs)


def results(operator: OperatorCases, function: Callable[..., Any], inputs: Inputs) -> dict[str, Tensor]:
    """All that comes of a call: its results, or what it changed, and the gradient of each input that gets one.

    The gradients are those of a sum in which every element of every result weighs differently.
    """
    if operator.changed:
        function(**inputs)
        return {f"{name} {i}": x.clone() for name in operator.changed for i, x in enumerate(_tensors(inputs[name]))}
    leaves = {
        f"{name} {i}": x.requires_grad_()
        for name in operator.differentiable
        for i, x in enumerate(_tensors(inputs[name]))
    }
    out = function(**inputs)
    outputs = [out] if isinstance(out, Tensor) else list(out)
    found = {f"result {i}": x.detach() for i, x in enumerate(outputs)}
    if leaves:
        loss_of(outputs).backward()
        found |= {f"gradient of {name}": x.grad for name, x in leaves.items() if x.grad is not None}
    return found


def loss_of(outputs: list[Tensor]) -> Tensor:
    """A sum in which every element weighs differently, between -1 and 1, by a number that bf16 has."""
    total = torch.zeros((), device=outputs[0].device)
    for out in outputs:
        weights = (
            torch.arange(1, out.numel() + 1, device=out.device, dtype=torch.float32).mul_(2.399963).sin_().bfloat16()
        )
        total = total + (out.float() * weights.view(out.shape)).sum()
    return total


def excess_of(found: Tensor, expected: Tensor, tolerance: Tolerance) -> float:
    """The largest distance of an element from the expected, in tolerances; infinite where only one is finite."""
    if found.shape != expected.shape:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    found, expected = found.double(), expected.double()
    finite = expected.isfinite()
    if not torch.equal(found.isfinite(), finite):
        return float("inf")
    found, expected = found[finite], expected[finite]
    if expected.numel() == 0:
        return 0.0
    allowed = tolerance.absolute * expected.abs().max() + tolerance.relative * expected.abs()
    return float(((found - expected).abs() / allowed.clamp(min=torch.finfo(torch.float64).tiny)).max())


def _tensors(value: Any) -> list[Tensor]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _widened(value: Any) -> Any:
    if isinstance(value, list):
        return [_widened(x) for x in value]
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
