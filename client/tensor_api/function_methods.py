"""The methods that are public functions, and the in-place forms of those: what `gt.public_api.function_table` declares.

A method is the function itself, which gets the tensor as its first argument. An in-place form binds the tensor to what the
function returns; views of the tensor, and what it is a view of, see the new value too (`gt.client.tensor.views`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, wraps
from importlib import import_module
from typing import Any

from gt.client.tensor.operands import cast, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.public_api.function_table import FUNCTIONS

__all__ = ["function_methods"]

Method = Callable[..., Tensor]


def function_methods() -> Iterator[tuple[str, Method]]:
    """Every method that a row declares, with its name."""
    for module, rows in FUNCTIONS.items():
        for row in rows:
            if row.method or row.in_place:
                function = getattr(import_module(module), row.defined_as or row.name)
                if row.tensors == "both":
                    function = with_tensor(function)
                if row.method:
                    yield row.name, function
                if row.in_place:
                    yield f"{row.name}_", (cast_in_place if row.in_place == "cast" else in_place)(function)


@cache
def with_tensor(function: Method) -> Method:
    """The method of a function of two operands that takes no number for the other one."""
    name = function.__name__

    def method(self: Tensor, other: Any) -> Tensor:
        return function(self, other if isinstance(other, Tensor) else tensor_of(name, other))

    return wraps(function)(method)


@cache  # functions that are one under two names have one in-place form
def in_place(function: Method) -> Method:
    """The method that writes what a function returns to its first argument."""
    name = f"{function.__name__}_"

    def method(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return self._write(name, function(self, *args, **options))

    return _described(method, name, function)


@cache
def cast_in_place(function: Method) -> Method:
    """As `in_place`, for a function that returns true or false: written in the dtype that the tensor has."""
    name = f"{function.__name__}_"

    def method(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return self._write(name, cast(function(self, *args, **options), self.dtype))

    return _described(method, name, function)


def _described(method: Method, name: str, function: Method) -> Method:
    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"In place: {function.__doc__}"
    method.__wrapped__ = function  # type: ignore[attr-defined]  # whose signature it has
    return method
