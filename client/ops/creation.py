"""Functions that make tensors out of numbers, arrays and nothing. `device=` is accepted everywhere and means nothing:
where a tensor lives is the service's concern."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from gt.client.tensor import emission
from gt.client.tensor.operands import cast, put, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import (
    DType,
    as_dtype,
    float64,
    get_default_dtype,
    int64,
    scalar_dtype,
    scalar_kind,
    scalar_of,
)
from gt.ir.spec import size_error

from . import shape_ops

__all__ = [
    "tensor", "as_tensor", "from_numpy", "zeros", "ones", "full", "empty", "arange", "linspace", "logspace", "eye",
    "zeros_like", "ones_like", "full_like", "empty_like", "scalar_tensor",
]  # fmt: skip


def finished(out: Tensor, requires_grad: bool) -> Tensor:
    """`out`, marked as requiring grad when asked."""
    return out.requires_grad_() if requires_grad else out


def shape_of(name: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given one by one or as one sequence, checked."""
    shape = shape_ops.ints(size)
    if any(each < 0 for each in shape):
        raise ShapeError(f"{name}: shape {shape} has a negative size")
    wrong = size_error(shape)
    if wrong is not None:
        raise ShapeError(f"{name}: {wrong}")
    return shape


# from the program's memory


def _is_plain(data: Any) -> bool:
    """Whether nested lists hold Python's own numbers (which take the default dtype), judged by the first."""
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return not hasattr(data, "dtype")


