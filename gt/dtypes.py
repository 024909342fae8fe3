"""Data types and PyTorch's promotion rules.

A dtype is a small immutable object; `gt.float32` is one. Python scalars are weakly typed: they join a tensor
without changing its dtype unless their kind is higher (bool < int < float).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from .errors import DTypeError

Scalar = bool | int | float


class DType:
    """One data type: `name` as in PyTorch, `short` as printed (`f32`), `numpy` for kernels, `kind` in 'bif'."""

    __slots__ = ("itemsize", "kind", "name", "numpy", "order", "short")

    def __init__(self, name: str, short: str, kind: str, order: int) -> None:
        self.name = name
        self.short = short
        self.kind = kind
        self.order = order
        self.numpy: np.dtype[np.generic] = np.dtype(name)
        self.itemsize = self.numpy.itemsize

    def __repr__(self) -> str:
        return f"gt.{self.name}"

    def __reduce__(self) -> str:
        return self.name if self.name != "bool" else "bool_"

    @property
    def is_floating_point(self) -> bool:
        return self.kind == "f"


bool_: Final = DType("bool", "bool", "b", 0)
uint8: Final = DType("uint8", "u8", "i", 1)
int8: Final = DType("int8", "i8", "i", 1)
int16: Final = DType("int16", "i16", "i", 2)
int32: Final = DType("int32", "i32", "i", 3)
int64: Final = DType("int64", "i64", "i", 4)
float16: Final = DType("float16", "f16", "f", 1)
float32: Final = DType("float32", "f32", "f", 2)
float64: Final = DType("float64", "f64", "f", 3)

ALL: Final = (bool_, uint8, int8, int16, int32, int64, float16, float32, float64)
BY_SHORT: Final = {dtype.short: dtype for dtype in ALL}
BY_NAME: Final = {dtype.name: dtype for dtype in ALL}
_BY_NUMPY: Final = {dtype.numpy: dtype for dtype in ALL}
_KIND_ORDER: Final = {"b": 0, "i": 1, "f": 2}
_default: list[DType] = [float32]


def get_default_dtype() -> DType:
    """The floating dtype of creation functions and of Python floats that meet integers: float32 unless set."""
    return _default[0]


def set_default_dtype(dtype: object) -> None:
    """Set the default floating dtype. Raises `DTypeError` for a dtype that is not floating."""
    chosen = as_dtype(dtype)
    if chosen.kind != "f":
        raise DTypeError(f"set_default_dtype: {chosen} is not a floating-point dtype")
    _default[0] = chosen


def as_dtype(value: object) -> DType:
    """A `DType` from a `DType`, a Python type (`bool`, `int`, `float`), a name, or anything NumPy takes as a dtype."""
    if isinstance(value, DType):
        return value
    if value is float:
        return get_default_dtype()
    if value is int:
        return int64
    if isinstance(value, str) and value in BY_SHORT:
        return BY_SHORT[value]
    try:
        found = _BY_NUMPY.get(np.dtype(value).newbyteorder("="))  # type: ignore[call-overload]
    except TypeError:
        found = None
    if found is None:
        allowed = ", ".join(dtype.name for dtype in ALL)
        raise DTypeError(f"{value!r} is not a dtype of GT; allowed: {allowed}")
    return found


def promote(a: DType, b: DType) -> DType:
    """The dtype of `a op b` for two dtypes of equal rank: PyTorch's lattice (kind first, then size; u8 with i8 is i16)."""
    if a is b:
        return a
    if _KIND_ORDER[a.kind] != _KIND_ORDER[b.kind]:
        return a if _KIND_ORDER[a.kind] > _KIND_ORDER[b.kind] else b
    if a.order != b.order:
        return a if a.order > b.order else b
    return int16


def result_type(tensors: list[tuple[DType, bool]], scalars: list[Scalar]) -> DType:
    """PyTorch's result type. `tensors` are (dtype, is zero-dimensional); `scalars` Python numbers.

    Dimensioned tensors decide; zero-dimensional ones, then Python scalars, count only when their kind is higher.
    """
    dimensioned: DType | None = None
    zero_dim: DType | None = None
    for dtype, is_zero_dim in tensors:
        if is_zero_dim:
            zero_dim = dtype if zero_dim is None else promote(zero_dim, dtype)
        else:
            dimensioned = dtype if dimensioned is None else promote(dimensioned, dtype)
    weak: DType | None = None
    for scalar in scalars:
        dtype = bool_ if isinstance(scalar, bool) else int64 if isinstance(scalar, int) else get_default_dtype()
        weak = dtype if weak is None else promote(weak, dtype)
    result = dimensioned
    for candidate in (zero_dim, weak):
        if candidate is None:
            continue
        if result is None or _KIND_ORDER[candidate.kind] > _KIND_ORDER[result.kind]:
            result = candidate
    assert result is not None, "result_type needs at least one operand"
    return result


def scalar_kind(value: object) -> str:
    """'b', 'i' or 'f' for a Python (or NumPy) scalar. Raises `DTypeError` for anything else."""
    if isinstance(value, (bool, np.bool_)):
        return "b"
    if isinstance(value, (int, np.integer)):
        return "i"
    if isinstance(value, (float, np.floating)):
        return "f"
    raise DTypeError(f"{value!r} ({type(value).__name__}) is not a bool, int or float")


def check_scalar_fits(value: Scalar, dtype: DType, op: str) -> None:
    """Raise `DTypeError` when the integer `value` does not fit `dtype`: an overflow would change the number silently."""
    if (
        dtype.kind == "i"
        and not isinstance(value, bool)
        and not (isinstance(value, float) and not math.isfinite(value))
    ):
        info = np.iinfo(dtype.name)
        if not info.min <= value <= info.max:
            raise DTypeError(f"{op}: {value} does not fit {dtype} ({info.min} to {info.max})")
