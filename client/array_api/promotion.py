"""How operands meet in the Array API: by their dtypes alone, where in PyTorch tensors without dimensions count less."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any

from gt.client.tensor.operands import cast
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError
from gt.ir.dtypes import promote

Function = Callable[..., Any]


def common(name: str, *operands: Any) -> tuple[Any, ...]:
    """Tensors in the one dtype in which all of them meet; Python's numbers stay, and take it where they are used."""
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    if not tensors:
        raise DTypeError(f"{name} takes at least one tensor")
    dtype = reduce(promote, [tensor.dtype for tensor in tensors])
    return tuple(cast(operand, dtype) if isinstance(operand, Tensor) else operand for operand in operands)


def both(function: Function) -> Function:
    """A function of two operands that meet as the standard says."""

    @wraps(function)
    def met(x1: Any, x2: Any, /) -> Tensor:
        out: Tensor = function(*common(function.__name__, x1, x2))
        return out

    del met.__wrapped__  # its signature is not this one's
    return met
