"""Functions that copy elements to other positions: concatenation, repetition, rotation, padding and grids.

What shows the same elements in another shape, without a copy, is in `shape_ops.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from gt.client.tensor import emission
from gt.client.tensor.operands import cast, clone, integers, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.ir.dtypes import int32, int64, result_type
from gt.ir.infer import broadcast

from . import arithmetic, creation, shape_ops
from .shape_ops import axis_of, ints

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_shapes", "broadcast_tensors", "cartesian_prod",
    "cat", "column_stack", "combinations", "concat", "concatenate", "dstack", "flip", "fliplr", "flipud", "hstack",
    "meshgrid", "pad", "repeat", "repeat_interleave", "roll", "rot90", "row_stack", "select_scatter", "slice_scatter",
    "stack", "tile", "vstack",
]  # fmt: skip


# repetitions


def repeat(input: Any, *sizes: Any, repeats: Any = None) -> Tensor:
    """Repeat the tensor `sizes` (or `repeats`) times along each dimension."""
    x = tensor_of("repeat", input)
    times = ints(sizes if repeats is None else (*sizes, repeats))
    lead = len(times) - x.ndim
    if lead < 0:
        raise ShapeError(f"repeat: {times} names fewer dimensions than shape {x.shape} has")
    shape = (1,) * lead + x.shape
    apart = emission.emit("reshape", (x,), tuple(n for size in shape for n in (1, size)))
    spread = emission.emit("expand", (apart,), tuple(n for pair in zip(times, shape, strict=True) for n in pair))
    return emission.emit("reshape", (spread,), tuple(n * size for n, size in zip(times, shape, strict=True)))


def tile(input: Any, *sizes: Any, dims: Any = None) -> Tensor:
    """Like `repeat`, but there may be fewer numbers than dimensions."""
    x, times = tensor_of("tile", input), ints(sizes if dims is None else (*sizes, dims))
    return repeat(x, (1,) * (x.ndim - len(times)) + times)


def repeat_interleave(
    input: Any = None,
    repeats: Any = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
    axis: int | None = None,
) -> Tensor:
    """Repeat each element, or each slice along `dim`. If `repeats` is a tensor, its sum is fetched, unless
    `output_size` is given. Of a vector alone: each of its places as often as it says.
    """
    if input is None or repeats is None:
        repeats = tensor_of("repeat_interleave", repeats if input is None else input)
        if repeats.ndim != 1 or repeats.dtype not in (int32, int64):
            raise ShapeError(
                f"repeat_interleave: a vector of int64 or int32 alone, not {repeats.dtype} {repeats.shape}"
            )
        input = creation.arange(repeats.shape[0], dtype=repeats.dtype)
    x = tensor_of("repeat_interleave", input)
    dim = dim if axis is None else axis
    if dim is None:
        x, dim = shape_ops.reshape(x, -1), 0
    scalar = x.ndim == 0
    x = emission.emit("reshape", (x,), (1,)) if scalar else x
    at = axis_of("repeat_interleave", dim, x.shape)
    if isinstance(repeats, Tensor) and repeats.numel() == 1 and repeats.ndim <= 1 and x.shape[at] != 1:
        repeats = int(repeats)
    if not isinstance(repeats, Tensor):
        shape = (*x.shape[: at + 1], 1, *x.shape[at + 1 :])
        wide = (*shape[: at + 1], repeats, *shape[at + 2 :])
        spread = emission.emit("expand", (emission.emit("reshape", (x,), shape),), wide)
        return emission.emit("reshape", (spread,), (*x.shape[:at], x.shape[at] * repeats, *x.shape[at + 1 :]))
    counts = integers("repeat_interleave", repeats)
    if counts.shape not in ((x.shape[at],), ()):
        raise ShapeError(
            f"repeat_interleave: repeats of shape {counts.shape} for {x.shape[at]} slices of shape {x.shape}"
        )
    counts = cast(shape_ops.expand(counts, (x.shape[at],)), int64)
    total = int(counts.sum()) if output_size is None else output_size
    ends = emission.emit("cumsum", (counts,), 0)
    places = emission.emit("searchsorted", (ends, creation.arange(total)), True)
    return emission.emit("take", (x, places), at)


# joins


def cat(tensors: Any, dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Concatenate tensors along an axis, in the promoted dtype. An empty vector can be joined with anything."""
    if isinstance(tensors, Tensor):
        raise TypeError(
            "cat joins a sequence of tensors, not the rows of one: cat([x]), or flatten(x, 0, 1) for its rows"
        )
    parts = [tensor_of("cat", tensor) for tensor in tensors]
    if not parts:
        raise ShapeError("cat needs at least one tensor")
    if any(part.ndim == 0 for part in parts):
        raise ShapeError("cat: tensors without dimensions cannot be joined: use stack")
    dtype = result_type([(part.dtype, False) for part in parts], [])
    parts = [part for part in parts if part.shape != (0,)] or parts[:1]
    at = axis_of("cat", dim if axis is None else axis, parts[0].shape)
    return emission.emit_cat([cast(part, dtype) for part in parts], at)


