"""The standard's functions of dtypes: casts, promotion, kinds, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gt.client.tensor.operands import cast, clone
from gt.client.tensor.tensor import Tensor
from gt.ir import dtype_limits
from gt.ir.dtypes import DType, as_dtype
from gt.ir.dtypes import result_type as meeting

__all__ = ["astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]

KINDS: Final[dict[str, Callable[[DType], bool]]] = {
    "bool": lambda dtype: dtype.kind == "b",
    "signed integer": lambda dtype: dtype.kind == "i" and dtype.is_signed,
    "unsigned integer": lambda dtype: dtype.kind == "i" and not dtype.is_signed,
    "integral": lambda dtype: dtype.kind == "i",
    "real floating": lambda dtype: dtype.kind == "f",
    "complex floating": lambda dtype: dtype.kind == "c",
    "numeric": lambda dtype: dtype.kind in "ifc",
}
"""The standard's names of groups of dtypes."""


def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """The values in another dtype; without `copy` the tensor itself when it has that dtype already."""
    out = cast(x, dtype)
    return clone(x) if out is x and copy else out


def _dtype(given: Any) -> DType:
    return given.dtype if isinstance(given, Tensor) else as_dtype(given)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether the dtype `to` holds whatever a tensor, or a tensor of a dtype, holds."""
    held, room = _dtype(from_), as_dtype(to)
    if held.kind + room.kind == "fc":
        return room.order >= held.order
    larger = room.order > held.order and (room.is_signed or not held.is_signed)
    return held is room or (held.kind == room.kind and larger)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype in which tensors, dtypes and Python's numbers meet. Numbers count only when their kind is higher."""
    numbers = [given for given in arrays_and_dtypes if isinstance(given, (bool, int, float, complex))]
    dtypes = [_dtype(given) for given in arrays_and_dtypes if not isinstance(given, (bool, int, float, complex))]
    if not dtypes:
        raise ValueError("result_type takes at least one tensor or dtype")
    return meeting([(dtype, False) for dtype in dtypes], numbers)


def isdtype(dtype: DType, kind: Any) -> bool:
    """Whether a dtype is `kind`: a dtype, a group's name ('integral', 'real floating', …), or one of a tuple of them."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, each) for each in kind)
    if isinstance(kind, str) and kind in KINDS:
        return KINDS[kind](dtype)
    if isinstance(kind, DType):
        return dtype is kind
    raise ValueError(f"isdtype: {kind!r} is neither a dtype nor one of {', '.join(map(repr, KINDS))}")


class finfo(dtype_limits.finfo):  # noqa: N801  # the standard's name
    """The limits of floating-point numbers, of a dtype or a tensor's: `bits`, `eps`, `max`, `min`, `smallest_normal`, `dtype`."""

    __slots__ = ("dtype",)
    dtype: DType  # type: ignore[assignment]  # where PyTorch has its name

    def __init__(self, type: Any, /) -> None:
        super().__init__(_dtype(type))
        self.dtype = _dtype(type).to_real()


class iinfo(dtype_limits.iinfo):  # noqa: N801
    """The limits of integers, of a dtype or a tensor's: `bits`, `max`, `min`, `dtype`."""

    __slots__ = ("dtype",)
    dtype: DType  # type: ignore[assignment]

    def __init__(self, type: Any, /) -> None:
        super().__init__(_dtype(type))
        self.dtype = _dtype(type)
