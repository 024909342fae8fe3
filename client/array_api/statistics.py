"""The standard's functions that reduce and accumulate: sums keep the sign of integers, all and any give booleans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.ops import creation, join_and_pad, reductions, shape_ops, sort_scan, statistics
from gt.client.tensor.operands import cast
from gt.errors import ShapeError
from gt.ir.dtypes import DType, as_dtype, bool_, int64, uint64

from .promotion import Function, common

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "all", "any", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "max", "mean", "min", "prod", "std", "sum", "var",
]  # fmt: skip

Axes = int | tuple[int, ...] | None


def joined(dtype: DType, asked: Any) -> DType:
    """The dtype of sums and products: the widest integers of the same sign, unless another is asked for."""
    if asked is not None:
        return as_dtype(asked)
    return dtype if dtype.kind in "fc" else int64 if dtype.is_signed or dtype is bool_ else uint64


def over(
    function: Function,
    x: Tensor,
    axis: Axes,
    keepdims: bool,
    spelled: tuple[str, str] = ("axis", "keepdims"),
    **options: Any,
) -> Tensor:
    """A reduction over axes, which the function calls as `spelled`. No axes are none; in PyTorch they are all."""
    if axis == ():
        x, axis, keepdims = shape_ops.unsqueeze(x, 0), 0, False
    out: Tensor = function(x, **dict(zip(spelled, (axis, keepdims), strict=True)), **options)
    return out


def max(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The largest over axes; NaN wins."""
    return over(reductions.amax, x, axis, keepdims)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The smallest over axes; NaN wins."""
    return over(reductions.amin, x, axis, keepdims)


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The mean over axes."""
    return over(reductions.mean, x, axis, keepdims)


def sum(x: Tensor, /, *, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum over axes. Integers are added up in the widest of their sign."""
    return over(reductions.sum, x, axis, keepdims, dtype=joined(x.dtype, dtype))


def prod(x: Tensor, /, *, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The product over axes. Integers are multiplied in the widest of their sign."""
    return over(reductions.prod, x, axis, keepdims, dtype=joined(x.dtype, dtype))


def var(x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The sum of squares about the mean over (number − `correction`)."""
    return over(reductions.var, x, axis, keepdims, correction=correction)


def std(x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The square root of `var`."""
    return over(reductions.std, x, axis, keepdims, correction=correction)


def all(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Whether every element is not zero."""
    return over(reductions.all, cast(x, bool_), axis, keepdims)


def any(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Whether one element is not zero."""
    return over(reductions.any, cast(x, bool_), axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The number of elements that are not zero, over axes."""
    return over(statistics.count_nonzero, x, axis, keepdims)


def _cumulative(
    function: Function, nothing: int, x: Tensor, axis: int | None, dtype: Any, include_initial: bool
) -> Tensor:
    if axis is None and x.ndim != 1:
        raise ShapeError(f"{function.__name__}: along which axis of shape {x.shape}? pass axis=")
    at = shape_ops.axis_of(function.__name__, 0 if axis is None else axis, x.shape)
    out: Tensor = function(x, at, dtype=joined(x.dtype, dtype))
    if not include_initial:
        return out
    first = creation.full((*x.shape[:at], 1, *x.shape[at + 1 :]), nothing, dtype=out.dtype)
    return join_and_pad.cat([first, out], at)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """The sums from the start along an axis; with `include_initial` that of nothing first."""
    return _cumulative(sort_scan.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """The products from the start along an axis; with `include_initial` that of nothing first."""
    return _cumulative(sort_scan.cumprod, 1, x, axis, dtype, include_initial)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The differences of neighbours along an axis, `n` times over."""
    parts = [part for part in (prepend, x, append) if part is not None]
    return sort_scan.diff(join_and_pad.cat(common("diff", *parts), axis) if len(parts) > 1 else x, n, axis)
