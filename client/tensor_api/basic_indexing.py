"""Basic indexing: integers, slices, None and Ellipsis in any mix, read as views and written in place.

One subscript becomes one slice instruction, whose starts are run-time scalars, and a reshape where it drops or adds
dimensions. Subscripts that hold tensors, arrays or lists are in `advanced_indexing.py`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.client.ops import creation
from gt.client.tensor import emission, emission_context, views
from gt.client.tensor.operands import cast, foreign_array_hint, is_foreign_array, plain
from gt.errors import GTError, IndexOutOfRange, ShapeError

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor


class UnsupportedIndex(GTError, TypeError, IndexError):
    """A subscript that is not basic indexing; says what is allowed."""


class BasicSubscript(NamedTuple):
    """A subscript in the slice instruction's terms, and the shape of what it selects before and after the reshape."""

    axes: tuple[int, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    window: tuple[int, ...]
    shape: tuple[int, ...]


def parse(key: Any, shape: tuple[int, ...]) -> BasicSubscript:
    """Parses a subscript of a tensor of `shape`. Raises `IndexError` and `TypeError` at once."""
    if type(key) is slice and shape:  # the commonest: a batch
        start, count, step = _range(key, shape[0])
        window = (count, *shape[1:])
        if start == 0 and count == shape[0] and step == 1:
            return BasicSubscript((), (), (), (), window, window)
        return BasicSubscript((0,), (start,), (count,), (step,), window, window)
    items = key if type(key) is tuple else (key,)
    axes: list[int] = []
    starts: list[int] = []
    sizes: list[int] = []
    steps: list[int] = []
    sides = list(shape)
    out: list[int] = []
    axis = 0
    for item in _spelled_out(items, shape):
        if item is None:
            out.append(1)
            continue
        size = shape[axis]
        if type(item) is slice:
            start, count, step = _range(item, size)
            out.append(count)
        else:
            start, count, step = _place(item, size, axis, shape), 1, 1
        if not (start == 0 and count == size and step == 1):
            axes.append(axis)
            starts.append(start)
            sizes.append(count)
            steps.append(step)
            sides[axis] = count
        elif type(item) is not slice:
            sides[axis] = 1
        axis += 1
    return BasicSubscript(tuple(axes), tuple(starts), tuple(sizes), tuple(steps), tuple(sides), tuple(out))


def _spelled_out(items: tuple[Any, ...], shape: tuple[int, ...]) -> list[Any]:
    """The items with slices in place of the Ellipsis and of what is missing at the end."""
    named = 0
    dots = None
    for at, item in enumerate(items):
        if item is Ellipsis:
            if dots is not None:
                raise IndexOutOfRange("an index has at most one Ellipsis (...)")
            dots = at
        elif item is not None:
            named += 1
    missing = len(shape) - named
    if missing < 0:
        raise IndexOutOfRange(f"{named} indices for shape {shape} of {len(shape)} dimensions")
    fill = [slice(None)] * missing
    return [*items, *fill] if dots is None else [*items[:dots], *fill, *items[dots + 1 :]]


def _place(item: Any, size: int, axis: int, shape: tuple[int, ...]) -> int:
    if isinstance(item, bool) or hasattr(item, "_value") or not hasattr(item, "__index__"):
        kind = type(item).__name__
        raise UnsupportedIndex(
            f"an index is made of integers, slices, None, Ellipsis, and tensors, arrays or lists of places or of truths, "
            f"not of {kind}"
        )
    try:
        at = operator.index(item)
    except TypeError:
        if not is_foreign_array(item):
            raise
        raise UnsupportedIndex(f"an index takes no {foreign_array_hint(item)}") from None
    if not -size <= at < size:
        raise IndexOutOfRange(f"index {at} is out of range for dimension {axis} of shape {shape}")
    return at + size if at < 0 else at


def _range(item: slice, size: int) -> tuple[int, int, int]:
    """(start, count, step) of a slice; of none or one element the start and step that need no arithmetic.

    A bound that a tensor holds is fetched: how many elements there are depends on it.
    """
    for bound in (item.start, item.stop, item.step):
        if isinstance(bound, bool):
            raise UnsupportedIndex("the bounds of a slice are integers, not truths")
    start, stop, step = item.indices(size)
    count = len(range(start, stop, step))
    if count == 0:
        return 0, 0, 1
    return start, count, step if count > 1 else 1


def get(x: Tensor, key: Any) -> Tensor:
    """`x[key]` for a basic subscript: a view."""
    cut = parse(key, x._value.spec.shape)
    if cut.axes:
        part = views.view_of(x, "slice", cut.axes, cut.sizes, cut.steps, starts=cut.starts)
        return part if cut.window == cut.shape else views.view_of(part, "reshape", cut.shape)
    return views.view_of(x, "reshape", cut.shape)


def set_(x: Tensor, key: Any, value: Any) -> None:
    """`x[key] = value` for a basic subscript; the value is broadcast to what `key` selects and cast to the dtype of `x`."""
    cut = parse(key, x._value.spec.shape)
    views.refuse_leaf(x, emission_context.current().grad)
    value = plain("x[...] = value", value)
    dtype = x._value.spec.dtype
    if not hasattr(value, "_value"):
        part = creation.full(cut.window, value, dtype=dtype)
    else:
        part = _fitted(cast(value, dtype), cut)
    if cut.axes:
        part = emission.emit("update_slice", (x, part, *cut.starts), cut.axes, cut.sizes, cut.steps)
    x._rebind(x._followed(part))


def _fitted(value: Tensor, cut: BasicSubscript) -> Tensor:
    """A value in the shape of the window: broadcast as NumPy does, where leading ones do not count."""
    shape = tuple(value.shape)
    if shape == cut.window:
        return value
    while len(shape) > len(cut.shape) and shape[0] == 1:
        shape = shape[1:]
    lead = len(cut.shape) - len(shape)
    if lead < 0 or any(size not in (1, cut.shape[lead + axis]) for axis, size in enumerate(shape)):
        raise ShapeError(f"x[...] = value: a value of shape {value.shape} does not broadcast to {cut.shape}")
    if shape != value.shape:
        value = emission.emit("reshape", (value,), shape)
    if shape != cut.shape:
        value = emission.emit("expand", (value,), cut.shape)
    return value if cut.shape == cut.window else emission.emit("reshape", (value,), cut.window)
