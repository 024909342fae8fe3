"""What tests written for PyTorch call: `assert_close`, with PyTorch's tolerances, and `make_tensor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gt.client.ops import arithmetic, creation, random
from gt.client.tensor.operands import cast
from gt.client.tensor.tensor import Tensor
from gt.ir.dtype_limits import finfo
from gt.ir.dtypes import DType, as_dtype, bool_

__all__ = ["assert_close", "make_tensor"]

_TOLERANCES: Final = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}  # fmt: skip
"""PyTorch's relative and absolute tolerances; all else is to be equal."""

Message = str | Callable[[str], str] | None


def assert_close(
    actual: Any, expected: Any, *, allow_subclasses: bool = True, rtol: float | None = None, atol: float | None = None,
    equal_nan: bool = False, check_device: bool = True, check_dtype: bool = True, check_layout: bool = True,
    check_stride: bool = False, msg: Message = None,
) -> None:  # fmt: skip
    """Raises `AssertionError` unless |actual − expected| ≤ atol + rtol · |expected| everywhere; waits.

    Takes tensors, arrays and numbers, and sequences and mappings of them. Shapes are to be the same, and dtypes unless
    `check_dtype=False`. Without tolerances the larger ones of the two dtypes hold. Raises `TypeError` for other types, and
    `ValueError` where only one tolerance is given.
    """
    if (rtol is None) is not (atol is None):
        raise ValueError(f"rtol and atol must both be specified or both be unspecified, but got {rtol} and {atol}")
    wrong = _difference(actual, expected, rtol, atol, equal_nan, check_dtype, "")
    if wrong is not None:
        raise AssertionError(wrong if msg is None else msg(wrong) if callable(msg) else msg)


def _difference(
    actual: Any, expected: Any, rtol: float | None, atol: float | None, nan: bool, dtypes: bool, place: str
) -> str | None:
    """What is different first, with the place; None if nothing is."""
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        if actual.keys() != expected.keys():
            return f"The keys of the mappings do not match{place}: {sorted(map(str, {*actual} ^ {*expected}))}"
        pairs = [(f"{place} [{key!r}]", actual[key], expected[key]) for key in actual]
    elif isinstance(actual, Sequence) and isinstance(expected, Sequence) and not isinstance(actual, str):
        if len(actual) != len(expected):
            return f"The length of the sequences mismatch{place}: {len(actual)} != {len(expected)}"
        pairs = [(f"{place} [{at}]", one, other) for at, (one, other) in enumerate(zip(actual, expected, strict=True))]
    else:
        return _unlike(actual, expected, rtol, atol, nan, dtypes, place)
    found = (_difference(one, other, rtol, atol, nan, dtypes, where) for where, one, other in pairs)
    return next((wrong for wrong in found if wrong is not None), None)


def _unlike(
    actual: Any, expected: Any, rtol: float | None, atol: float | None, nan: bool, dtypes: bool, place: str
) -> str | None:
    numbers = (bool, int, float, complex)
    kinds = (numbers, Tensor, (np.ndarray, np.generic))
    if not any(isinstance(actual, kind) and isinstance(expected, kind) for kind in kinds):
        raise TypeError(
            f"assert_close: no way to compare {type(actual).__name__} with {type(expected).__name__}{place}"
        )
    names, arrays = zip(*map(_array, (actual, expected)), strict=True)
    a, b = arrays
    if a.shape != b.shape:
        return f"The values for attribute 'shape' do not match{place}: {a.shape} != {b.shape}."
    if dtypes and names[0] != names[1]:
        return f"The values for attribute 'dtype' do not match{place}: gt.{names[0]} != gt.{names[1]}."
    known = [_TOLERANCES.get(name, (0.0, 0.0)) for name in names]
    relative = max(each[0] for each in known) if rtol is None else rtol
    absolute = max(each[1] for each in known) if atol is None else atol
    exact = {"i", "b", "u"} >= {a.dtype.kind, b.dtype.kind} and not relative and not absolute
    if exact:
        close = a == b
    else:
        wide = np.result_type(a, b, np.float64)
        a, b = a.astype(wide), b.astype(wide)
        close = np.isclose(a, b, rtol=relative, atol=absolute, equal_nan=nan)
    if close.all():
        return None
    return (
        f"{'Scalars' if not a.ndim else 'Tensor-likes'} are not {'equal' if exact else 'close'}{place}!\n\n"
        f"Mismatched elements: {close.size - int(close.sum())} / {close.size}\n{_greatest(a, b, close)}"
        f"(up to rtol {relative} and atol {absolute} allowed)"
    )


def _greatest(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], close: np.ndarray[Any, Any]) -> str:
    """The greatest difference among what is not close, and where it is."""
    with np.errstate(all="ignore"):
        apart = np.where(close, 0.0, np.abs(a.astype(np.complex128) - b.astype(np.complex128)))
    at = np.unravel_index(int(np.argmax(apart)), apart.shape)
    return f"Greatest absolute difference: {float(apart[at])} at index {tuple(map(int, at))}\n"


def _array(value: Any) -> tuple[str, np.ndarray[Any, Any]]:
    """The name of a value's dtype, and its elements in a dtype that NumPy computes with."""
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        return array.dtype.name, array
    array = value.detach().numpy()
    return value.dtype.name, array if array.dtype.kind in "biufc" else array.astype(np.float32)


def make_tensor(
    *shape: Any, dtype: Any, device: Any = None, low: float | None = None, high: float | None = None, requires_grad: bool = False,
    noncontiguous: bool = False, exclude_zero: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """A tensor of random numbers from `low` up to but without `high`: from −9 to 9 by default, integers up to 9.

    `exclude_zero` writes 1 where there is 0 (the smallest positive number of floating-point dtypes).
    """
    chosen = as_dtype(dtype)
    size = creation.shape_of("make_tensor", shape)
    out = _filled(chosen, size, low, high)
    if exclude_zero:
        least = 1.0 if chosen.kind in "bi" else finfo(chosen).tiny
        out = arithmetic.where(arithmetic.eq(out, 0), cast(creation.full((), least), chosen), out)
    return out.detach().requires_grad_() if requires_grad else out


def _filled(dtype: DType, size: tuple[int, ...], low: float | None, high: float | None) -> Tensor:
    if dtype is bool_:
        return cast(random.randint(0 if low is None else int(low), 2 if high is None else int(high), size), dtype)
    if dtype.kind == "i":
        first = int(low) if low is not None else -9 if dtype.is_signed else 0
        return random.randint(first, 10 if high is None else int(high), size, dtype=dtype)
    below, above = (-9.0 if low is None else low), (9.0 if high is None else high)
    if not below < above:
        raise ValueError(f"make_tensor: low is below high, not {below} and {above}")
    if dtype.kind == "c":
        parts = [random.uniform(below, above, size, dtype=dtype.to_real()) for _ in range(2)]
        return arithmetic.add(parts[0], arithmetic.mul(cast(parts[1], dtype), 1j))
    return random.uniform(below, above, size, dtype=dtype)
