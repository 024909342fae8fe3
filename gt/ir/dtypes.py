"""Data types and PyTorch's promotion rules.

A dtype is a small immutable object; `gt.float32` is one. Python scalars are weakly typed: they join a tensor
without changing its dtype unless their kind is higher (bool < int < float < complex). What a dtype can hold
(`gt.finfo`, `gt.iinfo`) is in `gt/ir/dtype_limits.py`.
"""

from __future__ import annotations

import math
from typing import Final

import ml_dtypes
import numpy as np

from gt.errors import DTypeError

Scalar = bool | int | float | complex

KINDS: Final = "bifc"
"""Kinds of dtypes and of scalars, lowest first: booleans, integers, floating-point and complex numbers."""


class DType:
    """A data type: `name` as in PyTorch, `short` as printed (`f32`), `numpy` for kernels, `kind` one of `KINDS`.

    `order` ranks the dtypes of one kind: a later one can hold every value of an earlier one. Use `kind` instead of
    NumPy's, which is 'V' for bfloat16.
    """

    __slots__ = ("itemsize", "kind", "name", "numpy", "order", "short")

    def __init__(self, name: str, short: str, kind: str, order: int) -> None:
        self.name = name
        self.short = short
        self.kind = kind
        self.order = order
        self.numpy: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name, name))
        self.itemsize = self.numpy.itemsize

    def __repr__(self) -> str:
        return f"gt.{self.name}"

    def __reduce__(self) -> str:
        return self.name if self.name != "bool" else "bool_"

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of NumPy, by which `np.dtype(gt.float32)` and `np.zeros(2, dtype=gt.float32)` know it."""
        return self.numpy

    @property
    def is_floating_point(self) -> bool:
        """Whether it holds floating-point numbers (complex ones are not)."""
        return self.kind == "f"

    @property
    def is_complex(self) -> bool:
        """Whether it holds complex numbers."""
        return self.kind == "c"

    @property
    def is_signed(self) -> bool:
        """Whether it holds negative numbers."""
        return self.kind in "fc" or self.name.startswith("int")

    def to_real(self) -> DType:
        """The dtype of the parts of a complex one; any other itself."""
        return {complex64: float32, complex128: float64}.get(self, self)

    def to_complex(self) -> DType:
        """The complex dtype whose parts hold a floating-point one. Half precision has none of its own: complex64."""
        return self if self.kind == "c" else complex128 if self is float64 else complex64


bool_: Final = DType("bool", "bool", "b", 0)
uint8: Final = DType("uint8", "u8", "i", 1)
uint16: Final = DType("uint16", "u16", "i", 2)
uint32: Final = DType("uint32", "u32", "i", 3)
uint64: Final = DType("uint64", "u64", "i", 4)
int8: Final = DType("int8", "i8", "i", 1)
int16: Final = DType("int16", "i16", "i", 2)
int32: Final = DType("int32", "i32", "i", 3)
int64: Final = DType("int64", "i64", "i", 4)
float16: Final = DType("float16", "f16", "f", 1)
bfloat16: Final = DType("bfloat16", "bf16", "f", 1)
float32: Final = DType("float32", "f32", "f", 2)
float64: Final = DType("float64", "f64", "f", 3)
complex64: Final = DType("complex64", "c64", "c", 2)
complex128: Final = DType("complex128", "c128", "c", 3)

ALL_DTYPES: Final = (
    bool_, uint8, uint16, uint32, uint64, int8, int16, int32, int64, float16, bfloat16, float32, float64, complex64,
    complex128,
)  # fmt: skip
HALF_DTYPES: Final = frozenset({float16, bfloat16})
"""Stored in 16 bits, computed with in float32."""
BY_SHORT: Final = {dtype.short: dtype for dtype in ALL_DTYPES}
BY_NAME: Final = {dtype.name: dtype for dtype in ALL_DTYPES}
_ALIASES: Final = {
    "half": float16, "float": float32, "double": float64, "cfloat": complex64, "cdouble": complex128,
    "short": int16, "int": int32, "long": int64,
}  # fmt: skip
"""PyTorch's other names, for strings only: the Python types `float` and `int` have their own meaning."""
_BY_NUMPY: Final = {dtype.numpy: dtype for dtype in ALL_DTYPES}
_SIGNED: Final = {dtype.order: dtype for dtype in (int8, int16, int32, int64)}
"""The signed integers, by `order`."""
_KIND_ORDER: Final = {kind: at for at, kind in enumerate(KINDS)}
_default: list[DType] = [float32]
_conventions: list[str] = ["pytorch"]


def get_default_dtype() -> DType:
    """The floating dtype of creation functions, and of Python floats combined with integers; float32 by default."""
    return _default[0]


def set_default_dtype(d: object) -> None:
    """Set the default floating dtype. Raises `DTypeError` for any other dtype."""
    chosen = as_dtype(d)
    if chosen.kind != "f":
        raise DTypeError(f"set_default_dtype: {chosen} is not a floating-point dtype")
    _default[0] = chosen


def get_conventions() -> str:
    """The conventions that operators follow: 'pytorch' (the default) or 'array_api'."""
    return _conventions[0]


def set_conventions(name: str) -> None:
    """Make operators and functions of `gt` follow 'pytorch' or 'array_api' where the two differ.

    In the Array API, zero-dimensional tensors take part in type promotion like any other, and `a // b` of
    floating-point numbers is `floor(a / b)`, also for infinities. The functions of `gt.array_api` always follow the
    standard; this setting is for `x + y`.
    """
    if name not in ("pytorch", "array_api"):
        raise ValueError(f"set_conventions: 'pytorch' or 'array_api', not {name!r}")
    _conventions[0] = name


