"""The CUDA forms on CPU tensors, by Triton's interpreter.

`python -m oarlock.testing.triton` is a process that compares them with the references, case by case: triton makes
kernels for its interpreter, or for a GPU, when they are defined, so `TRITON_INTERPRET` must be set before it is first
imported, and nothing else in that process can use it otherwise. Without it the process builds the kernels that a case
launches for a Hopper GPU, which needs none, and compares nothing.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oarlock.ops import OPERATORS
from oarlock.ops.cases import OPERATOR_CASES
from oarlock.ops.compare import check_equal, results
from oarlock.ops.library import device_kernels

EQUAL, BUILT = "equal", "built"
CPU = torch.device("cpu")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@contextmanager
def cuda_forms_on_cpu() -> Iterator[None]:
    """Have the CUDA form of every operator serve CPU tensors, in place of the form that does.

    Kernels are interpreted; or, without `TRITON_INTERPRET`, built and not launched.
    """
    override = torch.library.Library("oarlock", "IMPL")
    with ExitStack() as stack:
        stack.callback(override._destroy)
        for operator in OPERATORS:
            for name, kernel in device_kernels(operator, "cuda").items():
                override.impl(name, kernel, "CPU", allow_override=True)
        stack.enter_context(_repaired_interpreter() if INTERPRETED else _built_for_hopper())
        # What torch has for CUDA alone.
        stack.enter_context(patch("oarlock.ops.linear.cuda.product", _product))
        stack.enter_context(patch("oarlock.ops.lamb.cuda._on_device", _on_device))
        if INTERPRETED:  # fewer, larger blocks: the interpreter takes as long for a small one
            for blocks in ("FORWARD", "BACKWARD", "WIDE"):
                stack.enter_context(patch(f"oarlock.ops.attention.cuda.{blocks}", (128, 128, 1, 1)))
        yield


def serve() -> None:
    """Read `[operator, case's number, dtype]` lines, and answer each with EQUAL or BUILT, or what is wrong, as JSON."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    with cuda_forms_on_cpu():
        for line in sys.stdin:
            name, number, dtype = json.loads(line)
            operator = OPERATOR_CASES[name]
            case, function = operator.cases[number], partial(operator.function, form="auto")
            try:
                if INTERPRETED:
                    check_equal(operator, case, function, CPU, getattr(torch, dtype))
                else:
                    results(operator, function, case.inputs(CPU, getattr(torch, dtype)))
                answer = EQUAL if INTERPRETED else BUILT
            except Exception:
                answer = traceback.format_exc()
            print(json.dumps(answer), file=answers, flush=True)


def _product(a: Tensor, b: Tensor) -> Tensor:
    return a.float() @ b.float()


def _on_device(values: list[int] | list[list[int]] | Tensor, device: torch.device) -> Tensor:
    return torch.as_tensor(values, device=device)


@contextmanager
def _repaired_interpreter() -> Iterator[None]:
    """Repairs of triton 3.6: the bounds of a loop may be tensors, which numpy 2.4 refuses to make integers of; products
    of bf16 are those of the numbers, where it multiplies the integers that hold their bits; and fp32 becomes bf16, and
    bf16 fp32, by a shift, where it takes numbers apart.
    """
    from triton import language
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor
    create_dot = interpreter.InterpreterBuilder.create_dot
    convert = interpreter._convert_float

    def patched_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return create_dot(self, widened(a), widened(b), *rest)

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != language.bfloat16:
            return handle
        return interpreter.TensorHandle(_widened(handle.data), language.float32)

    def converted(data: Any, before: Any, after: Any, rounding: Any) -> Any:
        if (before, after) == (language.bfloat16, language.float32):
            return _widened(data).view(np.uint32)
        if (before, after) == (language.float32, language.bfloat16):
            return _narrowed(data)
        return convert(data, before, after, rounding)

    with (
        patch.object(interpreter, "_patch_lang_tensor", patched_tensor),
        patch.object(interpreter.InterpreterBuilder, "create_dot", dot),
        patch.object(interpreter, "_convert_float", converted),
    ):
        yield


@contextmanager
def _built_for_hopper() -> Iterator[None]:
    """Have a launch build its kernel for compute capability 9.0, down to machine code, and no more."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver, jit

    run = jit.JITFunction.run

    class Absent:
        """What triton asks of a driver before it launches."""

        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device: 0)

    def build(self: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
        return run(self, *arguments, grid=grid, warmup=True, **constants)

    driver.set_active(Absent())
    with patch.object(jit.JITFunction, "run", build):
        yield
    driver.reset_active()


def _widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _narrowed(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """To the nearest, ties to even."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(numbers), np.uint16(0x7FC0), rounded)


if __name__ == "__main__":
    serve()
