"""Functions that count values: histograms, bin counts, modes and distinct elements.

Where the data decides how many results there are (`unique`, `bincount`), that count alone is fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gt.client.tensor import emission
from gt.client.tensor.operands import cast, integers, of_kinds, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import bool_, float64, int64, uint8

from . import (
    arithmetic,
    complex_numbers,
    creation,
    join_and_pad,
    nonzero_indices,
    reductions,
    shape_ops,
)
from .reductions import UNSET, Extremes, spelled
from .shape_ops import axis_of
from .sort_scan import _axis, _line, _ranked, _shaped, _slice, searchsorted

__all__ = ["bincount", "histc", "histogram", "histogramdd", "mode", "unique", "unique_consecutive"]


def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Tensor:
    """The count of each number from 0 upwards in a vector of integers, or the sum of its weights. Fetches the
    largest.
    """
    x = integers("bincount", input)
    if minlength < 0:
        raise ValueError(f"bincount: minlength is not negative, not {minlength}")
    if x.ndim != 1:
        raise ShapeError(f"bincount takes a vector, not shape {x.shape}")
    low, high = (int(x.min()), int(x.max())) if x.numel() else (0, -1)
    if low < 0:
        raise ValueError(f"bincount: {low} is negative")
    if weights is None:
        values = creation.ones(x.shape, dtype=int64)
    else:
        values = tensor_of("bincount", weights)
        if values.dtype.name != "float32":
            values = cast(values, float64)
    return emission.emit("segment_sum", (values, x), 0, max(high + 1, minlength))


def histc(input: Any, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The number of elements in each of `bins` equal ranges from `min` to `max` (if equal: from the smallest to the
    largest).
    """
    x = of_kinds("histc", input, "bif")
    if bins < 1 or min > max:
        raise ValueError(f"histc: {bins} bins from {min} to {max}")
    flat = emission.emit("reshape", (cast(x, float64),), (x.numel(),))
    if min == max and x.numel():
        low, high = reductions.min(flat), reductions.max(flat)
    else:
        low, high = (creation.full((), end, dtype=float64) for end in (min, max))
    width = arithmetic.sub(high, low)
    alike = arithmetic.eq(width, 0)  # all elements are equal: PyTorch takes one more on either side
    low = arithmetic.where(alike, arithmetic.sub(low, 1.0), low) if min == max else low
    width = arithmetic.where(alike, 2.0, width)
    place = arithmetic.floor(arithmetic.mul(arithmetic.div(arithmetic.sub(flat, low), width), bins))
    place = arithmetic.where(arithmetic.eq(flat, arithmetic.add(width, low)), bins - 1, place)
    inside = arithmetic.logical_and(arithmetic.ge(place, 0), arithmetic.lt(place, bins))
    index = cast(arithmetic.where(inside, place, 0), int64)
    return emission.emit("segment_sum", (cast(inside, x.dtype), index), 0, bins)


class HistogramResult(NamedTuple):
    """The result of `histogram`."""

    hist: Tensor
    bin_edges: Tensor


class HistogramDD(NamedTuple):
    """The result of `histogramdd`."""

    hist: Tensor
    bin_edges: tuple[Tensor, ...]


