"""An instruction's attributes: what shapes and plans depend on, such as axes and dtypes, and how they cross the wire."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from gt.errors import DTypeError, ProtocolError, ShapeError

from .dtypes import BY_SHORT, DType
from .ops import OPS
from .spec import MAX_DIMENSIONS, MAX_ELEMENTS

Attributes = dict[str, Any]
MAX_SHOWN_LENGTH: Final = 80
"""Characters of a wrong attribute in the error about it."""


def _ints(value: object, low: int, high: int) -> tuple[int, ...]:
    if not (isinstance(value, (list, tuple)) and len(value) <= MAX_DIMENSIONS):
        raise ShapeError(f"at most {MAX_DIMENSIONS} integers, not {_shown(value)}")
    if not all(type(item) is int and low <= item <= high for item in value):
        raise ShapeError(f"integers from {low} to {high}, not {_shown(value)}")
    return tuple(value)


def _shown(value: object) -> str:
    """The beginning of what a value looks like, without a look at all of a long one."""
    shown = value[: MAX_DIMENSIONS + 1] if isinstance(value, (list, tuple, str, bytes)) else value
    text = repr(shown)
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}…"


def _int(value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ShapeError(f"an integer from {low} to {high}, not {_shown(value)}")
    return value


def _axes(value: object) -> tuple[int, ...]:
    axes = _ints(value, 0, MAX_DIMENSIONS - 1)
    if list(axes) != sorted(set(axes)):
        raise ShapeError(f"axes in order, each once, not {axes}")
    return axes


def _shape(value: object) -> tuple[int, ...]:
    shape = _ints(value, 0, MAX_ELEMENTS)
    if math.prod(shape) > MAX_ELEMENTS:
        raise ShapeError(f"a shape of at most {MAX_ELEMENTS} elements, not {shape}")
    return shape


def _dtype(value: object) -> DType:
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in BY_SHORT:
        return BY_SHORT[value]
    raise DTypeError(f"a dtype, not {_shown(value)}")


def _bool(value: object) -> bool:
    if type(value) is bool:
        return value
    raise DTypeError(f"True or False, not {_shown(value)}")


ATTRIBUTE_KINDS: Final[dict[str, Callable[[object], Any]]] = {
    "axes": _axes,
    "axis": lambda value: _int(value, 0, MAX_DIMENSIONS - 1),
    "shape": _shape,
    "size": lambda value: _int(value, 0, MAX_ELEMENTS),
    "sizes": lambda value: _ints(value, 0, MAX_ELEMENTS),
    "steps": lambda value: _ints(value, -MAX_ELEMENTS, MAX_ELEMENTS),
    "dtype": _dtype,
    "bool": _bool,
}


def check_attributes(name: str, raw: Mapping[Any, object]) -> Attributes:
    """Attributes in the order of the op's declaration, as a client gives them or as they come from the wire.

    Raises `ShapeError` for numbers that are none or out of range, `DTypeError` for what is no dtype and neither true nor
    false, `ProtocolError` where attributes are missing or of another op.
    """
    kinds = OPS[name].attributes
    if raw.keys() != kinds.keys():
        raise ProtocolError(f"{name} has attributes {sorted(kinds)}, not {_shown(sorted(map(str, raw)))}")
    checked = {}
    for key, kind in kinds.items():
        try:
            checked[key] = ATTRIBUTE_KINDS[kind](raw[key])
        except (ShapeError, DTypeError) as error:
            raise type(error)(f"{name}: {key}: {error}") from None
    return checked


def pack_attributes(attributes: Attributes) -> Attributes:
    """Attributes as the wire carries them: dtypes by their short names, tuples as lists."""
    return {
        key: value.short if isinstance(value, DType) else list(value) if isinstance(value, tuple) else value
        for key, value in attributes.items()
    }
