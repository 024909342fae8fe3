"""Functions that reduce along axes: sums, extremes, moments, and what normalises by them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from gt.client.tensor import emission, emission_context
from gt.client.tensor.operands import binary, cast, clone, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import HALF_DTYPES, as_dtype, bool_, float32, int64, uint8

from . import arithmetic, creation, shape_ops

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "log_softmax", "logsumexp", "max", "mean", "min", "prod",
    "softmax", "std", "sum", "var",
]  # fmt: skip

UNSET: Final[Any] = object()


class Extremes(NamedTuple):
    """The result of `max` and `min` along one axis: the extreme values and the indices where they were found."""

    values: Tensor
    indices: Tensor


class Range(NamedTuple):
    """The result of `aminmax`."""

    min: Tensor
    max: Tensor


def spelled(name: str, torch: Any, numpy: Any, default: Any) -> Any:
    """The one argument of two spellings (`dim`/`axis`, `keepdim`/`keepdims`). `TypeError` when both are given."""
    if numpy is UNSET or numpy is None:
        return torch
    if torch is not default:
        raise TypeError(f"{name}: give either dim and keepdim or axis and keepdims, not both")
    return numpy


def axes_of(name: str, axis: Any, x: Tensor) -> tuple[int, ...]:
    """Axes as instructions carry them: non-negative, sorted, distinct. None means all of them."""
    if axis is None:
        return tuple(range(x.ndim))
    if not isinstance(axis, Sequence):
        return (shape_ops.axis_of(name, axis, x.shape),)
    axes = sorted(shape_ops.axis_of(name, each, x.shape) for each in axis)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{name}: axes {tuple(axis)} of shape {x.shape} repeat each other")
    return tuple(axes) if axes else tuple(range(x.ndim))


def _without_dimensions(x: Tensor, axis: Any) -> bool:
    """PyTorch lets a tensor without dimensions be reduced along axis 0 or −1, which changes nothing."""
    return x.ndim == 0 and (axis in (0, -1) or axis in ((0,), (-1,)))


def _reduce(name: str, x: Tensor, axis: Any, keepdims: Any) -> Tensor:
    axes = () if _without_dimensions(x, axis) else axes_of(name, axis, x)
    return emission.emit_unary(name, x, axes, bool(keepdims))


def _total(name: str, input: Any, axis: Any, keepdims: Any, dtype: Any) -> Tensor:
    x = tensor_of(name, input)
    if dtype is not None:
        x = cast(x, dtype)
        if x._value.spec.dtype is bool_:
            name = {"sum": "any", "prod": "all"}[name]
    elif x._value.spec.dtype.kind in "bi":
        x = cast(x, int64)
    return _reduce(name, x, axis, keepdims)


def sum(
    input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, axis: Any = None, keepdims: Any = UNSET
) -> Tensor:
    """The sum over axes. Booleans and integers give int64, unless `dtype` says otherwise."""
    return _total("sum", input, spelled("sum", dim, axis, None), spelled("sum", keepdim, keepdims, False), dtype)


def prod(
    input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, axis: Any = None, keepdims: Any = UNSET
) -> Tensor:
    """The product over axes. Booleans and integers give int64, unless `dtype` says otherwise."""
    return _total("prod", input, spelled("prod", dim, axis, None), spelled("prod", keepdim, keepdims, False), dtype)


def _floating(name: str, input: Any, dtype: Any) -> Tensor:
    x = tensor_of(name, input)
    if dtype is not None:
        x = cast(x, dtype)
    if x._value.spec.dtype.kind not in "fc":
        raise DTypeError(f"{name} takes floating-point or complex numbers, not {x.dtype}: cast first, or pass dtype=")
    return x


def _wide(x: Tensor) -> Tensor:
    """Half precision in float32: the sum of a mean, and the squares of a variance, may be beyond what float16 holds."""
    return cast(x, float32) if x.dtype in HALF_DTYPES else x


def _count(x: Tensor, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[axis] for axis in axes)


def mean(
    input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, axis: Any = None, keepdims: Any = UNSET
) -> Tensor:
    """The mean over axes, of floating-point or complex numbers."""
    x = _floating("mean", input, dtype)
    axis = spelled("mean", dim, axis, None)
    axes = () if _without_dimensions(x, axis) else axes_of("mean", axis, x)
    total = emission.emit("sum", (_wide(x),), axes, bool(spelled("mean", keepdim, keepdims, False)))
    return cast(emission.emit("div", (total, float(_count(x, axes)))), x.dtype)


def var(
    input: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
    axis: Any = None,
    keepdims: Any = UNSET,
) -> Tensor:
    """The variance over axes: the sum of squared deviations from the mean over (number − `correction`), never below
    0.
    """
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = 1 if unbiased else 0
    correction = 1 if correction is None else correction
    given = _floating("var", input, None)
    spread = _spread(
        _wide(given), spelled("var", dim, axis, None), correction, bool(spelled("var", keepdim, keepdims, False))
    )
    return cast(spread, given.dtype) if given.dtype in HALF_DTYPES else spread


def _spread(x: Tensor, axis: Any, correction: float, keepdims: bool) -> Tensor:
    """The variance, in the dtype of `x`."""
    axes = () if _without_dimensions(x, axis) else axes_of("var", axis, x)
    count = _count(x, axes)
    center = emission.emit("div", (emission.emit("sum", (x,), axes, True), float(count)))
    apart = emission.emit("sub", (x, center))
    if x.dtype.kind == "c":  # the squares of absolute values
        parts = [emission.emit("square", (emission.emit(part, (apart,)),)) for part in ("real", "imag")]
        squares = emission.emit("add", tuple(parts))
    else:
        squares = emission.emit("square", (apart,))
    total = emission.emit("sum", (squares,), axes, keepdims)
    return emission.emit("div", (total, float(count - correction) if count > correction else 0.0))


def std(
    input: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
    axis: Any = None,
    keepdims: Any = UNSET,
) -> Tensor:
    """The square root of `var`."""
    x = _floating("std", input, None)
    spread = var(_wide(x), dim, unbiased, keepdim, correction=correction, axis=axis, keepdims=keepdims)
    root = emission.emit("sqrt", (spread,))
    return cast(root, x.dtype) if x.dtype in HALF_DTYPES else root


def amax(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET) -> Tensor:
    """The maximum over axes; equal maxima share the gradient."""
    return _reduce(
        "max",
        tensor_of("amax", input),
        spelled("amax", dim, axis, None),
        spelled("amax", keepdim, keepdims, False),
    )


def amin(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET) -> Tensor:
    """The minimum over axes; equal minima share the gradient."""
    return _reduce(
        "min",
        tensor_of("amin", input),
        spelled("amin", dim, axis, None),
        spelled("amin", keepdim, keepdims, False),
    )


def _extreme(name: str, input: Any, dim: Any, keepdim: Any, axis: Any, keepdims: Any) -> Any:
    x = tensor_of(name, input)
    if isinstance(dim, Tensor):
        return binary(f"{name}imum", x, dim)
    axis = spelled(name, dim, axis, None)
    keep = spelled(name, keepdim, keepdims, False)
    if axis is None:
        return _reduce(name, x, None, keep)
    if isinstance(axis, Sequence):
        raise TypeError(f"{name} with several axes has no indices: use a{name}")
    if _without_dimensions(x, axis):
        return Extremes(clone(x), creation.zeros((), dtype=int64))
    at = shape_ops.axis_of(name, axis, x.shape)
    indices = emission.emit(f"arg{name}", (x,), at, True)
    values = emission.emit("gather", (x, indices), at)
    if keep:
        return Extremes(values, indices)
    shape = x.shape[:at] + x.shape[at + 1 :]
    return Extremes(emission.emit("reshape", (values,), shape), emission.emit("reshape", (indices,), shape))


def max(
    input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET, other: Any = None
) -> Any:
    """Without an axis: the maximum of all elements. Along an axis: `(values, indices)`. With a second tensor:
    `maximum`.
    """
    return _extreme("max", input, dim if other is None else other, keepdim, axis, keepdims)


def min(
    input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET, other: Any = None
) -> Any:
    """Without an axis: the minimum of all elements. Along an axis: `(values, indices)`. With a second tensor:
    `minimum`.
    """
    return _extreme("min", input, dim if other is None else other, keepdim, axis, keepdims)


def _arg(name: str, input: Any, axis: Any, keepdims: bool) -> Tensor:
    x = tensor_of(name, input)
    if axis is None or x.ndim == 0:
        if axis is not None and not _without_dimensions(x, axis):
            shape_ops.axis_of(name, axis, x.shape)
        flat = emission.emit("reshape", (x,), (x._value.spec.size,))
        index = emission.emit(name, (flat,), 0, False)
        return emission.emit("reshape", (index,), (1,) * x.ndim) if keepdims else index
    return emission.emit(name, (x,), shape_ops.axis_of(name, axis, x.shape), bool(keepdims))


def argmax(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET) -> Tensor:
    """The index of the first maximum along an axis, or in the flattened tensor; int64."""
    return _arg("argmax", input, spelled("argmax", dim, axis, None), spelled("argmax", keepdim, keepdims, False))


def argmin(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET) -> Tensor:
    """The index of the first minimum along an axis, or in the flattened tensor; int64."""
    return _arg("argmin", input, spelled("argmin", dim, axis, None), spelled("argmin", keepdim, keepdims, False))


def _truth(name: str, input: Any, axis: Any, keepdims: Any) -> Tensor:
    x = tensor_of(name, input)
    out = _reduce(name, cast(x, bool_), axis, keepdims)
    return cast(out, uint8) if x.dtype is uint8 else out


def any(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET) -> Tensor:
    """Whether any element is non-zero, over axes; for uint8 as uint8, as in PyTorch."""
    return _truth("any", input, spelled("any", dim, axis, None), spelled("any", keepdim, keepdims, False))


def all(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET) -> Tensor:
    """Whether all elements are non-zero, over axes; for uint8 as uint8, as in PyTorch."""
    return _truth("all", input, spelled("all", dim, axis, None), spelled("all", keepdim, keepdims, False))


def _along(name: str, input: Any, dim: Any, dtype: Any, axis: Any) -> Tensor:
    dim = spelled(name, dim, axis, None)
    if dim is None:
        raise TypeError(f"{name} needs the axis along which to normalise: pass dim=")
    x = tensor_of(name, input)
    if dtype is not None:
        x = cast(x, as_dtype(dtype))
    if _without_dimensions(x, dim):
        return arithmetic.exp(arithmetic.sub(x, x)) if name == "softmax" else arithmetic.sub(x, x)
    return emission.emit(name, (x,), shape_ops.axis_of(name, dim, x.shape))


def softmax(input: Any, dim: int | None = None, dtype: Any = None, *, axis: int | None = None) -> Tensor:
    """`eˣ` divided by its sum along an axis."""
    return _along("softmax", input, dim, dtype, axis)


def log_softmax(input: Any, dim: int | None = None, dtype: Any = None, *, axis: int | None = None) -> Tensor:
    """The logarithm of `softmax`, without overflow."""
    return _along("log_softmax", input, dim, dtype, axis)


def logsumexp(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET) -> Tensor:
    """`log Σ eˣ` over axes, shifted by the maximum to avoid overflow."""
    x = tensor_of("logsumexp", input)
    x = x if x.dtype.kind in "fc" else arithmetic.div(x, 1)
    axis = spelled("logsumexp", dim, axis, None)
    keep = spelled("logsumexp", keepdim, keepdims, False)
    with emission_context.with_changes(grad=False):
        size = emission.emit("real", (x,)) if x.dtype.kind == "c" else x
        top = amax(size, axis, True) if x.numel() else sum(size, axis, True)
        top = arithmetic.where(arithmetic.isfinite(top), top, 0.0)
    total = arithmetic.log(sum(arithmetic.exp(arithmetic.sub(x, top)), axis, keep))
    return arithmetic.add(total, top if keep else emission.emit("reshape", (top,), total.shape))