def _converted(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """`array` in another dtype; of complex numbers all others keep the real parts (booleans: whether it is not 0)."""
    if np.iscomplexobj(array) and dtype.kind in "if":
        array = array.real
    return array.astype(dtype.numpy, copy=False)


def tensor(
    data: Any,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """A copy of a number, lists, an array or a tensor. Python floats get the default dtype; arrays keep theirs."""
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(data, Tensor):
        return finished(cast(Tensor(data._current()), wanted or data.dtype), requires_grad)
    if type(data) in (bool, int, float, complex):
        return full((), data, dtype=wanted, requires_grad=requires_grad)
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"tensor: nested lists of unequal lengths: {error}") from None
    if wanted is None and array.dtype.kind in "fc" and _is_plain(data):
        wanted = get_default_dtype() if array.dtype.kind == "f" else get_default_dtype().to_complex()
    if wanted is not None:
        array = (
            _integers(data, wanted) if wanted.kind == "i" and array.dtype.kind in "fO" else _converted(array, wanted)
        )
    return finished(put(array), requires_grad)


def _integers(data: Any, dtype: DType) -> np.ndarray[Any, Any]:
    """Lists as integers of a dtype at once: NumPy takes 2⁶³ beside a small number for two of floating point."""
    if not _is_plain(data):
        return _converted(np.asarray(data), dtype)
    try:
        return np.asarray(data, dtype.numpy)
    except (OverflowError, TypeError, ValueError) as error:
        raise DTypeError(f"tensor: not all numbers fit {dtype}: {error}") from None


def as_tensor(
    data: Any, *, dtype: Any = None, device: Any = None, pin_memory: bool = False, layout: Any = None
) -> Tensor:
    """`data` as a tensor: `data` itself if it is a tensor of that dtype already, otherwise `tensor(data)`."""
    if isinstance(data, Tensor):
        return data if dtype is None else cast(data, dtype)
    return tensor(data, dtype=dtype)


def from_numpy(array: Any, requires_grad: bool = False) -> Tensor:
    """A tensor with the dtype and values of a NumPy array. The array is copied, so later changes to it have no
    effect.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy takes a numpy.ndarray, not {type(array).__name__}")
    return finished(put(array), requires_grad)


# from a rule


def _filled(name: str, shape: tuple[int, ...], value: Any, dtype: DType, requires_grad: bool) -> Tensor:
    scalar_kind(value)
    return finished(emission.emit("full", (scalar_of(value, dtype, name),), shape, dtype), requires_grad)


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """Every element is `fill_value`, whose kind determines the dtype if `dtype` does not."""
    shape = shape_of("full", (size,))
    if isinstance(fill_value, Tensor):
        out = cast(fill_value, fill_value.dtype if dtype is None else dtype)
        return finished(emission.emit("expand", (out,), shape), requires_grad)
    chosen = scalar_dtype(fill_value) if dtype is None else as_dtype(dtype)
    return _filled("full", shape, fill_value, chosen, requires_grad)


def fill(input: Any, value: Any) -> Tensor:
    """A tensor with the shape and dtype of `input` and every element `value`, a number or a zero-dimensional tensor."""
    x = tensor_of("fill", input)
    if not isinstance(value, Tensor):
        return full(x.shape, value, dtype=x.dtype)
    return emission.emit("expand", (cast(value, x.dtype),), x.shape)


def _constant(name: str, size: tuple[Any, ...], value: float, dtype: Any, requires_grad: bool) -> Tensor:
    chosen = get_default_dtype() if dtype is None else as_dtype(dtype)
    return _filled(name, shape_of(name, size), value, chosen, requires_grad)


def zeros(
    *sizes: Any,
    size: Any = None,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """Every element is 0."""
    return _constant("zeros", sizes if size is None else (*sizes, size), 0, dtype, requires_grad)


def ones(
    *sizes: Any,
    size: Any = None,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """Every element is 1."""
    return _constant("ones", sizes if size is None else (*sizes, size), 1, dtype, requires_grad)


def empty(
    *sizes: Any,
    size: Any = None,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
    memory_format: Any = None,
) -> Tensor:
    """A tensor that is meant to be overwritten; its elements are 0."""
    return _constant("empty", sizes if size is None else (*sizes, size), 0, dtype, requires_grad)


def _like(name: str, input: Any, value: Any, dtype: Any, requires_grad: bool) -> Tensor:
    like = tensor_of(name, input)
    chosen = like.dtype if dtype is None else as_dtype(dtype)
    if isinstance(value, Tensor):
        out = full(like.shape, value, dtype=chosen)
    else:
        out = _filled(name, like.shape, value, chosen, False)
    if like._param:
        out = emission.emit("follow", (out, Tensor(like._current())))
    return finished(out, requires_grad)


def full_like(
    input: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
    memory_format: Any = None,
) -> Tensor:
    """Every element is `fill_value`, in the shape and dtype of `input`; placed as it is, when it is a parameter."""
    return _like("full_like", input, fill_value, dtype, requires_grad)


def zeros_like(
    input: Any,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
    memory_format: Any = None,
) -> Tensor:
    """Every element is 0, in the shape and dtype of `input`; placed as it is, when it is a parameter."""
    return _like("zeros_like", input, 0, dtype, requires_grad)


def ones_like(
    input: Any,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
    memory_format: Any = None,
) -> Tensor:
    """Every element is 1, in the shape and dtype of `input`; placed as it is, when it is a parameter."""
    return _like("ones_like", input, 1, dtype, requires_grad)


def empty_like(
    input: Any,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
    memory_format: Any = None,
) -> Tensor:
    """A tensor to be written later, in the shape and dtype of `input`; its elements are 0."""
    return _like("empty_like", input, 0, dtype, requires_grad)


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """`start`, `start + step`, … up to but excluding `end`. int64 if all three are integers, else the default dtype.

    Each may be a zero-dimensional tensor, whose value is waited for. For integer dtypes, `start`, `end` and `step` are truncated
    first, as in PyTorch.
    """
    if end is None:
        start, end = 0, start
    start, end, step = (n.item() if isinstance(n, Tensor) and not n.ndim else n for n in (start, end, step))
    if "c" in [scalar_kind(n) for n in (start, end, step)]:
        raise DTypeError(f"arange counts in integers or floating-point numbers, not from {start} to {end} by {step}")
    numbers = [int(n) if scalar_kind(n) in "bi" else float(n) for n in (start, end, step)]
    floating = any(isinstance(n, float) for n in numbers)
    chosen = as_dtype(dtype) if dtype is not None else get_default_dtype() if floating else int64
    if chosen.kind == "b":
        raise DTypeError("arange counts in numbers, not in bool")
    if floating and not all(map(math.isfinite, numbers)):
        raise ValueError(f"arange: {start}, {end} and {step} are not all finite")
    if floating and chosen.kind == "i":
        numbers, floating = [*map(int, numbers)], False
    start, end, step = numbers
    if step == 0:
        raise ValueError("arange: the step is not 0")
    count = math.ceil((end - start) / step) if floating else -((start - end) // step)
    if (end - start) * step < 0:
        raise ValueError(f"arange: no step of {step} leads from {start} to {end}")
    if chosen.kind in "fc":
        start, step = float(start), float(step)
    return finished(emission.emit("arange", (start, step), (count,), chosen), requires_grad)


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """`steps` evenly spaced numbers from `start` to `end`, both included, computed from the nearer end.

    For integer dtypes, the ends and the results are truncated, as in PyTorch.
    """
    steps = operator.index(steps)
    chosen = get_default_dtype() if dtype is None else as_dtype(dtype)
    if steps < 0:
        raise ValueError(f"linspace: {steps} steps")
    first, last = (float(int(n)) if chosen.kind == "i" else float(n) for n in (start, end))
    return finished(_spaced(first, last, steps, chosen), requires_grad)


def _spaced(start: float, end: float, steps: int, dtype: DType) -> Tensor:
    if steps < 2:
        return emission.emit("arange", (start, 0.0), (steps,), dtype)
    step, half = (end - start) / (steps - 1), steps // 2
    low = emission.emit("arange", (start, step), (half,), dtype)
    high = emission.emit("arange", (end, -step), (steps - half,), dtype)
    turned = emission.emit("slice", (high, steps - half - 1), (0,), (steps - half,), (-1,))
    return emission.emit("cat", (low, turned), 0)


def logspace(
    start: float, end: float, steps: int, base: float = 10.0, *, dtype: Any = None, requires_grad: bool = False,
    device: Any = None, pin_memory: bool = False, layout: Any = None,
) -> Tensor:  # fmt: skip
    """`base` to evenly spaced powers from `start` to `end`, both included; for integer dtypes two ends are truncated."""
    steps = operator.index(steps)
    chosen = get_default_dtype() if dtype is None else as_dtype(dtype)
    if steps < 0:
        raise ValueError(f"logspace: {steps} steps")
    whole = chosen.kind == "i" and steps > 1  # of a single one PyTorch keeps the fraction
    first, last = (float(int(n)) if whole else float(n) for n in (start, end))
    powers = _spaced(first, last, steps, float64)
    return finished(cast(float(base) ** powers, chosen), requires_grad)


def scalar_tensor(
    s: Any,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """A zero-dimensional tensor in the default dtype."""
    return _filled("scalar_tensor", (), s, get_default_dtype() if dtype is None else as_dtype(dtype), requires_grad)


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """1 on the diagonal, 0 elsewhere."""
    rows, columns = shape_of("eye", (n, n if m is None else m))
    row = emission.emit("reshape", (arange(rows),), (rows, 1))
    same = row == arange(columns)
    return finished(cast(same, get_default_dtype() if dtype is None else dtype), requires_grad)