def as_dtype(value: object) -> DType:
    """The `DType` for a `DType`, a Python type (`bool`, `int`, `float`, `complex`), a name, or anything NumPy
    accepts.

    Names are PyTorch's and NumPy's ('float32', 'torch.float32', 'f32', 'cfloat'), so `str(torch.float32)` works.
    """
    if isinstance(value, DType):
        return value
    if value is float:
        return get_default_dtype()
    if value is complex:
        return get_default_dtype().to_complex()
    if value is int:
        return int64
    if isinstance(value, str):
        name = value.removeprefix("torch.").removeprefix("gt.")
        known = BY_NAME.get(name) or BY_SHORT.get(name) or _ALIASES.get(name)
        if known is not None:
            return known
    try:
        found = _BY_NUMPY.get(np.dtype(value).newbyteorder("="))  # type: ignore[call-overload]
    except TypeError:
        found = None
    if found is None:
        allowed = ", ".join(dtype.name for dtype in ALL_DTYPES)
        raise DTypeError(f"{value!r} is not a dtype of GT; allowed: {allowed}")
    return found


def promote(type1: DType, type2: DType) -> DType:
    """The dtype of `a op b` for two dtypes of equal rank: PyTorch's lattice (kind first, then size).

    u8 with i8 is i16 and f16 with bf16 is f32, which hold both; a complex dtype grows to hold a float64. Where PyTorch refuses
    (u16, u32 and u64 with other integers) the Python Array API standard decides: the next larger dtype that holds both.
    Raises `DTypeError` for u64 with signed integers, which no dtype holds.
    """
    a, b = type1, type2
    if a is b:
        return a
    if _KIND_ORDER[a.kind] < _KIND_ORDER[b.kind]:
        a, b = b, a
    if a.kind != b.kind:
        return complex128 if b is float64 and a.kind == "c" else a
    if a.kind == "i" and a.is_signed != b.is_signed:
        signed, unsigned = (a, b) if a.is_signed else (b, a)
        if unsigned is uint64:
            raise DTypeError(
                f"no integer dtype holds both {signed} and {unsigned}: cast one of them to the other first"
            )
        return signed if signed.order > unsigned.order else _SIGNED[unsigned.order + 1]
    if a.order != b.order:
        return a if a.order > b.order else b
    return float32


def result_type(tensors: list[tuple[DType, bool]], scalars: list[Scalar]) -> DType:
    """PyTorch's result type. `tensors` are (dtype, is zero-dimensional); `scalars` Python numbers.

    Dimensioned tensors decide; zero-dimensional ones, then Python scalars, count only when their kind is higher.
    In the Array API (`set_conventions`) zero-dimensional ones are as good as any.
    """
    ranks: list[DType | None] = [None, None, None]
    pytorch = _conventions[0] == "pytorch"
    for dtype, is_zero_dim in tensors:
        is_zero_dim = is_zero_dim and pytorch
        ranks[is_zero_dim] = _promote(ranks[is_zero_dim], dtype)
    for scalar in scalars:
        ranks[2] = _promote(ranks[2], scalar_dtype(scalar))
    result = _combine(ranks[0], _combine(ranks[1], ranks[2]))
    assert result is not None, "result_type needs at least one operand"
    return result


def _promote(a: DType | None, b: DType) -> DType:
    return b if a is None else promote(a, b)


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    """The dtype of operands of one rank beside those of a lower one, which count only if their kind is higher (of complex
    ones, only the kind counts)."""
    if higher is None or lower is None:
        return higher or lower
    if _KIND_ORDER[lower.kind] <= _KIND_ORDER[higher.kind]:
        return higher
    return higher.to_complex() if higher.kind == "f" else lower


def can_cast(from_: object, to: object) -> bool:
    """Whether a value of one dtype may be written to a tensor of another: not if that has a lower kind (`gt.can_cast`)."""
    return _KIND_ORDER[as_dtype(from_).kind] <= _KIND_ORDER[as_dtype(to).kind]


def scalar_dtype(value: object) -> DType:
    """The dtype of a Python (or NumPy) scalar. Raises `DTypeError` for anything else."""
    kind = scalar_kind(value)
    if kind in "bi":
        return bool_ if kind == "b" else int64
    return get_default_dtype() if kind == "f" else get_default_dtype().to_complex()


def scalar_kind(value: object) -> str:
    """'b', 'i', 'f' or 'c' for a Python (or NumPy) scalar. Raises `DTypeError` for anything else."""
    if isinstance(value, (bool, np.bool_)):
        return "b"
    if isinstance(value, (int, np.integer)):
        return "i"
    if isinstance(value, (float, np.floating, ml_dtypes.bfloat16)):
        return "f"
    if isinstance(value, (complex, np.complexfloating)):
        return "c"
    raise DTypeError(f"{value!r} ({type(value).__name__}) is not a bool, int, float or complex")


def scalar_of(value: Scalar, dtype: DType, op: str) -> Scalar:
    """A Python number, converted to the kind of `dtype`.

    Raises `DTypeError` for an integer that does not fit (it would silently overflow), for a number that is not finite where
    `dtype` holds integers, and for a complex number where it holds integers or floating-point numbers.
    """
    if dtype.kind == "f":
        if isinstance(value, complex):
            raise DTypeError(f"{op}: {value} does not fit {dtype}")
        return float(value)
    if dtype.kind == "c":
        return complex(value)
    if dtype.kind == "b":
        return bool(value)
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise DTypeError(f"{op}: {value} does not fit {dtype}")
    number = int(value)
    info = np.iinfo(dtype.name)
    if not info.min <= number <= info.max:
        raise DTypeError(f"{op}: {value} does not fit {dtype} ({info.min} to {info.max})")
    return number