def _edges(name: str, x: Tensor, bins: Any, low: Any, high: Any) -> Tensor:
    """The ends of ranges: given, or so many equal ones, of the whole when nothing says from where to where."""
    if isinstance(bins, Tensor):
        if bins.dtype is not x.dtype or bins.ndim != 1:
            raise DTypeError(f"{name}: the ends of ranges are a vector of {x.dtype}, not {bins.dtype} of {bins.shape}")
        return bins
    if not hasattr(bins, "__index__"):
        raise TypeError(
            f"{name}: bins is a number of ranges, or a vector of their ends, not {bins!r} ({type(bins).__name__})"
        )
    if bins < 1 or (low is not None and low > high):
        raise ValueError(f"{name}: {bins} bins from {low} to {high}")
    if low is None:
        empty = not x.numel()
        least, most = (0.0, 1.0) if empty else (reductions.min(x), reductions.max(x))
    else:
        least, most = float(low), float(high)
    alike = arithmetic.eq(creation.as_tensor(least), most)
    first = arithmetic.where(alike, arithmetic.sub(creation.full((), 0.0, dtype=x.dtype) + least, 0.5), least)
    last = arithmetic.where(alike, arithmetic.add(creation.full((), 0.0, dtype=x.dtype) + most, 0.5), most)
    step = arithmetic.div(arithmetic.sub(last, first), bins)
    number = creation.arange(bins + 1, dtype=x.dtype)
    near = arithmetic.add(first, arithmetic.mul(number, step))
    far = arithmetic.sub(last, arithmetic.mul(arithmetic.sub(bins, number), step))
    return arithmetic.where(arithmetic.lt(number, (bins + 1) // 2), near, far)


def _range_of(x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """For each element the number of its range, and whether it has one; the last range has both its ends."""
    count = edges.shape[0] - 1
    last = edges[count]
    place = arithmetic.sub(searchsorted(edges, x, right=True), 1)
    place = arithmetic.where(arithmetic.eq(x, last), count - 1, place)
    inside = arithmetic.logical_and(arithmetic.ge(place, 0), arithmetic.lt(place, count))
    return arithmetic.where(inside, place, 0), inside


def _dense(hist: Tensor, widths: Tensor) -> Tensor:
    return arithmetic.div(arithmetic.div(hist, widths), reductions.sum(hist))


def histogram(
    input: Any, bins: Any, range: Sequence[float] | None = None, weight: Any = None, density: bool = False
) -> HistogramResult:
    """The number of elements, or the sum of their weights, in each of `bins` equal ranges, or between the edges in a
    vector; and the edges. With `density` the integral over all ranges is 1.
    """
    x = tensor_of("histogram", input)
    if x.dtype.kind != "f":
        raise DTypeError(f"histogram takes floating-point numbers, not {x.dtype}")
    flat = emission.emit("reshape", (x,), (x.numel(),))
    low, high = (None, None) if range is None else range
    edges = _edges("histogram", flat, bins, low, high)
    place, inside = _range_of(flat, edges)
    values = (
        creation.ones(flat.shape, dtype=x.dtype)
        if weight is None
        else tensor_of("histogram", weight).reshape(flat.shape)
    )
    counted = arithmetic.where(inside, values, 0.0)
    hist = emission.emit("segment_sum", (counted, place), 0, edges.shape[0] - 1)
    if density:
        hist = _dense(hist, arithmetic.sub(edges[1:], edges[:-1]))
    return HistogramResult(hist, edges)


def histogramdd(
    input: Any, bins: Any, range: Sequence[float] | None = None, weight: Any = None, density: bool = False
) -> HistogramDD:
    """Like `histogram`, for points whose coordinates are the last dimension; `range` holds a pair per coordinate."""
    x = tensor_of("histogramdd", input)
    if x.dtype.kind != "f" or x.ndim < 2:
        raise DTypeError(f"histogramdd takes points of floating-point numbers, not {x.dtype} of shape {x.shape}")
    size = x.shape[-1]
    points = shape_ops.reshape(x, (-1, size) if x.numel() else (0, size))
    each = list(bins) if isinstance(bins, Sequence) else [bins] * size
    if len(each) != size or (range is not None and len(range) != 2 * size):
        raise ShapeError(f"histogramdd: bins and range for {size} coordinates, not {bins} and {range}")
    edges, place, inside = [], None, None
    for axis, wanted in enumerate(each):
        line = shape_ops.select(points, 1, axis)
        low, high = (None, None) if range is None else range[2 * axis : 2 * axis + 2]
        edges.append(_edges("histogramdd", line, wanted, low, high))
        number, within = _range_of(line, edges[-1])
        count = edges[-1].shape[0] - 1
        place = number if place is None else arithmetic.add(arithmetic.mul(place, count), number)
        inside = within if inside is None else arithmetic.logical_and(inside, within)
    shape = tuple(line.shape[0] - 1 for line in edges)
    values = creation.ones((points.shape[0],), dtype=x.dtype) if weight is None else shape_ops.reshape(weight, -1)
    total = 1
    for length in shape:
        total *= length
    flat = emission.emit("segment_sum", (arithmetic.where(inside, values, 0.0), place), 0, total)
    hist = shape_ops.reshape(flat, shape)
    if density:
        for axis, line in enumerate(edges):
            widths = arithmetic.sub(line[1:], line[:-1])
            hist = arithmetic.div(hist, shape_ops.reshape(widths, (-1, *(1,) * (size - axis - 1))))
        hist = arithmetic.div(hist, reductions.sum(flat))
    return HistogramDD(hist, tuple(edges))


# the distinct


def mode(input: Any, dim: int = -1, keepdim: bool = False, *, axis: Any = None, keepdims: Any = UNSET) -> Extremes:
    """The most frequent value along an axis (the smallest if there are several), and its last index."""
    x = tensor_of("mode", input)
    at = _axis("mode", dim, axis, -1, x)
    keep = bool(spelled("mode", keepdim, keepdims, False))
    line = _line(x)
    order = _ranked("mode", line, at)
    ordered = emission.emit("gather", (line, order), at)
    size = line.shape[at]
    number = creation.arange(size).reshape(tuple(size if axis == at else 1 for axis in range(line.ndim)))
    changed = arithmetic.ne(_slice(ordered, at, 1, size - 1), _slice(ordered, at, 0, size - 1))
    start = arithmetic.where(changed, _slice(number, at, 1, size - 1), 0)
    start = emission.emit("cat", (creation.zeros(_slice(ordered, at, 0, 1).shape, dtype=int64), start), at)
    begun = emission.emit("gather", (start, emission.emit("argcummax", (start,), at)), at)
    longest = emission.emit("argmax", (arithmetic.sub(number, begun),), at, True)
    indices = emission.emit("gather", (order, longest), at)
    values = emission.emit("gather", (line, indices), at)
    if keep or not x.ndim:
        return Extremes(_shaped(values, x), _shaped(indices, x))
    return Extremes(shape_ops.squeeze(values, at), shape_ops.squeeze(indices, at))


class _Runs(NamedTuple):
    """Of elements (or rows) in order the first of each run of equals, each one's run, and how long runs are."""

    values: Tensor
    inverse: Tensor
    counts: Tensor | None


def _runs(ordered: Tensor, return_counts: bool) -> _Runs:
    """The runs of equals along the first axis, of which the number is fetched."""
    size = ordered.shape[0]
    if not size:
        empty = creation.zeros((0,), dtype=int64)
        return _Runs(ordered, empty, empty)
    changed = arithmetic.ne(_slice(ordered, 0, 1, size - 1), _slice(ordered, 0, 0, size - 1))
    if changed.ndim > 1:
        changed = emission.emit("any", (changed,), tuple(range(1, changed.ndim)), False)
    first = join_and_pad.cat([creation.ones((1,), dtype=bool_), changed])
    places = nonzero_indices.places_of(first)
    inverse = arithmetic.sub(emission.emit("cumsum", (cast(first, int64),), 0), 1)
    counts = None
    if return_counts:
        ends = join_and_pad.cat([_slice(places, 0, 1, places.shape[0] - 1), creation.full((1,), size, dtype=int64)])
        counts = arithmetic.sub(ends, places)
    return _Runs(emission.emit("take", (ordered, places), 0), inverse, counts)


def _listed(values: Tensor, inverse: Tensor | None, counts: Tensor | None) -> Any:
    parts = [part for part in (values, inverse, counts) if part is not None]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _rows(name: str, input: Any, dim: Any) -> tuple[Tensor, Tensor, int | None]:
    """The tensor, what of it is compared (elements, or slices as rows of a matrix), and the axis of the slices."""
    x = tensor_of(name, input)
    if dim is None or x.ndim == 0:
        return x, emission.emit("reshape", (x,), (x.numel(),)), None
    at = axis_of(name, dim, x.shape)
    moved = shape_ops.movedim(x, at, 0)
    return x, emission.emit("reshape", (moved,), (x.shape[at], x.numel() // max(x.shape[at], 1))), at


def _found(x: Tensor, at: int | None, runs: _Runs, inverse: Tensor | None, return_counts: bool) -> Any:
    values = runs.values
    if at is not None:
        rest = x.shape[:at] + x.shape[at + 1 :]
        values = shape_ops.movedim(emission.emit("reshape", (values,), (values.shape[0], *rest)), 0, at)
    elif inverse is not None:
        inverse = emission.emit("reshape", (inverse,), x.shape)
    return _listed(values, inverse, runs.counts if return_counts else None)


def unique(
    input: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    """The distinct elements in ascending order, or with `dim` the distinct slices along it, in lexicographic order.

    On request, also the index of each element among them, and their counts. Fetches their number. Each NaN is
    distinct.
    """
    x, rows, at = _rows("unique", input, dim)
    if rows.ndim == 1:
        order = emission.emit("argsort", (rows,), 0, False)
    else:
        keys = complex_numbers.view_as_real(rows).reshape(rows.shape[0], -1) if rows.dtype.kind == "c" else rows
        order = emission.emit("lexsort", (cast(keys, uint8) if keys.dtype is bool_ else keys,))
    runs = _runs(emission.emit("take", (rows, order), 0), return_counts)
    inverse = emission.emit("scatter", (order, order, runs.inverse), 0) if return_inverse else None
    return _found(x, at, runs, inverse, return_counts)


def unique_consecutive(input: Any, return_inverse: bool = False, return_counts: bool = False, dim: Any = None) -> Any:
    """The first of each run of equal elements, or with `dim` of equal slices along it.

    On request, also the run of each element, and the lengths of runs. Fetches their number.
    """
    x, rows, at = _rows("unique_consecutive", input, dim)
    runs = _runs(rows, return_counts)
    return _found(x, at, runs, runs.inverse if return_inverse else None, return_counts)
