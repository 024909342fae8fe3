"""Functions that show the same elements otherwise: in another shape or order, spread, or a part of them.

Where nothing would have to be copied they are views (`gt.client.tensor.views`). What copies elements to other positions is in
`join_and_pad.py`.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

from gt.client.tensor import emission, views
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import MAX_UNROLLED, cast, clone, tensor_of, unrolled
from gt.client.tensor.tensor import Tensor
from gt.errors import AxisError, DTypeError, ShapeError
from gt.ir.dtypes import DType, int64

__all__ = [
    "broadcast_to", "chunk", "dsplit", "expand", "expand_as", "flatten", "hsplit", "moveaxis", "movedim", "narrow",
    "permute", "ravel", "reshape", "reshape_as", "select", "split", "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t",
    "tensor_split", "transpose", "unbind", "unflatten", "unsafe_chunk", "unsafe_split", "unsqueeze", "view", "vsplit",
]  # fmt: skip


def axis_of(name: str, axis: Any, shape: tuple[int, ...], extra: int = 0) -> int:
    """A non-negative axis of `shape` (with `extra` dimensions more). Raises `AxisError` when there is none such."""
    ndim = len(shape) + extra
    try:
        at = operator.index(axis)
    except TypeError:
        raise TypeError(f"{name}: an axis is an integer, not {axis!r}") from None
    if not -ndim <= at < ndim:
        raise AxisError(f"{name}: axis {at} is out of range for shape {shape}")
    return at + ndim if at < 0 else at


def ints(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Integers given one by one or as one sequence."""
    if len(sizes) == 1 and isinstance(sizes[0], Sequence):
        sizes = tuple(sizes[0])
    return tuple(map(operator.index, sizes))


