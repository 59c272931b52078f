"""The compiled CPU kernels, where the installation could build them.

`setup.py` compiles every operator's `cpu.cpp` once for each level of instructions; the best that this machine has is
loaded. The library knows nothing of torch: it takes pointers and sizes, and shares torch's OpenMP threads, so torch
must have been imported before. Without a compiler at installation there is no library, and operators fall back.
"""

import ctypes
import functools
import platform
from collections.abc import Callable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library

LEVELS = ("amx", "avx512_bf16", "avx512", "avx2")
"""Names of the builds, best first; `setup.py` tells what each may use."""

DTYPES = (torch.float32, torch.bfloat16)
"""What the kernels compute with."""


@functools.cache
def level() -> str | None:
    """The build that is loaded, or None where there is none for this machine."""
    return next((name for name in LEVELS if runs(name) and _path(name) is not None), None)


def runs(name: str) -> bool:
    """Whether this processor has the instructions of a level."""
    cpu = torch.cpu
    if name in ("amx", "avx512_bf16") and not cpu._is_avx512_bf16_supported():
        return False
    if name == "amx":
        return bool(cpu._is_amx_tile_supported() and cpu._init_amx())
    capability = torch.backends.cpu.get_cpu_capability()
    return platform.machine() == "x86_64" and capability in (("AVX2", "AVX512") if name == "avx2" else ("AVX512",))


def multiplies_tiles() -> bool:
    """Whether that build has matrix products in bf16 (`tiles.h`), and attention with them."""
    return level() in ("amx", "avx512_bf16")


def kernel(name: str, signature: str) -> Callable[..., None]:
    """The kernel `oarlock_<name>`, loaded when it is first called; call it only where `level()` is not None.

    `signature` has a letter an argument: `t` a contiguous tensor on the CPU, or None; `l` a list of them; `i` an
    integer; `f` a floating-point number. Kernels see them as `void*`, `void**`, `int64_t` and `double`.
    """

    @functools.cache
    def load() -> Any:
        try:
            function = getattr(_library(), f"oarlock_{name}")
        except AttributeError:
            raise RuntimeError(
                f"the compiled kernels in {Path(__file__).parent} are older than the code; install the package again"
            ) from None
        function.argtypes = [_ARGUMENTS[letter] for letter in signature]
        function.restype = None
        return function

    return lambda *arguments: load()(*arguments)


def register(operator: str, kernels: Mapping[str, Callable[..., Any]]) -> None:
    """Register the compiled form of an operator for CPU tensors, where there is one; else the reference serves."""
    if level() is not None:
        library.register_form(operator, "cpu", f"compiled ({level()})", kernels)


def demand(fits: bool, what: str) -> None:
    """Raises ValueError where arguments do not fit each other: a kernel would read what is not theirs."""
    if not fits:
        raise ValueError(what)


def serves(*tensors: Tensor) -> bool:
    """Whether kernels compute with tensors of these types: all fp32, or all bf16."""
    return tensors[0].dtype in DTYPES and all(tensor.dtype == tensors[0].dtype for tensor in tensors)


class _TensorArgument:
    @classmethod
    def from_param(cls, tensor: Tensor | None) -> ctypes.c_void_p:
        assert tensor is None or tensor.is_contiguous()
        return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


class _ListArgument:
    @classmethod
    def from_param(cls, tensors: list[Tensor]) -> Any:
        assert all(tensor.is_contiguous() for tensor in tensors)
        return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


_ARGUMENTS: dict[str, Any] = {"t": _TensorArgument, "l": _ListArgument, "i": ctypes.c_int64, "f": ctypes.c_double}


@functools.cache
def _library() -> ctypes.CDLL:
    name = level()
    assert name is not None
    return ctypes.CDLL(str(_path(name)))


def _path(name: str) -> Path | None:
    paths = (Path(__file__).parent / f"_{name}{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.exists()), None)
