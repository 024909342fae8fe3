"""An instruction's attributes: what shapes and plans depend on, such as axes and dtypes, and how they cross the wire."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from gt.errors import ProtocolError

from .dtypes import BY_SHORT, DType
from .ops import OPS
from .spec import MAX_DIMENSIONS, MAX_ELEMENTS

Attributes = dict[str, Any]


def _ints(value: object, low: int, high: int) -> tuple[int, ...]:
    if not (isinstance(value, (list, tuple)) and len(value) <= MAX_DIMENSIONS):
        raise ProtocolError(f"an attribute is a list of at most {MAX_DIMENSIONS} integers")
    if not all(type(item) is int and low <= item <= high for item in value):
        raise ProtocolError(f"an attribute's integers lie from {low} to {high}")
    return tuple(value)


def _axes(value: object) -> tuple[int, ...]:
    axes = _ints(value, 0, MAX_DIMENSIONS - 1)
    if list(axes) != sorted(set(axes)):
        raise ProtocolError("axes are sorted and distinct")
    return axes


def _axis(value: object) -> int:
    return _ints([value], 0, MAX_DIMENSIONS - 1)[0]


def _shape(value: object) -> tuple[int, ...]:
    shape = _ints(value, 0, MAX_ELEMENTS)
    if math.prod(shape) > MAX_ELEMENTS:
        raise ProtocolError(f"a shape has at most {MAX_ELEMENTS} elements")
    return shape


def _dtype(value: object) -> DType:
    if isinstance(value, str) and value in BY_SHORT:
        return BY_SHORT[value]
    raise ProtocolError(f"{value!r} is not a dtype")


def _bool(value: object) -> bool:
    if type(value) is bool:
        return value
    raise ProtocolError(f"{value!r} is not true or false")


_ATTRIBUTE_KINDS: Final[dict[str, Callable[[object], Any]]] = {
    "axes": _axes,
    "axis": _axis,
    "shape": _shape,
    "size": lambda value: _ints([value], 0, MAX_ELEMENTS)[0],
    "sizes": lambda value: _ints(value, 0, MAX_ELEMENTS),
    "steps": lambda value: _ints(value, -MAX_ELEMENTS, MAX_ELEMENTS),
    "dtype": _dtype,
    "bool": _bool,
}


def check_attributes(name: str, raw: dict[object, object]) -> Attributes:
    """Attributes from the wire, in the order of the op's declaration. Raises `ProtocolError` for any other form."""
    kinds = OPS[name].attributes
    if set(raw) != set(kinds):
        raise ProtocolError(f"{name} has attributes {sorted(kinds)}, not {sorted(map(str, raw))}")
    return {key: _ATTRIBUTE_KINDS[kind](raw[key]) for key, kind in kinds.items()}


def pack_attributes(attributes: Attributes) -> Attributes:
    """Attributes as the wire carries them: dtypes by their short names, tuples as lists."""
    return {
        key: value.short if isinstance(value, DType) else list(value) if isinstance(value, tuple) else value
        for key, value in attributes.items()
    }
