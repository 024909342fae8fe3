"""PyTorch's operators on lists of tensors (`_foreach_*`), of which optimizers make a step: an operator for each element.

PyTorch calls one of them for all parameters, where it would call an operator for each, which takes it longer than GT.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from gt.client.tensor import call_site, emission_context

from .device_tensor import Rule

__all__ = ["PREFIX", "foreach"]

PREFIX: Final = "_foreach_"
_OVERLOADS: Final[dict[str, tuple[str, ...]]] = {
    "default": ("default",),
    "List": ("Tensor", "Tensor_Tensor", "default"),
    "Tensor": ("Tensor", "default"),
    "Scalar": ("Tensor_Scalar", "Scalar", "default"),
    "ScalarList": ("Tensor_Scalar", "Scalar", "default"),
    "ScalarAndTensor": ("Scalar",),
}
"""By an operator's overload, those that the operator of one tensor may have."""
_BY_NUMBER: Final = {"maximum": "clamp_min", "minimum": "clamp_max", "maximum_": "clamp_min_", "minimum_": "clamp_max_"}
"""What two of them are called where the other operand is a number."""
_OTHER_NAMES: Final = {"norm": "linalg_vector_norm"}
"""What an operator of one tensor is called where its name is another."""


def foreach(operator: Any, rule_of: Callable[[Any], Rule]) -> Rule | None:
    """How an operator on lists is computed; None for one of which there is no operator for the elements.

    `rule_of`: how an operator of tensors is.
    """
    name = operator._schema.name.removeprefix(f"aten::{PREFIX}")
    overload = operator._overloadname
    if overload.startswith("Scalar"):
        name = _BY_NUMBER.get(name, name)
    in_place = name.endswith("_")
    written = _element(name, overload)
    element = written or _element(_OTHER_NAMES.get(name, name.removesuffix("_")), overload)
    if element is None:
        return None
    rule = rule_of(element)
    copy = rule_of(torch.ops.aten.copy_.default) if in_place and written is None else None
    by_name = name.startswith(("addcmul", "addcdiv")) and overload != "default"

    def computed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        count = next(len(each) for each in args if isinstance(each, (list, tuple)))
        if by_name:  # the numbers follow the tensors here, and have a name there
            *args, values = args if len(args) > 3 else (*args, kwargs.get("value", kwargs.get("scalars", 1)))  # type: ignore[assignment]
            named = [{"value": each} for each in _for_each(values, count)]
        else:
            named = [kwargs] * count
        given = zip(*[_for_each(each, count) for each in args], strict=True)
        with _at_one_line():
            made = [rule(each, more) for each, more in zip(given, named, strict=True)]
            if copy is not None:
                for target, source in zip(args[0], made, strict=True):
                    copy((target, source), {})
        return None if in_place else made

    return computed


def _at_one_line() -> emission_context.using:
    """A context in which all instructions are of the program's line, which is so looked for once."""
    context = emission_context.current()
    if context.site is not None:
        return emission_context.using(context)
    return emission_context.with_changes(site=call_site.site_of(call_site.user_frame(sys._getframe(1))))


def _for_each(given: Any, count: int) -> list[Any]:
    """What each element has of an argument."""
    if isinstance(given, (list, tuple)):
        return list(given)
    if isinstance(given, torch.Tensor) and given.dim():
        return given.tolist()  # type: ignore[no-any-return]
    return [given] * count


def _element(name: str, overload: str) -> Any:
    """The operator of one tensor."""
    packet = getattr(torch.ops.aten, name, None)
    for each in _OVERLOADS.get(overload, ()):
        if packet is not None and each in packet.overloads():
            return getattr(packet, each)
    return None
