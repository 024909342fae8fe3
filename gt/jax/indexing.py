"""Gathers, scatters and slices whose places are values: each place becomes one number, the row of a table that the operand is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gt

from .arrangement import expanded, permuted, shaped

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["dynamic_slice", "dynamic_update_slice", "gather", "scatter"]


def gather(
    operand: Tensor,
    indices: Tensor,
    *,
    dimension_numbers: Any,
    slice_sizes: Sequence[int],
    mode: Any,
    fill_value: Any,
    **_: Any,
) -> Tensor:
    """XLA's gather. The slice at each place, where `offset_dims` say."""
    numbers = dimension_numbers
    left_out = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    mapped, batching = tuple(numbers.start_index_map), tuple(numbers.operand_batching_dims)
    for axis in range(operand.ndim):
        if axis not in (*mapped, *batching) and slice_sizes[axis] < operand.shape[axis]:
            operand = gt.narrow(operand, axis, 0, slice_sizes[axis])
    rows = _Rows(operand.shape, slice_sizes, mapped, batching, tuple(numbers.start_indices_batching_dims), left_out)
    places, inside = rows.places(indices)
    table = permuted(operand, rows.order)
    width = math.prod(rows.rest_sizes)
    found = gt.index_select(shaped(table, (rows.count, width)), 0, shaped(places, (math.prod(places.shape),)))
    found = shaped(found, (*places.shape, *rows.rest_sizes))
    if "FILL" in str(mode):
        kept = shaped(inside, (*inside.shape, *(1,) * (found.ndim - inside.ndim)))
        found = gt.where(kept, found, _filling(operand.dtype) if fill_value is None else fill_value)
    offsets = list(numbers.offset_dims)
    batch = len(indices.shape) - 1
    axis_of = {axis: batch + at for at, axis in enumerate((*rows.windowed, *rows.rest))}
    slices = [axis_of[axis] for axis in sorted(axis_of)]
    left = iter(range(batch))
    order = [slices[offsets.index(at)] if at in offsets else next(left) for at in range(found.ndim)]
    return permuted(found, order)


def scatter(reduction: str | None) -> Callable[..., Tensor]:
    """XLA's scatter by this reduction; None: the update replaces what was there. What lies outside is dropped."""

    def rule(
        operand: Tensor, indices: Tensor, updates: Tensor, *, dimension_numbers: Any, mode: Any, **_: Any
    ) -> Tensor:
        numbers = dimension_numbers
        left_out = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        mapped, batching = tuple(numbers.scatter_dims_to_operand_dims), tuple(numbers.operand_batching_dims)
        windows = [axis for axis in range(operand.ndim) if axis not in left_out]
        sizes = [1] * operand.ndim
        for axis, at in zip(windows, numbers.update_window_dims, strict=True):
            sizes[axis] = updates.shape[at]
            if axis not in mapped and sizes[axis] != operand.shape[axis]:
                raise NotImplementedError(
                    "gt.jax cannot compute JAX's primitive scatter of windows smaller than an axis without an index"
                )
        rows = _Rows(operand.shape, sizes, mapped, batching, tuple(numbers.scatter_indices_batching_dims), left_out)
        places, inside = rows.places(indices)
        if "CLIP" not in str(mode):  # one row more, for what lies outside
            outside = shaped(inside, (*inside.shape, *(1,) * (places.ndim - inside.ndim)))
            places = gt.where(outside, places, rows.count)
        update_axis = dict(zip(windows, numbers.update_window_dims, strict=True))
        batch_axes = [at for at in range(updates.ndim) if at not in numbers.update_window_dims]
        order = (*batch_axes, *(update_axis[axis] for axis in (*rows.windowed, *rows.rest)))
        width = math.prod(rows.rest_sizes)
        source = shaped(permuted(updates, order), (math.prod(places.shape), width))
        table = permuted(operand, rows.order)
        shape = table.shape
        table = gt.pad(shaped(table, (rows.count, width)), (0, 0, 0, 1))
        flat = shaped(places, (math.prod(places.shape),))
        if reduction is None:
            table = gt.index_put(table, (flat,), source)
        elif reduction == "sum":
            table = gt.index_add(table, 0, flat, source)
        else:
            table = gt.index_reduce(table, 0, flat, source, reduction)
        table = shaped(gt.narrow(table, 0, 0, rows.count), shape)
        return permuted(table, tuple(sorted(range(operand.ndim), key=rows.order.__getitem__)))

    return rule


