"""The CUDA form of every operator, by Triton's interpreter on CPU tensors, on every case of the registry that it can do
in seconds; `bench/gpu.sh` runs all of them on a GPU. One process interprets, and one builds kernels for a GPU: see
`oarlock.testing.triton`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from oarlock.ops import OPERATORS
from oarlock.ops.case import Case, Inputs
from oarlock.ops.cases import OPERATOR_CASES
from oarlock.ops.library import device_kernels, serving_form
from oarlock.testing.triton import BUILT, EQUAL

GPU = torch.device("cuda")
MOST_ROWS, MOST_ELEMENTS = 2_000, 1_000_000

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed; it is for Linux only")


def inputs(case: Case) -> Inputs:
    return case.inputs(torch.device("cpu"), torch.float32)


def is_large(case: Case) -> bool:
    tensors = [
        x
        for value in inputs(case).values()
        for x in (value if isinstance(value, list) else [value])
        if isinstance(x, Tensor)
    ]
    return any(x.numel() > MOST_ELEMENTS or (x.ndim > 0 and x.shape[0] > MOST_ROWS) for x in tensors)


CASES = [
    pytest.param(name, number, id=f"{name}-{case.name}")
    for name, operator in OPERATOR_CASES.items()
    for number, case in enumerate(operator.cases)
    if not case.benchmark and not (serving_form(name, "auto", GPU) == "triton" and is_large(case))
]


@pytest.fixture(scope="module")
def interpreter() -> Iterator[subprocess.Popen[str]]:
    with process(TRITON_INTERPRET="1") as interpreter:
        yield interpreter


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    with process(TRITON_CACHE_DIR=str(tmp_path_factory.mktemp("triton"))) as builder:
        yield builder


@contextmanager
def process(**environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "ignore", "-m", "oarlock.testing.triton"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        yield started
        assert started.stdin
        started.stdin.close()


def ask(process: subprocess.Popen[str], *question: Any) -> str:
    assert process.stdin
    assert process.stdout
    print(json.dumps(question), file=process.stdin, flush=True)
    answer: str = json.loads(process.stdout.readline())
    return answer


@pytest.mark.parametrize(("name", "number"), CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_equals_the_reference(interpreter: subprocess.Popen[str], name: str, number: int, dtype: str) -> None:
    answer = ask(interpreter, name, number, dtype)
    assert answer == EQUAL, answer


@pytest.mark.parametrize("name", OPERATORS)
def test_is_built_for_a_gpu(builder: subprocess.Popen[str], name: str) -> None:
    """What the interpreter runs need not compile. The last case, and the last with dropout."""
    numbers = [number for case, number in (param.values for param in CASES) if case == name]
    dropping = [number for number in numbers if inputs(OPERATOR_CASES[name].cases[number]).get("dropout")]
    for number in (numbers[-1], *dropping[-1:]):
        answer = ask(builder, name, number, "bfloat16")
        assert answer == BUILT, answer


def test_a_wrong_question_is_not_answered_with_equal(interpreter: subprocess.Popen[str]) -> None:
    assert "AttributeError" in ask(interpreter, "bias_gelu", 1, "no dtype")


def test_most_cases_of_every_operator_are_run() -> None:
    for name, operator in OPERATOR_CASES.items():
        run = sum(case.values[0] == name for case in CASES)
        assert run >= 0.7 * sum(not case.benchmark for case in operator.cases)


def test_every_operator_has_a_cuda_form_and_imports_it_when_asked() -> None:
    for name in OPERATORS:
        assert serving_form(name, "auto", GPU) != "reference"
        assert device_kernels(name, "cuda")
    code = "import sys, oarlock.ops; sys.exit('triton' in sys.modules or 'oarlock.ops.linear.cuda' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
