"""How fast the operators are, beside the same work in plain torch. Only what equals the reference is timed.

The cases are those of the registry (`ops.cases`) that are marked for it.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oarlock.ops.case import Case, Inputs, OperatorCases
from oarlock.ops.cases import OPERATOR_CASES
from oarlock.ops.compare import check_equal
from oarlock.ops.library import FORMS, serving_form

PLAIN = "plain torch"
ROUNDS = 5
"""In which everything is timed in turn."""
SECONDS = 0.1
"""That the calls of one timing take together, at least; one call where it takes longer."""


class OperatorFigures(NamedTuple):
    """One form of an operator, or plain torch, on one case. Times are medians of a call, in milliseconds."""

    operator: str
    case: str
    form: str
    """As reports name it: the device's own form, `reference`, or `plain torch`."""
    forward_ms: float
    forward_ratio: float
    """How many times as fast as plain torch."""
    both_ms: float | None
    """Forward and backward together; None where there is no backward."""
    both_ratio: float | None


def benchmark_cases(operators: Sequence[str]) -> list[tuple[str, Case]]:
    """The operators named (or all, where none is), each with its cases that are timed.

    Raises ValueError for a name that is no operator.
    """
    for name in operators:
        if name not in OPERATOR_CASES:
            raise ValueError(f"{name!r} is no operator; there are {', '.join(OPERATOR_CASES)}")
    names = operators or tuple(OPERATOR_CASES)
    return [(name, case) for name in names for case in OPERATOR_CASES[name].cases if case.benchmark]


def measure_case(name: str, case: Case, device: torch.device, dtype: torch.dtype) -> list[OperatorFigures]:
    """Times of plain torch and of every form that serves the device, taken in turn.

    Raises RuntimeError where results or gradients of a form are not those of the reference.
    """
    operator = OPERATOR_CASES[name]
    functions: dict[str, Callable[..., Any]] = {PLAIN: operator.plain}
    for choice in FORMS:
        functions.setdefault(serving_form(name, choice, device), partial(operator.function, form=choice))
    for form, function in functions.items():
        if form != PLAIN:
            check_equal(operator, case, function, device, dtype)
    calls = {
        (form, what): call
        for form, function in functions.items()
        for what, call in _calls(operator, function, case.inputs(device, dtype)).items()
    }
    ms = _median_ms(calls, device)
    return [
        OperatorFigures(
            name,
            case.name,
            form,
            ms[form, "forward"],
            ms[PLAIN, "forward"] / ms[form, "forward"],
            ms.get((form, "both")),
            ms[PLAIN, "both"] / ms[form, "both"] if (form, "both") in ms else None,
        )
        for form in functions
    ]


def _calls(operator: OperatorCases, function: Callable[..., Any], inputs: Inputs) -> dict[str, Callable[[], None]]:
    """What is timed: the forward pass as evaluation runs it, and the two passes as training does."""

    @torch.no_grad()
    def forward() -> None:
        function(**inputs)

    leaves = [x for name in operator.differentiable for x in _tensors(inputs[name])]
    if not leaves:
        return {"forward": forward}
    for leaf in leaves:
        leaf.requires_grad_()
    grads = [torch.ones_like(out) for out in _tensors(function(**inputs))]

    def both() -> None:
        torch.autograd.grad(_tensors(function(**inputs)), leaves, grads)

    return {"forward": forward, "both": both}


def _median_ms(calls: dict[tuple[str, str], Callable[[], None]], device: torch.device) -> dict[tuple[str, str], float]:
    def seconds(call: Callable[[], None], times: int) -> float:
        _wait(device)
        start = time.perf_counter()
        for _ in range(times):
            call()
        _wait(device)
        return (time.perf_counter() - start) / times

    counts = {}
    for key, call in calls.items():
        seconds(call, 2)
        counts[key] = max(1, int(SECONDS / seconds(call, 1)))
    found: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for _ in range(ROUNDS):
        for key, call in calls.items():
            found[key].append(seconds(call, counts[key]))
    return {key: 1e3 * statistics.median(values) for key, values in found.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [] if value is None else [x for x in value if x is not None]