class _Rows:
    """An operand as a table: a row for each place along the indexed axes, which come first."""

    def __init__(
        self,
        shape: Sequence[int],
        sizes: Sequence[int],
        mapped: tuple[int, ...],
        batching: tuple[int, ...],
        index_batching: tuple[int, ...],
        left_out: tuple[int, ...],
    ) -> None:
        self.indexed = (*batching, *mapped)
        self.rest = [axis for axis in range(len(shape)) if axis not in self.indexed]
        self.order = (*self.indexed, *self.rest)
        self.count = math.prod(shape[axis] for axis in self.indexed)
        self.rest_sizes = [shape[axis] for axis in self.rest]
        self.windowed = [axis for axis in mapped if axis not in left_out]
        """The indexed axes along which a slice has a dimension."""
        self._shape, self._sizes, self._mapped = shape, sizes, mapped
        self._batching = tuple(zip(batching, index_batching, strict=True))

    def places(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of each slice, (batch…, windows…), of which none lies outside; and which slices lie inside, (batch…)."""
        batch = tuple(indices.shape[:-1])
        strides = {
            axis: math.prod(self._shape[other] for other in self.indexed[at + 1 :])
            for at, axis in enumerate(self.indexed)
        }
        place: Any = None
        inside: Any = None
        for axis, at in self._batching:
            sizes = [1] * len(batch)
            sizes[at] = batch[at]
            numbers = _times(gt.arange(batch[at], dtype=gt.int64), strides[axis])
            place = _sum(place, expanded(shaped(numbers, sizes), batch))
        for column, axis in enumerate(self._mapped):
            start = gt.select(indices, len(batch), column)
            most = self._shape[axis] - self._sizes[axis]
            here = gt.logical_and(gt.ge(start, 0), gt.le(start, most))
            inside = here if inside is None else gt.logical_and(inside, here)
            place = _sum(place, _times(gt.clamp(gt.cast(start, gt.int64), 0, most), strides[axis]))
        if inside is None:
            inside = gt.ones(batch, dtype=gt.bool_)
        if place is None:
            place = gt.zeros(batch, dtype=gt.int64)
        for axis in self.windowed:
            steps = _times(gt.arange(self._sizes[axis], dtype=gt.int64), strides[axis])
            place = gt.add(gt.unsqueeze(place, -1), steps)
        return place, inside


def _sum(x: Tensor | None, y: Tensor) -> Tensor:
    return y if x is None else gt.add(x, y)


def _times(x: Tensor, number: int) -> Tensor:
    return x if number == 1 else gt.mul(x, number)


def _filling(dtype: Any) -> Any:
    """What a gather reads outside: not a number, the least signed integer, the greatest unsigned one."""
    if dtype is gt.bool_:
        return True
    if dtype.kind not in "iu":
        return math.nan
    limits = gt.iinfo(dtype)
    return limits.min if limits.min < 0 else limits.max


def dynamic_slice(x: Tensor, *starts: Any, slice_sizes: Sequence[int], **_: Any) -> Tensor:
    """The slice from these starts on, moved inside where it reaches beyond."""
    for axis, (start, size) in enumerate(zip(starts, slice_sizes, strict=True)):
        most = x.shape[axis] - size
        if not most:
            continue
        if isinstance(start, gt.Tensor):
            first = gt.clamp(gt.cast(start, gt.int64), 0, most)
            x = gt.index_select(x, axis, gt.add(first, gt.arange(size, dtype=gt.int64)))
        else:
            x = gt.narrow(x, axis, min(max(int(start), 0), most), size)
    return x


def dynamic_update_slice(x: Any, update: Tensor, *starts: Any) -> Tensor:
    """`x` with `update` from these starts on, moved inside where it reaches beyond."""
    if not isinstance(x, gt.Tensor):
        return update
    inside: Any = None
    for axis, start in enumerate(starts):
        size, whole = update.shape[axis], x.shape[axis]
        if size == whole:
            continue
        numbers = gt.arange(whole, dtype=gt.int64)
        if isinstance(start, gt.Tensor):
            first: Any = gt.clamp(gt.cast(start, gt.int64), 0, whole - size)
        else:
            first = min(max(int(start), 0), whole - size)
        place = gt.sub(numbers, first)
        here = gt.logical_and(gt.ge(place, 0), gt.lt(place, size))
        here = gt.reshape(here, tuple(whole if at == axis else 1 for at in range(x.ndim)))
        inside = here if inside is None else gt.logical_and(inside, here)
        update = gt.index_select(update, axis, gt.clamp(place, 0, size - 1))
    return update if inside is None else gt.where(inside, update, x)