def stack(tensors: Sequence[Any], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Join tensors of equal shape along a new axis."""
    parts = [tensor_of("stack", tensor) for tensor in tensors]
    if not parts:
        raise ShapeError("stack needs at least one tensor")
    shape = parts[0].shape
    for part in parts:
        if part.shape != shape:
            raise ShapeError(f"stack: shapes {shape} and {part.shape} differ")
    at = axis_of("stack", dim if axis is None else axis, shape, 1)
    return cat([emission.emit("reshape", (part,), (*shape[:at], 1, *shape[at:])) for part in parts], at)


concat = concatenate = cat


def _each(tensors: Any, lift: Any) -> list[Tensor]:
    return [lift(tensor) for tensor in tensors]


def atleast_1d(*tensors: Any) -> Any:
    """The tensor, with at least one dimension; several tensors as a tuple."""
    return _lifted(tensors, lambda x: x if x.ndim else shape_ops.reshape(x, 1))


def atleast_2d(*tensors: Any) -> Any:
    """The tensor, with at least two dimensions (a vector becomes a row); several tensors as a tuple."""
    return _lifted(tensors, lambda x: x if x.ndim > 1 else shape_ops.reshape(x, 1, -1))


def atleast_3d(*tensors: Any) -> Any:
    """The tensor, with at least three dimensions (a matrix gets a last one); several tensors as a tuple."""
    return _lifted(tensors, lambda x: x if x.ndim > 2 else shape_ops.unsqueeze(atleast_2d(x), -1))


def _lifted(tensors: tuple[Any, ...], lift: Any) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], Sequence):
        tensors = tuple(tensors[0])
        return tuple(lift(tensor_of("atleast", x)) for x in tensors)
    found = tuple(lift(tensor_of("atleast", x)) for x in tensors)
    return found[0] if len(found) == 1 else found


def hstack(tensors: Sequence[Any]) -> Tensor:
    """Concatenate along the second axis; vectors along their only one."""
    parts = _each(tensors, atleast_1d)
    return cat(parts, 0 if parts and parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Any]) -> Tensor:
    """Concatenate along the first axis; vectors become rows."""
    return cat(_each(tensors, atleast_2d), 0)


def dstack(tensors: Sequence[Any]) -> Tensor:
    """Concatenate along the third axis."""
    return cat(_each(tensors, atleast_3d), 2)


def column_stack(tensors: Sequence[Any]) -> Tensor:
    """Concatenate along the second axis; vectors become columns."""
    parts = [tensor_of("column_stack", x) for x in tensors]
    return hstack([x if x.ndim > 1 else shape_ops.reshape(x, -1, 1) for x in parts])


def block_diag(*tensors: Any) -> Tensor:
    """A matrix with the given matrices along its diagonal, and zeros elsewhere."""
    parts = [atleast_2d(tensor_of("block_diag", x)) for x in tensors]
    width = sum(part.shape[1] for part in parts)
    rows, start = [], 0
    for part in parts:
        rows.append(pad(part, (start, width - start - part.shape[1])))
        start += part.shape[1]
    return cat(rows, 0)


# turns


def flip(input: Any, *axes_: Any, dims: Any = None, axis: Any = None) -> Tensor:
    """Reverse the order along axes; without axes along all, as in NumPy."""
    x = tensor_of("flip", input)
    given = axes_ or tuple((each,) if isinstance(each, int) else each for each in (dims, axis) if each is not None)
    asked = ints(given) if given else tuple(range(x.ndim))
    axes = sorted(axis_of("flip", each, x.shape or (1,)) for each in asked)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"flip: axes {tuple(asked)} of shape {x.shape} repeat each other")
    axes = [at for at in axes if x.ndim and x.shape[at] > 1]
    if not axes:
        return clone(x)
    sizes = tuple(x.shape[at] for at in axes)
    return emission.emit("slice", (x, *(size - 1 for size in sizes)), tuple(axes), sizes, (-1,) * len(axes))


def fliplr(input: Any) -> Tensor:
    """Reverse the order along the second axis."""
    return flip(input, axis_of("fliplr", 1, tensor_of("fliplr", input).shape))


def flipud(input: Any) -> Tensor:
    """Reverse the order along the first axis."""
    return flip(input, axis_of("flipud", 0, tensor_of("flipud", input).shape))


def roll(input: Any, shifts: Any, dims: Any = None, *, axis: Any = None) -> Tensor:
    """Shift elements cyclically along axes; without axes, in the flattened tensor."""
    x = tensor_of("roll", input)
    dims = dims if axis is None else axis
    if dims is None or dims == ():
        return shape_ops.reshape(roll(shape_ops.reshape(x, -1), shifts, 0), x.shape)
    moves = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    axes = (dims,) if isinstance(dims, int) else tuple(dims)
    if len(moves) != len(axes):
        raise ShapeError(f"roll: shifts {moves} and axes {axes} do not pair")
    for move, each in zip(moves, axes, strict=True):
        at = axis_of("roll", each, x.shape)
        size = x.shape[at]
        start = -move % size if size else 0
        if start:
            x = emission.emit("cat", (_part(x, at, start, size - start), _part(x, at, 0, start)), at)
    return x if x is not input else clone(x)


def _part(x: Tensor, at: int, start: int, size: int, step: int = 1) -> Tensor:
    return emission.emit("slice", (x, start if size else 0), (at,), (size,), (step,))


def rot90(input: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Rotate by `k` times 90 degrees, from the first of two axes towards the second."""
    x = tensor_of("rot90", input)
    a, b = (axis_of("rot90", each, x.shape) for each in dims)
    if a == b:
        raise ShapeError(f"rot90: axes {tuple(dims)} of shape {x.shape} are one")
    if k % 2 == 0:
        return flip(x, a, b) if k % 4 else clone(x)
    return flip(shape_ops.transpose(x, a, b), a if k % 4 == 1 else b)


# borders


def pad(input: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pad the tensor, from the last dimension on: `pad` holds pairs (before, after); negative numbers crop.

    New elements are `value` (0) or, with `mode` 'reflect', 'replicate' or 'circular', copies of existing ones.
    """
    x = tensor_of("pad", input)
    ends = ints((pad,))
    if len(ends) % 2 or len(ends) > 2 * x.ndim:
        raise ShapeError(f"pad: {ends} are not pairs for the last dimensions of shape {x.shape}")
    pairs = [(x.ndim - 1 - i // 2, ends[i], ends[i + 1]) for i in range(0, len(ends), 2)]
    if mode == "constant":
        return _bordered(x, pairs, 0 if value is None else value)
    if mode != "replicate":  # what is cut off may be repeated, but not mirrored
        x = _bordered(x, [(at, min(before, 0), min(after, 0)) for at, before, after in pairs], 0)
        pairs = [(at, max(before, 0), max(after, 0)) for at, before, after in pairs]
    for at, before, after in pairs:
        if before or after:
            x = _mirrored(x, at, before, after, mode)
    return clone(x) if x is input else x


def _bordered(x: Tensor, pairs: Sequence[tuple[int, int, int]], value: float) -> Tensor:
    """Cut where a number is negative, then written into the middle of what is filled with `value`."""
    shape, starts = list(x.shape), []
    axes = sorted(at for at, before, after in pairs if before or after)
    for at, before, after in pairs:
        first, last = max(0, -before), x.shape[at] - max(0, -after)
        if last < first or x.shape[at] + before + after < 0:
            raise ShapeError(f"pad: {before} and {after} leave nothing of dimension {at} of shape {tuple(shape)}")
        if (first, last) != (0, x.shape[at]):
            x = _part(x, at, first, last - first)
        shape[at] += before + after
    if tuple(shape) == x.shape:
        return clone(x)
    begin = {at: max(0, before) for at, before, _ in pairs}
    starts = [begin[at] if x.shape[at] else 0 for at in axes]
    whole = creation.full(shape, value, dtype=x.dtype)
    sizes = tuple(x.shape[at] for at in axes)
    return emission.emit("update_slice", (whole, x, *starts), tuple(axes), sizes, (1,) * len(axes))


def _mirrored(x: Tensor, at: int, before: int, after: int, mode: str) -> Tensor:
    size = x.shape[at]
    most = {"reflect": size - 1, "circular": size, "replicate": max(before, after) if size else -1}.get(mode)
    if most is None:
        raise ValueError(f"pad: mode is constant, reflect, replicate or circular, not {mode!r}")
    if max(before, after) > most:
        raise ShapeError(f"pad: {mode} by {before} and {after} at dimension {at} of shape {x.shape}")
    numbers = creation.arange(-before, size + after)
    if mode == "circular":
        places = arithmetic.remainder(numbers, size)
    elif mode == "replicate":
        places = arithmetic.clamp(numbers, 0, size - 1)
    else:
        last = size - 1
        places = arithmetic.sub(last, arithmetic.abs(arithmetic.sub(last, arithmetic.abs(numbers))))
    return emission.emit("take", (x, places), at)


# grids


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape to which shapes broadcast."""
    return broadcast("broadcast_shapes", [(each,) if isinstance(each, int) else tuple(each) for each in shapes] or [()])


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """The tensors, broadcast to their common shape: views."""
    if len(tensors) == 1 and isinstance(tensors[0], Sequence):
        tensors = tuple(tensors[0])
    parts = [tensor_of("broadcast_tensors", tensor) for tensor in tensors]
    shape = broadcast("broadcast_tensors", [part.shape for part in parts] or [()])
    return tuple(shape_ops.expand(part, shape) for part in parts)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """The coordinates of a grid spanned by vectors. Rows follow the first vector, or with 'xy' the second."""
    if len(tensors) == 1 and isinstance(tensors[0], Sequence):
        tensors = tuple(tensors[0])
    if indexing not in ("ij", "xy"):
        raise ValueError(f"meshgrid: indexing is 'ij' or 'xy', not {indexing!r}")
    lines = [shape_ops.reshape(tensor_of("meshgrid", tensor), -1) for tensor in tensors]
    swap = indexing == "xy" and len(lines) > 1
    if swap:
        lines[:2] = lines[1], lines[0]
    shape = tuple(line.shape[0] for line in lines)
    grid = [
        shape_ops.expand(shape_ops.reshape(line, (*(1,) * at, -1, *(1,) * (len(shape) - at - 1))), shape)
        for at, line in enumerate(lines)
    ]
    if swap:
        grid[:2] = grid[1], grid[0]
    return tuple(grid)


def cartesian_prod(*tensors: Any) -> Tensor:
    """All combinations of the elements of vectors, one per row."""
    if len(tensors) == 1:
        return tensor_of("cartesian_prod", tensors[0])
    return stack([shape_ops.reshape(each, -1) for each in meshgrid(*tensors)], 1)


def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of `r` elements of a vector, in order, one per row."""
    x = tensor_of("combinations", input)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(choose(range(x.shape[0]), r))
    if not r:
        return creation.zeros((0,), dtype=x.dtype)
    if not places:
        return emission.emit("take", (x, creation.zeros((0, r), dtype=int64)), 0)
    return emission.emit("take", (x, creation.tensor(places, dtype=int64)), 0)


# a copy with a part written


def select_scatter(input: Any, src: Any, dim: int, index: int) -> Tensor:
    """`input` with `src` written to one index along an axis."""
    x = clone(tensor_of("select_scatter", input))
    shape_ops.select(x, dim, index).copy_(tensor_of("select_scatter", src))
    return x


def slice_scatter(
    input: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """`input` with `src` written to a slice along an axis."""
    x = clone(tensor_of("slice_scatter", input))
    x[(slice(None),) * axis_of("slice_scatter", dim, x.shape) + (slice(start, end, step),)] = tensor_of(
        "slice_scatter", src
    )
    return x


row_stack = vstack
