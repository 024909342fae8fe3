"""Advanced indexing: subscripts that hold tensors, arrays or lists of indices, or masks, in any mix with slices.

The basic items are applied first, as a view (`basic_indexing.py`); of the rest places become one place along one axis, a mask the
places where it holds, whose number is fetched. What places select are new values, but single ones count as integers do and
select a view. Writing where a mask holds fetches nothing: it chooses. PyTorch's rules hold: the dimensions of the places come
where the first of them was, or in front when a slice parts them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gt.client.ops import arithmetic, creation, gather_scatter, nonzero_indices, shape_ops
from gt.client.tensor import emission, emission_context, views
from gt.client.tensor.operands import cast, plain
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, IndexOutOfRange, ShapeError
from gt.ir.dtypes import bool_, int32, int64
from gt.ir.infer import broadcast

from . import basic_indexing


class SplitSubscript(NamedTuple):
    """A subscript in two steps: what basic items select, then for some of its axes a mask or places."""

    basic: tuple[Any, ...]
    listed: list[tuple[int, Tensor]]


def lists(key: Any) -> bool:
    """Whether a subscript holds more than integers, slices, None and Ellipsis."""
    items = key if type(key) is tuple else (key,)
    return any(
        isinstance(item, (Tensor, list, range, bool, np.bool_))
        or (isinstance(item, np.ndarray) and (item.ndim > 0 or item.dtype == np.bool_))
        for item in items
    )


def _tensor(item: Any) -> Tensor:
    if isinstance(item, Tensor):
        known = item
    else:
        array = np.asarray(item)
        empty = not array.size and array.dtype.kind == "f"  # what NumPy makes of []
        known = creation.tensor(array.astype(np.int64) if empty else array)
    if known.dtype.kind not in "bi":
        raise DTypeError(f"an index tensor holds integers or booleans, not {known.dtype}")
    return known


def _parse(key: Any, shape: tuple[int, ...]) -> SplitSubscript:
    items = [
        _tensor(item) if isinstance(item, (Tensor, list, range, bool, np.bool_, np.ndarray)) else item
        for item in (key if type(key) is tuple else (key,))
    ]
    wide: list[Any] = []  # a mask in as many places as it has dimensions, of which the first holds it
    for item in items:
        if isinstance(item, Tensor) and item.dtype is bool_:
            # one without dimensions is for a new one, of size 1
            wide += (
                [item, *[_COVERED] * (item.ndim - 1)] if item.ndim else [_Lone(emission.emit("reshape", (item,), (1,)))]
            )
        else:
            wide.append(item)
    named = sum(item is not None and item is not Ellipsis and not isinstance(item, _Lone) for item in wide)
    if named > len(shape):
        raise IndexOutOfRange(f"{named} indices for shape {shape} of {len(shape)} dimensions")
    if not any(item is Ellipsis for item in wide):
        wide.append(Ellipsis)
    basic: list[Any] = []
    listed: list[tuple[int, Tensor]] = []
    axis = 0
    for item in wide:
        if isinstance(item, _Lone):
            listed.append((axis, item.mask))
            basic.append(None)
            axis += 1
            continue
        if isinstance(item, Tensor):
            listed.append((axis, item))
        if isinstance(item, Tensor) or item is _COVERED:
            basic.append(slice(None))
            axis += 1
            continue
        basic.append(item)
        axis += len(shape) - named if item is Ellipsis else item is None or type(item) is slice
    return SplitSubscript(tuple(basic), listed)


_COVERED: Any = object()
"""Stands in a subscript for a further dimension of the mask before it."""


class _Lone(NamedTuple):
    """Stands in a subscript for a mask without dimensions: a vector of one for a new dimension."""

    mask: Tensor


def _fitting(mask: Tensor, axis: int, shape: tuple[int, ...]) -> Tensor:
    """A mask for dimensions from `axis` on. One without elements fits whatever its other sizes are, as in NumPy."""
    sides = shape[axis : axis + mask.ndim]
    if mask.shape == sides:
        return mask
    if len(sides) == mask.ndim and all(size in (0, side) for size, side in zip(mask.shape, sides, strict=True)):
        return creation.zeros(sides, dtype=bool_)
    raise IndexOutOfRange(f"a mask of shape {mask.shape} does not fit shape {shape} from dimension {axis} on")


class MergedAxes(NamedTuple):
    """A tensor whose listed axes are one, which axis that is, the places along it, and how to undo it."""

    x: Tensor
    axis: int
    places: Tensor
    order: tuple[int, ...]
    moved: tuple[int, ...]


def _merged(x: Tensor, listed: list[tuple[int, Tensor]]) -> MergedAxes:
    order = tuple(range(x.ndim))
    if len(listed) == 1 and listed[0][1].dtype is bool_:
        axis, mask = listed[0]
        mask = _fitting(mask, axis, x.shape)
        shape = (*x.shape[:axis], mask.numel(), *x.shape[axis + mask.ndim :])
        return MergedAxes(emission.emit("reshape", (x,), shape), axis, nonzero_indices.places_of(mask), order, x.shape)
    axes: list[int] = []
    indices: list[Tensor] = []
    for axis, index in listed:
        if index.dtype is bool_:
            index = _fitting(index, axis, x.shape)
            indices += gather_scatter.nonzero(index, as_tuple=True)
            axes += range(axis, axis + index.ndim)
        else:
            indices.append(index)
            axes.append(axis)
    if len(axes) == 1:
        return MergedAxes(x, axes[0], indices[0], order, x.shape)
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    at = axes[0] if adjacent else 0
    if not adjacent:
        order = (*axes, *(axis for axis in order if axis not in axes))
        x = emission.emit("permute", (x,), order)
    sizes = x.shape[at : at + len(axes)]
    shape = broadcast("index", [index.shape for index in indices])
    places = gather_scatter.linear("index", [shape_ops.expand(index, shape) for index in indices], sizes)
    flat = emission.emit("reshape", (x,), (*x.shape[:at], math.prod(sizes), *x.shape[at + len(axes) :]))
    return MergedAxes(flat, at, places, order, x.shape)


def get(x: Tensor, key: Any) -> Tensor:
    """`x[key]`: new values; a view where all that is listed are single places, which count as integers do."""
    parts = _parse(key, x.shape)
    if all(not index.ndim and index.dtype in (int32, int64) for _, index in parts.listed):
        out = basic_indexing.get(x, parts.basic)
        for axis, index in reversed(parts.listed):
            out = views.view_of(out, "take", axis, starts=(Tensor(index._current()),))
        return out
    merged = _merged(basic_indexing.get(x, parts.basic), parts.listed)
    return emission.emit("take", (merged.x, merged.places), merged.axis)


def set_(x: Tensor, key: Any, value: Any) -> None:
    """`x[key] = value`, which is broadcast and cast to the dtype of `x`; of values for one place the last is written."""
    parts = _parse(key, x.shape)
    views.refuse_leaf(x, emission_context.current().grad)
    given = plain("x[...] = value", value)
    dtype = x._value.spec.dtype
    new = cast(given, dtype) if isinstance(given, Tensor) else creation.full((), given, dtype=dtype)
    part = basic_indexing.get(x, parts.basic)
    out = None
    if len(parts.listed) == 1 and parts.listed[0][1].dtype is bool_:
        out = _chosen(part, *parts.listed[0], new)
    if out is None:
        out = _written(part, parts.listed, new)
    part._rebind(part._followed(out))


def _chosen(x: Tensor, axis: int, mask: Tensor, value: Tensor) -> Tensor | None:
    """`x` with a value where a mask holds; None where a value for each place lies behind other dimensions."""
    mask = _fitting(mask, axis, x.shape)
    rest = x.ndim - axis - mask.ndim
    wide = emission.emit("reshape", (mask,), (*mask.shape, *(1,) * rest))
    while value.ndim > axis + 1 + rest and value.shape[0] == 1:
        value = emission.emit("reshape", (value,), value.shape[1:])
    if value.ndim > rest and value.shape[value.ndim - rest - 1] != 1:
        if axis:
            return None
        _check_fit(value, (value.shape[0], *x.shape[mask.ndim :]))
        return gather_scatter.in_order(
            x, mask, shape_ops.expand(value, (value.shape[0], *x.shape[mask.ndim :])), whole=True
        )
    if value.ndim > rest:  # one for all places: the axis of places becomes those of the mask
        lead = value.shape[: value.ndim - rest - 1]
        value = emission.emit("reshape", (value,), (*lead, *(1,) * mask.ndim, *value.shape[value.ndim - rest :]))
    _check_fit(value, x.shape)
    return arithmetic.where(wide, value, x)


def _check_fit(value: Tensor, shape: tuple[int, ...]) -> None:
    lead = len(shape) - value.ndim
    if lead < 0 or any(size not in (1, shape[lead + at]) for at, size in enumerate(value.shape)):
        raise ShapeError(f"x[...] = value: a value of shape {value.shape} does not broadcast to {shape}")


def _written(x: Tensor, listed: list[tuple[int, Tensor]], value: Tensor) -> Tensor:
    merged = _merged(x, listed)
    flat, at, places = merged.x, merged.axis, merged.places
    shape = (*flat.shape[:at], *places.shape, *flat.shape[at + 1 :])
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = emission.emit("reshape", (value,), value.shape[1:])
    _check_fit(value, shape)
    count = places.numel()
    rows = emission.emit("reshape", (shape_ops.expand(value, shape),), (*flat.shape[:at], count, *flat.shape[at + 1 :]))
    if count:
        flat = gather_scatter.written(flat, at, emission.emit("reshape", (places,), (count,)), rows)
    else:
        flat = gather_scatter.written_nowhere(flat, rows, at)
    out = emission.emit("reshape", (flat,), merged.moved)
    back = tuple(merged.order.index(axis) for axis in range(len(merged.order)))
    return out if back == tuple(range(len(back))) else emission.emit("permute", (out,), back)
