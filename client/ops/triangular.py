"""Functions of triangles and diagonals: parts of matrices by where they lie, not by what they hold."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.client.tensor import emission, views
from gt.client.tensor.operands import clone, tensor_of
from gt.errors import ShapeError

from . import arithmetic, creation, reductions, shape_ops

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "diag", "diag_embed", "diagflat", "diagonal", "diagonal_scatter", "trace", "tril", "tril_indices", "triu",
    "triu_indices",
]  # fmt: skip


def _triangle(name: str, input: Any, diagonal: int, below: bool) -> Tensor:
    x = tensor_of(name, input)
    if x.ndim < 2:
        raise ShapeError(f"{name} takes at least two dimensions, not shape {x.shape}")
    rows, columns = x.shape[-2:]
    last = arithmetic.add(shape_ops.unsqueeze(creation.arange(rows), 1), diagonal)
    keep = arithmetic.le(creation.arange(columns), last) if below else arithmetic.ge(creation.arange(columns), last)
    return arithmetic.where(keep, x, False if x.dtype.kind == "b" else 0)


def tril(input: Any, diagonal: int = 0) -> Tensor:
    """The lower triangle of the last two dimensions, up to a diagonal; zeros above."""
    return _triangle("tril", input, diagonal, below=True)


def triu(input: Any, diagonal: int = 0) -> Tensor:
    """The upper triangle of the last two dimensions, from a diagonal on; zeros below."""
    return _triangle("triu", input, diagonal, below=False)


def _indices(name: str, row: int, col: int, pairs: Any, dtype: Any, requires_grad: bool) -> Tensor:
    if row < 0 or col < 0:
        raise ShapeError(f"{name}: shape ({row}, {col}) has a negative size")
    return creation.tensor(np.stack(pairs), dtype="int64" if dtype is None else dtype, requires_grad=requires_grad)


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    pin_memory: bool = False, layout: Any = None,
) -> Tensor:  # fmt: skip
    """Rows and columns of a lower triangle, int64."""
    return _indices("tril_indices", row, col, np.tril_indices(row, offset, col), dtype, requires_grad)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    pin_memory: bool = False, layout: Any = None,
) -> Tensor:  # fmt: skip
    """Rows and columns of an upper triangle, int64."""
    return _indices("triu_indices", row, col, np.triu_indices(row, offset, col), dtype, requires_grad)


def _band(input: Any, offset: int, dim1: int, dim2: int) -> Tensor:
    x = tensor_of("diagonal", input)
    a, b = (shape_ops.axis_of("diagonal", dim, x.shape) for dim in (dim1, dim2))
    if a == b:
        raise ShapeError(f"diagonal: axes {dim1} and {dim2} of shape {x.shape} are one")
    rest = tuple(axis for axis in range(x.ndim) if axis not in (a, b))
    moved = views.view_of(x, "permute", (*rest, a, b))
    *lead, rows, columns = moved.shape
    start = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    flat = views.view_of(moved, "reshape", (*lead, rows * columns))
    window = (len(lead),), (count,), (columns + 1 if count > 1 else 1,)
    return views.view_of(flat, "slice", *window, starts=(start if count else 0,))


def diagonal(
    input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1, *, axis1: int | None = None, axis2: int | None = None
) -> Tensor:
    """The diagonal of two axes, as the last axis: a view."""
    return _band(input, operator.index(offset), dim1 if axis1 is None else axis1, dim2 if axis2 is None else axis2)


def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last axis on a diagonal of two new ones, zeros elsewhere."""
    x = tensor_of("diag_embed", input)
    a = shape_ops.axis_of("diag_embed", dim1, x.shape, 1)
    b = shape_ops.axis_of("diag_embed", dim2, x.shape, 1)
    if a == b:
        raise ShapeError(f"diag_embed: axes {dim1} and {dim2} are one")
    *lead, size = x.shape
    side = size + abs(offset)
    start = (offset if offset >= 0 else -offset * side) if size else 0
    zeros = creation.zeros((*lead, side * side), dtype=x.dtype)
    window = (len(lead),), (size,), (side + 1 if size > 1 else 1,)
    flat = emission.emit("update_slice", (zeros, x, start), *window)
    out = emission.emit("reshape", (flat,), (*lead, side, side))
    return shape_ops.movedim(out, (-2, -1), (a, b))


def diag(input: Any, diagonal: int = 0) -> Tensor:
    """A vector as a diagonal of a matrix, or a diagonal of a matrix as a vector."""
    x = tensor_of("diag", input)
    if x.ndim == 1:
        return diag_embed(x, diagonal)
    if x.ndim == 2:
        return clone(_band(x, diagonal, 0, 1))
    raise ShapeError(f"diag takes a vector or a matrix, not shape {x.shape}")


def diagflat(input: Any, offset: int = 0) -> Tensor:
    """All elements on a diagonal of a matrix."""
    return diag_embed(shape_ops.reshape(tensor_of("diagflat", input), -1), offset)


def diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """`input` with `src` written to a diagonal."""
    x = clone(tensor_of("diagonal_scatter", input))
    diagonal(x, offset, dim1, dim2).copy_(tensor_of("diagonal_scatter", src))
    return x


def trace(input: Any) -> Tensor:
    """The sum of a matrix' diagonal."""
    x = tensor_of("trace", input)
    if x.ndim != 2:
        raise ShapeError(f"trace takes a matrix, not shape {x.shape}")
    return reductions.sum(diagonal(x))
