"""Every operator, in every form, on every case of the registry, and what each of them must never do."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from oarlock.ops import native
from oarlock.ops.case import TOLERANCES, Case, Inputs, OperatorCases
from oarlock.ops.cases import OPERATOR_CASES
from oarlock.ops.compare import check_equal, excess_of, results
from oarlock.ops.library import FORMS, namespace

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)
CASES = [
    pytest.param(operator, case, id=f"{name}-{case.name}")
    for name, operator in OPERATOR_CASES.items()
    for case in operator.cases
    if not case.benchmark
]
# torch's products, and sums, may be divided among threads.
WITHOUT_TORCH_PRODUCTS = [
    (name, dtype)
    for name in ("add_norm", "bias_gelu", "embed_norm", "geglu", "gradient_norm", "lamb", "rotary")
    for dtype in DTYPES
]
every_form = pytest.mark.parametrize("form", FORMS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_case = pytest.mark.parametrize(("operator", "case"), CASES)


def run(operator: OperatorCases, case: Case, form: str, dtype: torch.dtype) -> dict[str, Tensor]:
    return results(operator, partial(operator.function, form=form), case.inputs(CPU, dtype))


def equal_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k].nan_to_num(7.0), b[k].nan_to_num(7.0)) for k in a)


@every_case
@every_dtype
@every_form
def test_equals_the_reference_in_fp32(operator: OperatorCases, case: Case, form: str, dtype: torch.dtype) -> None:
    check_equal(operator, case, partial(operator.function, form=form), CPU, dtype)


@every_case
@every_dtype
@every_form
def test_reads_no_memory_that_it_did_not_write(
    operator: OperatorCases, case: Case, form: str, dtype: torch.dtype
) -> None:
    """Deterministic mode fills fresh memory with NaN."""
    clean = run(operator, case, form, dtype)
    torch.use_deterministic_algorithms(True)
    try:
        poisoned = run(operator, case, form, dtype)
    finally:
        torch.use_deterministic_algorithms(False)
    assert equal_bits(clean, poisoned)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@every_case
@every_dtype
@every_form
def test_repeats_itself(operator: OperatorCases, case: Case, form: str, dtype: torch.dtype) -> None:
    assert equal_bits(run(operator, case, form, dtype), run(operator, case, form, dtype))


@pytest.mark.skipif(native.level() is None, reason="no compiled kernels here")
@pytest.mark.parametrize(("name", "dtype"), WITHOUT_TORCH_PRODUCTS, ids=str)
def test_compiled_kernels_do_not_depend_on_the_number_of_threads(
    name: str, dtype: torch.dtype, threads: Callable[[int], None]
) -> None:
    operator = OPERATOR_CASES[name]
    for case in (case for case in operator.cases if not case.benchmark):
        found = []
        for count in (1, 2, 3):
            threads(count)
            found.append(run(operator, case, "auto", dtype))
        assert equal_bits(found[0], found[1]), case.name
        assert equal_bits(found[0], found[2]), case.name


@every_case
@every_dtype
@every_form
def test_takes_inputs_that_are_not_contiguous(
    operator: OperatorCases, case: Case, form: str, dtype: torch.dtype
) -> None:
    if operator.changed:
        pytest.skip("an operator that works in place is given whole parameters")

    def strided(value: Any) -> Any:
        if isinstance(value, list):
            return [strided(x) for x in value]
        if not isinstance(value, Tensor) or value.ndim == 0:
            return value
        return value.repeat_interleave(2, dim=-1)[..., ::2]

    inputs = {name: strided(value) for name, value in case.inputs(CPU, dtype).items()}
    found = results(operator, partial(operator.function, form=form), inputs)
    tolerance = (operator.tolerances or TOLERANCES)[dtype]
    for what, tensor in run(operator, case, form, dtype).items():
        assert excess_of(found[what], tensor, tolerance) <= 1, what


@every_case
@every_form
def test_is_registered_as_torch_asks(
    operator: OperatorCases, case: Case, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`opcheck` on every call of the operator's function: schema, mutation, shapes for fake tensors, autograd."""
    calls: list[tuple[Any, tuple[Any, ...]]] = []

    class Recorder:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            overload = getattr(namespace(form), name).default

            def call(*arguments: Any) -> Any:
                calls.append((overload, tuple(copied(a) for a in arguments)))
                return overload(*arguments)

            return call

    monkeypatch.setattr("oarlock.ops.library.namespace", lambda form: Recorder())
    run(operator, case, form, torch.float32)
    assert calls
    for overload, arguments in calls:
        if all_finite(arguments):  # it takes NaN for unequal to itself
            torch.library.opcheck(overload, arguments)


def all_finite(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(all_finite, value))
    return not isinstance(value, Tensor) or bool(value.isfinite().all())


def copied(value: Any) -> Any:
    if isinstance(value, list):
        return [copied(x) for x in value]
    return value.detach().clone() if isinstance(value, Tensor) else value


@pytest.mark.parametrize("operator", [pytest.param(operator, id=name) for name, operator in OPERATOR_CASES.items()])
@every_dtype
@every_form
def test_is_captured_whole(operator: OperatorCases, form: str, dtype: torch.dtype) -> None:
    """One case of each operator, compiled with its backward pass: no graph break, and the same bits."""
    case = next(case for case in reversed(operator.cases) if not case.benchmark)
    torch._dynamo.reset()
    function = partial(operator.function, form=form)

    def compiled(**inputs: Any) -> Any:
        return torch.compile(function, fullgraph=True, backend="aot_eager")(**inputs)

    assert equal_bits(results(operator, compiled, case.inputs(CPU, dtype)), run(operator, case, form, dtype))


def test_a_wrong_result_is_noticed() -> None:
    operator = OPERATOR_CASES["bias_gelu"]
    case = operator.cases[2]

    def wrong(**inputs: Any) -> Tensor:
        return operator.function(**inputs) * (1 + 1e-3)

    with pytest.raises(RuntimeError, match=r"result 0 in torch\.float32 is .* times its tolerance"):
        check_equal(operator, case, wrong, CPU, torch.float32)


def test_every_operator_is_timed_on_some_case() -> None:
    assert all(any(case.benchmark for case in operator.cases) for operator in OPERATOR_CASES.values())


def test_inputs_are_the_same_each_time() -> None:
    def flat(inputs: Inputs) -> list[Tensor]:
        return [x for v in inputs.values() for x in (v if isinstance(v, list) else [v]) if isinstance(x, Tensor)]

    for operator in OPERATOR_CASES.values():
        for case in operator.cases[:3]:
            pairs = zip(flat(case.inputs(CPU, torch.float32)), flat(case.inputs(CPU, torch.float32)), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)
