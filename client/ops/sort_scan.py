"""Functions that sort, search and accumulate along an axis: what depends on the order of elements.

Sorting is stable and NaN is the largest. Values are looked up where indices say, so gradients go where they came from. What
counts is in `histogram_unique.py`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gt.client.tensor import emission
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import cast, clone, floating, meet, result_type_of, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import bool_, float64, int32, int64, result_type

from . import arithmetic, creation, gather_scatter, join_and_pad, reductions, shape_ops
from .elementwise import logaddexp
from .reductions import UNSET, Extremes, spelled
from .shape_ops import axis_of

__all__ = [
    "argsort", "bucketize", "cummax", "cummin", "cumprod", "cumsum", "diff", "isin", "kthvalue", "logcumsumexp", "median",
    "msort", "nanmedian", "nanquantile", "quantile", "searchsorted", "sort", "topk",
]  # fmt: skip


class Sorted(NamedTuple):
    """The result of `sort` and `topk`: the values in order, and the indices where they were found."""

    values: Tensor
    indices: Tensor


def _axis(name: str, dim: Any, axis: Any, default: int | None, x: Tensor) -> int:
    """The axis asked for, in a tensor that counts as a vector when it has no dimensions."""
    chosen = spelled(name, dim, axis, default)
    if chosen is None:
        raise TypeError(f"{name} needs an axis: pass dim=")
    return axis_of(name, chosen, x.shape or (1,))


def _line(x: Tensor) -> Tensor:
    return x if x.ndim else emission.emit("reshape", (x,), (1,))


def _shaped(x: Tensor, like: Tensor) -> Tensor:
    """In the number of dimensions that `like` has: a vector of one stood for a tensor without dimensions."""
    return x if like.ndim else emission.emit("reshape", (x,), ())


def _slice(x: Tensor, at: int, start: int, size: int, step: int = 1) -> Tensor:
    return emission.emit("slice", (x, start if size else 0), (at,), (size,), (step,))


# from the start


def _cumulative(name: str, input: Any, dim: Any, dtype: Any, axis: Any) -> Tensor:
    x = tensor_of(name, input)
    if dtype is not None:
        x = cast(x, dtype)
    elif x.dtype.kind in "bi":
        x = cast(x, int64)
    return _shaped(emission.emit(name, (_line(x),), _axis(name, dim, axis, None, x)), x)


def cumsum(input: Any, dim: Any = None, *, dtype: Any = None, axis: Any = None) -> Tensor:
    """The cumulative sum along an axis. Booleans and integers give int64, unless `dtype` says otherwise."""
    return _cumulative("cumsum", input, dim, dtype, axis)


def cumprod(input: Any, dim: Any = None, *, dtype: Any = None, axis: Any = None) -> Tensor:
    """The cumulative product along an axis. Booleans and integers give int64, unless `dtype` says otherwise."""
    return _cumulative("cumprod", input, dim, dtype, axis)


def _extremes(name: str, input: Any, dim: Any, axis: Any) -> Extremes:
    x = tensor_of(name, input)
    at = _axis(name, dim, axis, None, x)
    line = _line(x)
    indices = emission.emit(f"arg{name}", (line,), at)
    values = emission.emit("gather", (line, indices), at)
    return Extremes(_shaped(values, x), _shaped(indices, x))


def cummax(input: Any, dim: Any = None, *, axis: Any = None) -> Extremes:
    """The running maximum along an axis, and the index where it last occurred; NaN propagates."""
    return _extremes("cummax", input, dim, axis)


def cummin(input: Any, dim: Any = None, *, axis: Any = None) -> Extremes:
    """The running minimum along an axis, and the index where it last occurred; NaN propagates."""
    return _extremes("cummin", input, dim, axis)


def logcumsumexp(input: Any, dim: Any = None, *, axis: Any = None) -> Tensor:
    """`log Σ eˣ`, cumulative along an axis, without overflow; takes log₂(size) steps."""

    x = floating("logcumsumexp", input)
    at = _axis("logcumsumexp", dim, axis, None, x)
    out = _line(x)
    size, step = out.shape[at], 1
    while step < size:
        joined = logaddexp(_slice(out, at, step, size - step), _slice(out, at, 0, size - step))
        out = emission.emit("cat", (_slice(out, at, 0, step), joined), at)
        step *= 2
    return _shaped(out, x)


def diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None, *, axis: Any = None) -> Tensor:
    """The differences between neighbours along an axis, taken `n` times; for booleans, whether they differ."""
    x = tensor_of("diff", input)
    at = axis_of("diff", spelled("diff", dim, axis, -1), x.shape)
    parts = [part for part in (prepend, x, append) if part is not None]
    if n < 0:
        raise ValueError(f"diff: differences are taken at least 0 times, not {n}")
    if n == 0:
        return clone(x)
    out = x if len(parts) == 1 else join_and_pad.cat(parts, at)
    for _ in range(min(n, out.shape[at])):
        size = max(out.shape[at] - 1, 0)
        ahead, behind = _slice(out, at, 1, size), _slice(out, at, 0, size)
        out = arithmetic.logical_xor(ahead, behind) if out.dtype is bool_ else arithmetic.sub(ahead, behind)
    return out


# in order


def argsort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False, *, axis: Any = None) -> Tensor:
    """The indices that sort along an axis, int64. Always stable; NaN counts as the largest."""
    x = tensor_of("argsort", input)
    at = _axis("argsort", dim, axis, -1, x)
    return _shaped(emission.emit("argsort", (_line(x),), at, bool(descending)), x)


def sort(
    input: Any, dim: int = -1, descending: bool = False, stable: bool | None = None, *, axis: Any = None
) -> Sorted:
    """Sort along an axis; also returns the indices. Always stable; NaN counts as the largest."""
    x = tensor_of("sort", input)
    at = _axis("sort", dim, axis, -1, x)
    line = _line(x)
    indices = emission.emit("argsort", (line,), at, bool(descending))
    return Sorted(_shaped(emission.emit("gather", (line, indices), at), x), _shaped(indices, x))


def msort(input: Any) -> Tensor:
    """Sort along the first axis."""
    return sort(input, 0).values


def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, axis: Any = None) -> Sorted:
    """The `k` largest (or smallest) elements along an axis, in order, and their indices."""
    x = tensor_of("topk", input)
    at = _axis("topk", dim, axis, -1, x)
    line = _line(x)
    if not 0 <= k <= line.shape[at]:
        raise ShapeError(f"topk: {k} of the {line.shape[at]} elements along dimension {at} of shape {x.shape}")
    indices = _slice(emission.emit("argsort", (line,), at, bool(largest)), at, 0, k)
    values = emission.emit("gather", (line, indices), at)
    return Sorted(values, indices) if x.ndim or k != 1 else Sorted(_shaped(values, x), _shaped(indices, x))


def _chosen(x: Tensor, at: int, order: Tensor, places: Tensor, keep: bool) -> Extremes:
    """Of what `order` sorts along an axis the values at these ranks, and their indices."""
    indices = emission.emit("gather", (order, places), at)
    values = emission.emit("gather", (x, indices), at)
    shape = x.shape[:at] + x.shape[at + 1 :]
    if keep:
        return Extremes(values, indices)
    return Extremes(emission.emit("reshape", (values,), shape), emission.emit("reshape", (indices,), shape))


def _ranked(name: str, x: Tensor, at: int) -> Tensor:
    if x.shape[at] == 0:
        raise ShapeError(f"{name}: no elements to choose from along dimension {at} of shape {x.shape}")
    return emission.emit("argsort", (x,), at, False)


def kthvalue(
    input: Any, k: int, dim: int = -1, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET
) -> Extremes:
    """The `k`-th smallest element along an axis (counting from 1), and its index."""
    x = tensor_of("kthvalue", input)
    at = _axis("kthvalue", dim, axis, -1, x)
    line = _line(x)
    if not 1 <= k <= line.shape[at]:
        raise ShapeError(
            f"kthvalue: the {k}th of the {line.shape[at]} elements along dimension {at} of shape {x.shape}"
        )
    keep = bool(spelled("kthvalue", keepdim, keepdims, False))
    place = creation.full([1 if i == at else size for i, size in enumerate(line.shape)], k - 1, dtype=int64)
    found = _chosen(line, at, _ranked("kthvalue", line, at), place, keep)
    return found if x.ndim else Extremes(_shaped(found.values, x), _shaped(found.indices, x))


def _median(name: str, input: Any, dim: Any, keep: bool, *, ignore: bool) -> Any:
    x = tensor_of(name, input)
    if dim is None:
        flat = emission.emit("reshape", (x,), (x.numel(),))
        if not flat.shape[0]:
            return creation.full((), math.nan, dtype=x.dtype)
        return _median(name, flat, 0, False, ignore=ignore).values
    at = axis_of(name, dim, x.shape or (1,))
    line = _line(x)
    size = line.shape[at]
    order = _ranked(name, line, at)
    if x.dtype.kind == "f":  # NaN come last in the order: the first of them is the median, unless they are ignored
        nans = reductions.sum(arithmetic.isnan(line), at, True)
        if ignore:
            place = arithmetic.clamp(arithmetic.floor_divide(arithmetic.sub(size - 1, nans), 2), 0)
        else:
            place = arithmetic.where(arithmetic.gt(nans, 0), arithmetic.sub(size, nans), (size - 1) // 2)
    else:
        shape = [1 if i == at else length for i, length in enumerate(line.shape)]
        place = creation.full(shape, (size - 1) // 2, dtype=int64)
    found = _chosen(line, at, order, place, keep)
    return found if x.ndim else Extremes(_shaped(found.values, x), _shaped(found.indices, x))


def median(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET) -> Any:
    """The lower median of all elements; along an axis `(values, indices)`. NaN propagates."""
    keep = bool(spelled("median", keepdim, keepdims, False))
    return _median("median", input, spelled("median", dim, axis, None), keep, ignore=False)


def nanmedian(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET) -> Any:
    """Like `median`, ignoring NaN."""
    keep = bool(spelled("nanmedian", keepdim, keepdims, False))
    return _median("nanmedian", input, spelled("nanmedian", dim, axis, None), keep, ignore=True)


def _quantile(name: str, input: Any, q: Any, dim: Any, keep: bool, interpolation: str, *, ignore: bool) -> Tensor:
    x = tensor_of(name, input)
    if x.dtype.kind != "f":
        raise DTypeError(f"{name} takes floating-point numbers, not {x.dtype}")
    if not isinstance(q, Tensor) and not 0 <= q <= 1:
        raise ValueError(f"{name}: a quantile lies between 0 and 1, not {q}")
    asked = q if isinstance(q, Tensor) else creation.tensor(float(q), dtype=x.dtype)
    if asked.dtype is not x.dtype or asked.ndim > 1:
        raise DTypeError(f"{name}: q is a number or a vector of {x.dtype}, not {asked.dtype} of shape {asked.shape}")
    if dim is None:
        line, at = emission.emit("reshape", (x,), (x.numel(),)), 0
    else:
        line, at = _line(x), axis_of(name, dim, x.shape or (1,))
    size = line.shape[at]
    ordered = emission.emit("gather", (line, _ranked(name, line, at)), at)
    count: Any = size
    nans = reductions.sum(arithmetic.isnan(line), at, True)
    if ignore:
        count = arithmetic.sub(size, nans)
    shape = [asked.numel() if i == at else 1 for i in range(line.ndim)]
    ranks = arithmetic.mul(cast(asked, float64).reshape(shape), count - 1)
    ranks = arithmetic.clamp(
        shape_ops.expand(ranks, [asked.numel() if i == at else s for i, s in enumerate(line.shape)]), 0
    )
    out = _interpolated(name, ordered, at, ranks, interpolation, x.dtype)
    if not ignore:
        out = arithmetic.where(shape_ops.expand(arithmetic.gt(nans, 0), out.shape), math.nan, out)
    moved = shape_ops.movedim(out, at, 0)
    whole = x.shape if x.ndim else (1,)
    rest = tuple(1 if dim is None or i == at else length for i, length in enumerate(whole)) if keep else moved.shape[1:]
    if not x.ndim:
        rest = ()
    return emission.emit("reshape", (moved,), (*(asked.shape), *rest))


def _interpolated(name: str, ordered: Tensor, at: int, ranks: Tensor, interpolation: str, dtype: Any) -> Tensor:
    below, above = arithmetic.floor(ranks), arithmetic.ceil(ranks)
    if interpolation in ("lower", "higher", "nearest"):
        place = {"lower": below, "higher": above, "nearest": arithmetic.round(ranks)}[interpolation]
        return emission.emit("gather", (ordered, cast(place, int64)), at)
    if interpolation not in ("linear", "midpoint"):
        raise ValueError(f"{name}: interpolation is linear, lower, higher, midpoint or nearest, not {interpolation!r}")
    low, high = (emission.emit("gather", (ordered, cast(place, int64)), at) for place in (below, above))
    part = cast(arithmetic.sub(ranks, below), dtype) if interpolation == "linear" else 0.5
    return arithmetic.add(low, arithmetic.mul(arithmetic.sub(high, low), part))


def quantile(
    input: Any, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear", axis: Any = None,
    keepdims: Any = UNSET,
) -> Tensor:  # fmt: skip
    """The quantiles `q` (a number or a vector, from 0 to 1) of all elements or along an axis; the axis of `q` comes
    first.
    """
    keep = bool(spelled("quantile", keepdim, keepdims, False))
    return _quantile("quantile", input, q, spelled("quantile", dim, axis, None), keep, interpolation, ignore=False)


def nanquantile(
    input: Any, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear", axis: Any = None,
    keepdims: Any = UNSET,
) -> Tensor:  # fmt: skip
    """Like `quantile`, ignoring NaN."""
    keep = bool(spelled("nanquantile", keepdim, keepdims, False))
    return _quantile("nanquantile", input, q, spelled("nanquantile", dim, axis, None), keep, interpolation, ignore=True)


# search


def searchsorted(
    sorted_sequence: Any, input: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Any = None,
) -> Tensor:  # fmt: skip
    """The number of elements of a sorted row below each value (with `right`: below or equal); int64.

    One row for all values, or one row for each, with the same leading dimensions. Values and rows of different dtypes are
    compared in the dtype that they are promoted to.
    """
    rows = tensor_of("searchsorted", sorted_sequence)
    if sorter is not None:
        rows = gather_scatter.gather(rows, -1, sorter)
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ValueError(f"searchsorted: side is 'left' or 'right', and as right says, not {side!r}")
    dtype = result_type_of(rows, input)
    values = input if isinstance(input, Tensor) else creation.tensor(input, dtype=dtype)
    if values.dtype is not rows.dtype:
        dtype = result_type([(rows.dtype, True), (values.dtype, True)], [])
        rows, values = cast(rows, dtype), cast(values, dtype)
    places = emission.emit("searchsorted", (rows, values), bool(right or side == "right"))
    return cast(places, int32) if out_int32 else places


def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """For each value, the index of the interval between the sorted `boundaries`, a vector, that contains it."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


@also_named(element="elements", test_element="test_elements")
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Where an element is contained in the others (with `invert`: is not), by binary search. One of the two may be a number."""
    x, others = meet("isin", elements, test_elements)
    if not isinstance(x, Tensor):
        x = creation.scalar_tensor(x, dtype=others.dtype)
    if not isinstance(others, Tensor):
        others = creation.scalar_tensor(others, dtype=x.dtype)
    count = others.numel()
    if not count:
        return creation.full(x.shape, bool(invert))
    line = emission.emit("reshape", (others,), (count,))
    order = emission.emit("argsort", (line,), 0, False)
    line = emission.emit("take", (line, order), 0)
    places = emission.emit("searchsorted", (line, x), False)
    found = emission.emit("take", (line, arithmetic.minimum(places, count - 1)), 0)
    return arithmetic.ne(found, x) if invert else arithmetic.eq(found, x)
