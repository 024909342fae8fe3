"""Composition: gives the class `Tensor` its methods, and emission its gradient rules.

Tensors, emission and the tape are below the functions that are composed of them, and so know neither methods nor rules. This
is the one place that knows both; no module registers itself. einops hears of the class here, too. `gt.client` imports it first.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from gt.client.autograd.rules.gradient_table import GRADIENTS
from gt.client.tensor import emission
from gt.client.tensor.tensor import Tensor
from gt.client.tensor_api import einops_backend
from gt.client.tensor_api.function_methods import function_methods
from gt.client.tensor_api.inplace_methods import InPlace
from gt.client.tensor_api.methods import Methods
from gt.client.tensor_api.operators import Operators
from gt.client.tensor_api.protocols import Protocols
from gt.client.tensor_api.tape_methods import TapeMethods

from . import array_api

METHOD_CLASSES: Final = (Methods, InPlace, Operators, TapeMethods, Protocols)
"""The classes with the methods that are written by hand. No name is in two of them, or in the table of functions."""
ARRAY_API_VERSIONS: Final = (None, "2021.12", "2022.12", "2023.12", array_api.__array_api_version__)

NOT_METHODS: Final = frozenset({"__annotations__", "__dict__", "__doc__", "__module__", "__slots__", "__weakref__"})
"""What every class has."""


def array_namespace(self: Tensor, /, *, api_version: str | None = None) -> ModuleType:
    """The Array API's functions, `gt.array_api`. Raises `ValueError` for a version that it does not keep."""
    if api_version not in ARRAY_API_VERSIONS:
        raise ValueError(f"gt.array_api keeps version {array_api.__array_api_version__}, not {api_version}")
    return array_api


def bind_methods() -> None:
    """Give `Tensor` the methods of the table of functions and those of `METHOD_CLASSES`."""
    bound: dict[str, Any] = {"__array_namespace__": array_namespace, **dict(function_methods())}
    for methods in METHOD_CLASSES:
        bound.update((name, method) for name, method in vars(methods).items() if name not in NOT_METHODS)
    bound["__hash__"] = object.__hash__
    for name, method in bound.items():
        setattr(Tensor, name, method)


bind_methods()
einops_backend.register()
emission.GRADIENT_RULES.update(GRADIENTS)
