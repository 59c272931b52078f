"""Define an operator's schema, register its device forms, and ask which form serves.

An operator is defined twice: in the namespace `oarlock`, where a device form overrides the reference, and in
`oarlock_reference`, where the reference serves every device. Which of the two a model uses is resolved when it is
built and passed down as an argument, so nothing is switched while it runs.

The reference is registered as CompositeExplicitAutograd: it then answers fake tensors too and needs no separate
shape function. Autograd sits outside, in a `torch.autograd.Function` around the forward and backward operators.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

FORMS = ("auto", "reference")

_fast = torch.library.Library("oarlock", "DEF")
_plain = torch.library.Library("oarlock_reference", "DEF")
_device_forms: dict[str, set[str]] = {}


def define(name: str, schema: str, reference: Callable[..., Any]) -> None:
    """Define operator `name` with `schema` (arguments and results, without the name) and its reference form."""
    for library in (_fast, _plain):
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, reference, "CompositeExplicitAutograd")


def register_form(name: str, device: str, form: Callable[..., Any]) -> None:
    """Register the form of operator `name` for tensors on `device` (`cpu` or `cuda`)."""
    _fast.impl(name, form, device.upper())
    _device_forms.setdefault(name, set()).add(device)


def namespace(form: str) -> Any:
    """The operators of a form: `torch.ops.oarlock` or `torch.ops.oarlock_reference`."""
    return {"auto": torch.ops.oarlock, "reference": torch.ops.oarlock_reference}[form]


def serving_form(name: str, choice: str, device: torch.device) -> str:
    """Name of the form that serves operator `name` on `device`: the device's own, or `reference`."""
    own = choice == "auto" and device.type in _device_forms.get(f"{name}_forward", ())
    return device.type if own else "reference"


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


def apply(function: type[torch.autograd.Function], *arguments: Any) -> torch.Tensor:
    """Call an autograd function of one result (torch leaves `apply` untyped)."""
    out: torch.Tensor = function.apply(*arguments)
    return out