def _whole(x: Tensor, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """`sizes` with −1 worked out."""
    if -1 in sizes:
        rest = -math.prod(sizes)
        if rest <= 0 or sizes.count(-1) > 1 or x._value.spec.size % rest:
            raise ShapeError(f"reshape: shape {x.shape} of {x._value.spec.size} elements cannot become {sizes}")
        at = sizes.index(-1)
        return (*sizes[:at], x._value.spec.size // rest, *sizes[at + 1 :])
    if sizes and min(sizes) < 0:
        raise ShapeError(f"reshape: {sizes} has a negative size")
    return sizes


def _dense(x: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether `x` can be seen in `shape` without a copy."""
    if x._view is None or shape == x.shape:
        return True
    strides = views.strides_of(x)
    return strides is not None and views.reshaped(x.shape, strides, shape) is not None


def _reshape(input: Any, sizes: tuple[int, ...]) -> Tensor:
    x = tensor_of("reshape", input)
    shape = _whole(x, sizes)
    if math.prod(shape) == x._value.spec.size and not _dense(x, shape):
        return emission.emit("reshape", (x,), shape)
    return views.view_of(x, "reshape", shape)


def reshape(input: Any, *sizes: Any, shape: Any = None) -> Tensor:
    """The same elements in another shape, in which one size may be −1; a view unless that would need a copy."""
    return _reshape(input, ints(sizes if shape is None else (*sizes, shape)))


def view(input: Any, *sizes: Any, size: Any = None, dtype: Any = None) -> Tensor:
    """Like `reshape`, but raises an error if that would need a copy. Of a dtype: the same bytes as numbers of that dtype, a view
    too, without a gradient; as booleans, whether a byte is not 0.
    """
    x = tensor_of("view", input)
    if size is not None or dtype is not None:
        sizes = (*sizes, *(each for each in (size, dtype) if each is not None))
    if len(sizes) == 1 and isinstance(sizes[0], DType):
        return _reinterpreted(x, sizes[0])
    shape = _whole(x, ints(sizes))
    if math.prod(shape) == x._value.spec.size and not _dense(x, shape):
        raise ShapeError(f"view: shape {x.shape} cannot be seen as {shape} without a copy: use reshape")
    return views.view_of(x, "reshape", shape)


def _reinterpreted(x: Tensor, dtype: DType) -> Tensor:
    if dtype is x.dtype:
        return views.view_of(x, "reshape", x.shape)
    return views.view_of(x, "bitcast", dtype)


def reshape_as(input: Any, other: Tensor) -> Tensor:
    """`input` in the shape of `other`."""
    return _reshape(input, tensor_of("reshape_as", other).shape)


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merge the dimensions from `start_dim` to `end_dim` into one."""
    x = tensor_of("flatten", input)
    if x.ndim == 0:
        return _reshape(x, (1,))
    first, last = axis_of("flatten", start_dim, x.shape), axis_of("flatten", end_dim, x.shape)
    if first > last:
        raise ShapeError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim} in shape {x.shape}")
    return _reshape(x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def ravel(input: Any) -> Tensor:
    """Flatten to one dimension: a view only if the tensor is in row-major order."""
    return flatten(contiguous(input))


def contiguous(input: Any) -> Tensor:
    """The same values in row-major order: the tensor itself, unless it is a view that lies otherwise."""
    x = tensor_of("contiguous", input)
    return x if x.is_contiguous() else clone(x)


def unflatten(input: Any, dim: int, sizes: Sequence[int]) -> Tensor:
    """Split one dimension into several, of which one size may be −1."""
    x = tensor_of("unflatten", input)
    at = axis_of("unflatten", dim, x.shape)
    known = -math.prod(sizes) if -1 in sizes else 0
    parts = [x.shape[at] // known if size == -1 and known > 0 else size for size in sizes]
    return _reshape(x, (*x.shape[:at], *parts, *x.shape[at + 1 :]))


def permute(input: Any, *order: Any, dims: Any = None) -> Tensor:
    """Reorder the dimensions: dimension i of the result is dimension dims[i] of the input."""
    x = tensor_of("permute", input)
    axes = tuple([axis_of("permute", axis, x.shape) for axis in ints(order if dims is None else (dims,))])
    return views.view_of(x, "permute", axes)


def transpose(input: Any, dim0: Any = None, dim1: Any = None, *, axes: Any = None) -> Tensor:
    """Swap two dimensions; or, as in NumPy, reorder all by `axes` (reversed by default)."""
    x = tensor_of("transpose", input)
    if dim1 is None:
        order = axes if dim0 is None else dim0
        return permute(x, tuple(reversed(range(x.ndim))) if order is None else order)
    if x.ndim == 0 and dim0 in (0, -1) and dim1 in (0, -1):
        return permute(x, ())
    a, b = axis_of("transpose", dim0, x.shape), axis_of("transpose", dim1, x.shape)
    swapped = list(range(x.ndim))
    swapped[a], swapped[b] = b, a
    return views.view_of(x, "permute", tuple(swapped))


def t(input: Any) -> Tensor:
    """Transpose a matrix; tensors with fewer dimensions are returned unchanged."""
    x = tensor_of("t", input)
    if x.ndim > 2:
        raise ShapeError(f"t takes at most two dimensions, not shape {x.shape}: use .mT or transpose")
    return views.view_of(x, "permute", tuple(reversed(range(x.ndim))))


def movedim(input: Any, source: Any, destination: Any) -> Tensor:
    """Move dimensions to other positions; the rest keep their order."""
    x = tensor_of("movedim", input)
    if x.ndim == 0 and source in (0, -1) and destination in (0, -1):
        return permute(x, ())
    start = [axis_of("movedim", axis, x.shape) for axis in (source if isinstance(source, Sequence) else (source,))]
    end = [
        axis_of("movedim", a, x.shape) for a in (destination if isinstance(destination, Sequence) else (destination,))
    ]
    if len(start) != len(end) or len(set(start)) != len(start) or len(set(end)) != len(end):
        raise ShapeError(f"movedim: {source} and {destination} do not pair distinct dimensions of shape {x.shape}")
    placed = dict(zip(end, start, strict=True))
    rest = iter([axis for axis in range(x.ndim) if axis not in start])
    return permute(x, tuple(placed[axis] if axis in placed else next(rest) for axis in range(x.ndim)))


def unsqueeze(input: Any, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """Insert a dimension of size 1 before `dim`."""
    x = tensor_of("unsqueeze", input)
    at = axis_of("unsqueeze", dim if axis is None else axis, x.shape, 1)
    return views.view_of(x, "reshape", (*x.shape[:at], 1, *x.shape[at:]))


def squeeze(input: Any, dim: Any = None, *, axis: Any = None) -> Tensor:
    """Remove the dimensions of size 1, or those of them that `dim` names."""
    x = tensor_of("squeeze", input)
    dim = dim if axis is None else axis
    if dim is None:
        drop = set(range(x.ndim))
    elif x.ndim == 0:
        drop = set()
    else:
        named = [axis_of("squeeze", each, x.shape) for each in (dim if isinstance(dim, Sequence) else (dim,))]
        drop = set(named)
        if len(drop) != len(named):
            raise ShapeError(f"squeeze: axes {tuple(dim)} of shape {x.shape} repeat each other")
    return views.view_of(x, "reshape", tuple(s for i, s in enumerate(x.shape) if not (s == 1 and i in drop)))


def expand(input: Any, *sizes: Any, size: Any = None, implicit: bool = False) -> Tensor:
    """Broadcast to `sizes` (−1 keeps a size): a read-only view."""
    x = tensor_of("expand", input)
    shape = ints(sizes if size is None else (*sizes, size))
    lead = len(shape) - x.ndim
    kept = tuple(x.shape[i - lead] if each == -1 and i >= lead else each for i, each in enumerate(shape))
    if kept and min(kept) < 0:
        raise ShapeError(f"expand: shape {x.shape} does not broadcast to {shape}")
    return views.view_of(x, "expand", kept)


def expand_as(input: Any, other: Tensor) -> Tensor:
    """Broadcast to the shape of `other`."""
    return expand(input, tensor_of("expand_as", other).shape)


@also_named(size="shape")
def broadcast_to(input: Any, shape: Sequence[int]) -> Tensor:
    """Broadcast to `shape`."""
    return expand(input, tuple(shape))


# parts


def narrow(input: Any, dim: int, start: Any, length: int) -> Tensor:
    """`length` elements from `start` on along one axis: a view."""
    x = tensor_of("narrow", input)
    at = axis_of("narrow", dim, x.shape)
    if isinstance(start, Tensor) and (start.ndim or start.dtype.kind != "i"):
        raise DTypeError(f"narrow: start is an integer, not {start.dtype} of shape {start.shape}")
    size, start = x.shape[at], operator.index(start)
    first = start + size if start < 0 else start
    if length < 0 or not 0 <= first <= size - length:
        raise ShapeError(f"narrow: {length} elements from {start} on do not fit dimension {at} of shape {x.shape}")
    return views.view_of(x, "slice", (at,), (length,), (1,), starts=(first if length else 0,))


@also_named(tensor="input", split_size="split_size_or_sections", split_sizes="split_size_or_sections")
def split(
    input: Any, split_size_or_sections: int | Sequence[int], dim: int = 0, *, axis: int | None = None
) -> tuple[Tensor, ...]:
    """Split along an axis into parts of one size (the last may be smaller) or of given sizes: views."""
    x = tensor_of("split", input)
    at = axis_of("split", dim if axis is None else axis, x.shape)
    size = x.shape[at]
    if isinstance(split_size_or_sections, int):
        step = split_size_or_sections
        if step < 0 or (step == 0 and size):
            raise ShapeError(f"split: parts of {step} do not make up dimension {at} of shape {x.shape}")
        sections = [min(step, size - start) for start in range(0, size, step or 1)] or [0]
    else:
        sections = list(split_size_or_sections)
        if sum(sections) != size or min(sections, default=0) < 0:
            raise ShapeError(f"split: sizes {sections} do not add up to dimension {at} of shape {x.shape}")
    starts = [sum(sections[:i]) for i in range(len(sections))]
    return tuple([narrow(x, at, start, length) for start, length in zip(starts, sections, strict=True)])


def chunk(input: Any, chunks: int, dim: int = 0, *, axis: int | None = None) -> tuple[Tensor, ...]:
    """Split along an axis into at most `chunks` parts of equal size (the last may be smaller): views."""
    x = tensor_of("chunk", input)
    if chunks < 1:
        raise ShapeError(f"chunk: {chunks} parts of shape {x.shape}")
    at = axis_of("chunk", dim if axis is None else axis, x.shape)
    size = -(-x.shape[at] // chunks)
    return split(x, size, at) if size else tuple(narrow(x, at, 0, 0) for _ in range(unrolled("chunk", chunks)))


@also_named(tensor_indices_or_sections="indices_or_sections")
def tensor_split(
    input: Any, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None, sections: Any = None
) -> tuple[Tensor, ...]:
    """Split into a number of parts (the first ones are longer by one if needed), or before each index: views.

    The number or the indices are the second argument, or `sections` or `indices` by name.
    """
    x = tensor_of("tensor_split", input)
    at = axis_of("tensor_split", dim, x.shape)
    size = x.shape[at]
    said = [one for one in (indices_or_sections, indices, sections) if one is not None]
    if len(said) != 1:
        raise TypeError("tensor_split takes one of indices_or_sections, indices and sections")
    (given,) = said
    if isinstance(given, Tensor):
        given = given.tolist()
    if isinstance(given, int):
        if not 1 <= given <= MAX_UNROLLED:
            raise ShapeError(f"tensor_split: {given} parts of shape {x.shape}, not from 1 to {MAX_UNROLLED}")
        small, longer = divmod(size, given)
        ends = [part * small + min(part, longer) for part in range(given + 1)]
    else:
        ends = [0, *(slice(index).indices(size)[1] for index in given), size]
    return tuple([narrow(x, at, first, max(last - first, 0)) for first, last in itertools.pairwise(ends)])


def _split_along(name: str, input: Any, given: Any, dim: int, ndim: int) -> tuple[Tensor, ...]:
    x = tensor_of(name, input)
    if x.ndim < ndim:
        raise ShapeError(f"{name} takes at least {ndim} dimensions, not shape {x.shape}")
    if isinstance(given, int) and (given < 1 or x.shape[dim] % given):
        raise ShapeError(f"{name}: {given} parts do not divide dimension {dim} of shape {x.shape}")
    return tensor_split(x, given, dim)


@also_named(indices="indices_or_sections", sections="indices_or_sections")
def hsplit(input: Any, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Split along the second dimension, or the only one: views."""
    x = tensor_of("hsplit", input)
    return _split_along("hsplit", x, indices_or_sections, 0 if x.ndim == 1 else 1, 1)


@also_named(indices="indices_or_sections", sections="indices_or_sections")
def vsplit(input: Any, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Split along the first dimension of a tensor with at least two: views."""
    return _split_along("vsplit", input, indices_or_sections, 0, 2)


@also_named(indices="indices_or_sections", sections="indices_or_sections")
def dsplit(input: Any, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Split along the third dimension: views."""
    return _split_along("dsplit", input, indices_or_sections, 2, 3)


def select(input: Any, dim: int, index: int) -> Tensor:
    """One index along an axis, which is removed: a view."""
    x = tensor_of("select", input)
    at = axis_of("select", dim, x.shape)
    return x[(slice(None),) * at + (index,)]


def unbind(input: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """All slices along an axis, which is removed: views."""
    x = tensor_of("unbind", input)
    at = axis_of("unbind", dim, x.shape)
    return tuple([select(x, at, index) for index in range(x.shape[at])])


def swapped(input: Any) -> Tensor:
    """The last two dimensions swapped; a single number as it is."""
    x = tensor_of("transpose", input)
    return transpose(x, -2, -1) if x.ndim else permute(x, ())


def unfold(input: Any, dimension: int, size: int, step: int) -> Tensor:
    """Every window of `size` elements, `step` apart, along an axis, as a new last dimension, a view."""
    x = tensor_of("unfold", input)
    if x.ndim == 0:
        return _reshape(x, (1,))[:size]
    at = axis_of("unfold", dimension, x.shape)
    if not 0 <= size <= x.shape[at] or step < 1:
        raise ShapeError(f"unfold: windows of {size} elements, {step} apart, of dimension {at} of shape {x.shape}")
    if size == 0:
        nothing = emission.emit("reshape", (narrow(x, at, 0, 0),), (0,))
        return _reshape(nothing, (*x.shape[:at], x.shape[at] // step + 1, *x.shape[at + 1 :], 0))
    return views.view_of(x, "windows", (at,), (size,), (step,), (1,))


def sum_to_size(input: Any, *sizes: Any, size: Any = None) -> Tensor:
    """Summed to a shape that broadcasts to the tensor's own. Booleans and integers give int64."""
    x, shape = tensor_of("sum_to_size", input), ints(sizes if size is None else (*sizes, size))
    lead = x.ndim - len(shape)
    if lead < 0 or any(b not in (1, a) for a, b in zip(x.shape[lead:], shape, strict=True)):
        raise ShapeError(f"sum_to_size: shape {shape} does not broadcast to {x.shape}")
    axes = tuple(at for at in range(x.ndim) if at < lead or (shape[at - lead] == 1 != x.shape[at]))
    if x.dtype.kind in "bi" and (axes or not x.ndim):
        x = cast(x, int64)
    return _reshape(emission.emit("sum", (x,), axes, False), shape) if axes else x


swapaxes = also_named(axis0="dim0", axis1="dim1")(transpose)
swapdims = transpose
split_with_sizes = unsafe_split = split
unsafe_chunk = chunk
moveaxis = movedim
