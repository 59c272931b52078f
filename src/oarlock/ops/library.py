"""Define an operator's schema, register its device forms, and ask which form serves.

An operator is defined twice: in the namespace `oarlock`, where a device form overrides the reference, and in
`oarlock_reference`, where the reference serves every device. Which of the two a model uses is resolved when it is
built and passed down as an argument, so nothing is switched while it runs.

The reference is registered as CompositeExplicitAutograd: it then answers fake tensors too and needs no separate
shape function. Autograd sits outside, in a `torch.autograd.Function` around the forward and backward operators.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

FORMS = ("auto", "reference")

_fast = torch.library.Library("oarlock", "DEF")
_plain = torch.library.Library("oarlock_reference", "DEF")
_device_forms: dict[tuple[str, str], str] = {}
_device_kernels: dict[tuple[str, str], dict[str, Callable[..., Any]]] = {}


def define(name: str, schema: str, reference: Callable[..., Any]) -> None:
    """Define operator `name` with `schema` (arguments and results, without the name) and its reference form."""
    for library in (_fast, _plain):
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, reference, "CompositeExplicitAutograd")


def register_form(operator: str, device: str, form: str, kernels: Mapping[str, Callable[..., Any]]) -> None:
    """Register a form of `operator`, by the name that reports show, for tensors on `device` (`cpu` or `cuda`).

    `kernels` are the functions behind what `define` named, as `attention_forward`.
    """
    for name, kernel in kernels.items():
        _fast.impl(name, kernel, device.upper())
    _device_forms[operator, device] = form
    _device_kernels[operator, device] = dict(kernels)


def register_cuda(operator: str, form: str, kernels: Mapping[str, str]) -> None:
    """Register `oarlock.ops.<operator>.cuda` as a form; the module is imported when a CUDA tensor first asks.

    `kernels` names the module's function behind each operator. torch brings the package `triton` on Linux alone: where
    it is missing, the forms of that name are not registered.
    """
    if form != "triton" or find_spec("triton") is not None:
        home = f"oarlock.ops.{operator}.cuda"
        register_form(
            operator, "cuda", form, {name: _imported_at_call(home, function) for name, function in kernels.items()}
        )


def device_kernels(operator: str, device: str) -> dict[str, Callable[..., Any]]:
    """What `operator` has registered for `device`, by the names that `define` gave; empty where nothing is."""
    return _device_kernels.get((operator, device), {})


def _imported_at_call(module: str, function: str) -> Callable[..., Any]:
    def kernel(*arguments: Any) -> Any:
        first = arguments[0][0] if isinstance(arguments[0], list) else arguments[0]
        assert isinstance(first, Tensor)
        with torch.cuda.device_of(first):  # a kernel starts on the current device
            return getattr(import_module(module), function)(*arguments)

    return kernel


def namespace(form: str) -> Any:
    """The operators of a form: `torch.ops.oarlock` or `torch.ops.oarlock_reference`."""
    return {"auto": torch.ops.oarlock, "reference": torch.ops.oarlock_reference}[form]


def serving_form(operator: str, choice: str, device: torch.device) -> str:
    """Name of the form that serves `operator` on `device`: the device's own, or `reference`."""
    return _device_forms.get((operator, device.type), "reference") if choice == "auto" else "reference"


def check_choices(choices: Mapping[str, str], operators: tuple[str, ...]) -> None:
    """Refuse a recipe that names an unknown operator or form.

    Raises:
        ValueError: naming what is known.
    """
    for name, form in choices.items():
        if name not in operators:
            raise ValueError(f"ops.{name} is no operator; there are {', '.join(operators)}")
        if form not in FORMS:
            raise ValueError(f"ops.{name}={form!r} is no form; there are {', '.join(FORMS)}")


def is_symbolic(tensor: Tensor) -> bool:
    """Whether a size of the tensor is a symbol: a compiler is asking for shapes, and a loop over it would fix them."""
    return not all(isinstance(size, int) for size in tensor.shape)


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Call an autograd function (torch leaves `apply` untyped)."""
    return function.apply(*arguments)
