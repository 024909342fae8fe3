"""Gather and scatter: functions that read or write at indices along an axis, in the flattened tensor, or where a mask holds.

Where the data decides how many elements there are (`nonzero`, `masked_select`), that count alone is fetched. An index out
of range is an error at the fetch of what was read; −1 is the last, also where PyTorch would refuse it. Subscripts are in
`gt.client.tensor_api`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.client.tensor import emission
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import cast, clone, integers, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import bool_, int64
from gt.ir.infer import broadcast

from . import arithmetic, creation, join_and_pad, shape_ops
from .nonzero_indices import nonzero_columns, places_of
from .shape_ops import axis_of

__all__ = [
    "argwhere", "gather", "index_add", "index_copy", "index_fill", "index_put", "index_select", "masked_scatter",
    "masked_select", "nonzero", "one_hot", "put", "scatter_add", "take", "take_along_dim", "unravel_index",
]  # fmt: skip


def one_dtype(name: str, x: Tensor, values: Any) -> Tensor:
    """Values to be written into `x`, which keeps its dtype: a tensor of that dtype."""
    source = tensor_of(name, values)
    if source.dtype is not x.dtype:
        raise DTypeError(f"{name}: values of {source.dtype} for a tensor of {x.dtype}: cast them first")
    return source


def _spread(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x.shape == shape else emission.emit("expand", (x,), shape)


def _reshaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x.shape == shape else emission.emit("reshape", (x,), shape)


def _lined(x: Tensor) -> Tensor:
    """A tensor without dimensions as a vector of one element: PyTorch indexes it so."""
    return x if x.ndim else emission.emit("reshape", (x,), (1,))


# element by element along an axis


def gather(input: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Tensor:
    """`input[..., index[i], ...]` along `dim`. An index out of range raises an error at the fetch."""
    x, places = tensor_of("gather", input), integers("gather", index)
    shape = places.shape
    at = axis_of("gather", dim, x.shape or (1,))
    if places.numel() == 0 and shape != ():
        return creation.zeros(shape, dtype=x.dtype) if x._edge is None else arithmetic.mul(_nothing(x, shape), 1)
    return _reshaped(emission.emit("gather", (_lined(x), _lined(places)), at), shape)


def _nothing(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """No elements of `x`, in a shape that has none: on the tape, as PyTorch has it."""
    flat = _reshaped(x, (x._value.spec.size,))
    return _reshaped(emission.emit("slice", (flat, 0), (0,), (0,), (1,)), shape)


def _along(name: str, input: Any, dim: int, index: Any, src: Any) -> tuple[Tensor, int, Tensor, Tensor]:
    """Tensor, axis, places, and of the values the corner that the places name."""
    x, places = tensor_of(name, input), integers(name, index)
    at = axis_of(name, dim, x.shape or (1,))
    if isinstance(src, Tensor):
        values = _lined(one_dtype(name, x, src))
    else:
        values = _spread(creation.full((), src, dtype=x.dtype), _lined(places).shape)
    x, places = _lined(x), _lined(places)
    if values.ndim == places.ndim and values.shape != places.shape:
        for axis, size in enumerate(places.shape):
            values = shape_ops.narrow(values, axis, 0, size)
    return x, at, places, values


def _counted(truths: Tensor) -> Tensor:
    """Truths as numbers to be added up: of them a sum is true where it is not 0."""
    return cast(truths, int64)


def scatter_add(input: Any, dim: int, index: Any, src: Any) -> Tensor:
    """`input` with the elements of `src` added at `index` along `dim`."""
    x, at, places, values = _along("scatter_add", input, dim, index, tensor_of("scatter_add", src))
    if x.dtype is bool_:
        return cast(scatter_add(_counted(input), dim, index, _counted(src)), bool_)
    if places.numel() == 0:
        return clone(tensor_of("scatter_add", input))
    return _reshaped(emission.emit("scatter_add", (x, places, values), at), input.shape)


def take_along_dim(input: Any, indices: Any, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """Like `gather`, but the other dimensions broadcast; without `dim`, from the flattened tensor."""
    x, places = tensor_of("take_along_dim", input), integers("take_along_dim", indices)
    dim = dim if axis is None else axis
    if dim is None:
        return gather(_reshaped(x, (x.numel(),)), 0, _reshaped(places, (places.numel(),)))
    at = axis_of("take_along_dim", dim, x.shape)
    if places.ndim != x.ndim:
        raise ShapeError(f"take_along_dim: indices of shape {places.shape} for {x.ndim} dimensions of shape {x.shape}")
    sides = [tuple(1 if i == at else size for i, size in enumerate(shape)) for shape in (x.shape, places.shape)]
    rest = broadcast("take_along_dim", sides)
    ends = [(*rest[:at], shape[at], *rest[at + 1 :]) for shape in (x.shape, places.shape)]
    return gather(_spread(x, ends[0]), at, _spread(places, ends[1]))


# slices along an axis


def _listed(name: str, input: Any, dim: int, index: Any) -> tuple[Tensor, int, Tensor]:
    """The tensor, the axis, and the vector that lists places along it."""
    x, places = tensor_of(name, input), integers(name, index)
    at = axis_of(name, dim, x.shape or (1,))
    if places.ndim > 1:
        raise ShapeError(f"{name}: an index of at most one dimension, not of shape {places.shape}")
    return _lined(x), at, _lined(places)


def index_select(input: Any, dim: int, index: Any) -> Tensor:
    """The slices along `dim` at the indices in a one-dimensional integer tensor. An index out of range raises an
    error at the fetch.
    """
    x, at, places = _listed("index_select", input, dim, index)
    out = emission.emit("take", (x, places), at)
    return out if input.ndim else _reshaped(out, ())


def _slices(name: str, x: Tensor, at: int, places: Tensor, source: Any) -> Tensor:
    """Slices to be written along an axis, one for each place."""
    values = one_dtype(name, x, source)
    shape = (*x.shape[:at], *places.shape, *x.shape[at + 1 :])
    if values.ndim == 0 and math.prod(shape) == 1:
        values = _reshaped(values, shape)
    if values.shape != shape:
        raise ShapeError(f"{name}: a source of shape {values.shape}, where input and index make it {shape}")
    return values


def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Tensor:
    """`input` with `alpha` times the slices of `source` added along `dim` at the indices in a vector."""
    x, at, places = _listed("index_add", input, dim, index)
    values = _slices("index_add", x, at, places, source)
    if x.dtype is bool_:
        return cast(index_add(_counted(input), dim, index, _counted(values), alpha=alpha), bool_)
    total = emission.emit("segment_sum", (values, places), at, x.shape[at])
    below = x.dtype.kind == "i" and alpha < 0  # unsigned integers have no negative factor
    out = arithmetic.sub(x, total, alpha=-alpha) if below else arithmetic.add(x, total, alpha=alpha)
    return _reshaped(out, input.shape)


def written(x: Tensor, at: int, places: Tensor, values: Tensor) -> Tensor:
    """`x` with slices written along an axis. The places of a row are the same all over it."""
    lead, after = (1,) * at, (1,) * (x.ndim - at - 1)
    index = _spread(_reshaped(places, (*lead, *places.shape, *after)), values.shape)
    return emission.emit("scatter", (x, index, values), at)


def index_copy(input: Any, dim: int, index: Any, source: Any) -> Tensor:
    """`input` with the slices of `source` written along `dim` at the indices in a vector."""
    x, at, places = _listed("index_copy", input, dim, index)
    return _reshaped(written(x, at, places, _slices("index_copy", x, at, places, source)), input.shape)


def index_fill(input: Any, dim: int, index: Any, value: Any) -> Tensor:
    """`input` with a number written to the slices along `dim` at the indices in a vector."""
    x, at, places = _listed("index_fill", input, dim, index)
    size = x.shape[at]
    truths = _spread(creation.full((), True), places.shape)
    mask = emission.emit("scatter", (creation.full((size,), False), places, truths), 0) if places.numel() else None
    if mask is None:
        return clone(input)
    number = cast(value, x.dtype) if isinstance(value, Tensor) else value
    out: Tensor = arithmetic.masked_fill(x, _reshaped(mask, (size, *(1,) * (x.ndim - at - 1))), number)
    return _reshaped(out, input.shape)


# in the flattened tensor


def take(input: Any, index: Any, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """The elements of the flattened tensor at the indices in an integer tensor of any shape; with NumPy's `axis`,
    slices.
    """
    x, places = tensor_of("take", input), integers("take", index)
    dim = dim if axis is None else axis
    if dim is not None:
        return emission.emit("take", (x, places), axis_of("take", dim, x.shape))
    return emission.emit("take", (_reshaped(x, (x.numel(),)), places), 0)


def put(input: Any, index: Any, source: Any, accumulate: bool = False) -> Tensor:
    """`input` with the elements of `source` written, or added, at indices into the flattened tensor."""
    x, places = tensor_of("put", input), integers("put", index)
    values = _reshaped(one_dtype("put", x, source), (places.numel(),))
    flat, places = _reshaped(x, (x.numel(),)), _reshaped(places, (places.numel(),))
    if accumulate and x.dtype is bool_:
        return cast(put(_counted(x), index, _counted(values), accumulate=True), bool_)
    if accumulate:
        out = arithmetic.add(flat, emission.emit("segment_sum", (values, places), 0, x.numel()))
    else:
        out = emission.emit("scatter", (flat, places, values), 0)
    return _reshaped(out, x.shape)


def linear(name: str, indices: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """One place in row-major order for each tuple of places in dimensions of these sizes, each checked against its own.

    One that is out of range is an error: looking it up in the numbers from 0 to the size tells.
    """
    total = None
    for index, size in zip(indices, sizes, strict=True):
        known = emission.emit("take", (creation.arange(size), integers(name, index)), 0)
        total = known if total is None else arithmetic.add(arithmetic.mul(total, size), known)
    assert total is not None, "there is an index"
    return total


def index_put(input: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Tensor:
    """`input` with `values` written, or added, at the places given by integer (or boolean) tensors for its first
    dimensions.
    """
    x = tensor_of("index_put", input)
    if accumulate and x.dtype is bool_:
        source = _counted(one_dtype("index_put", x, values))
        return cast(index_put(_counted(x), indices, source, accumulate=True), bool_)
    places: list[Tensor] = []
    for index in indices:
        each = tensor_of("index_put", index)
        places += nonzero(each, as_tuple=True) if each.dtype is bool_ else [each]
    count = len(places)
    shape = broadcast("index_put", [index.shape for index in places])
    rest = x.shape[count:]
    where = _reshaped(linear("index_put", [_spread(i, shape) for i in places], x.shape[:count]), (math.prod(shape),))
    source = _spread(one_dtype("index_put", x, values), (*shape, *rest))
    source = _reshaped(source, (math.prod(shape), *rest))
    flat = _reshaped(x, (math.prod(x.shape[:count]), *rest))
    if accumulate:
        out = arithmetic.add(flat, emission.emit("segment_sum", (source, where), 0, flat.shape[0]))
    else:
        out = written(flat, 0, where, source)
    return _reshaped(out, x.shape)


def unravel_index(indices: Any, shape: Any) -> tuple[Tensor, ...]:
    """Convert indices into the flattened tensor of a shape to one index per dimension."""
    left = cast(integers("unravel_index", indices), int64)
    found = []
    for size in reversed((shape,) if isinstance(shape, int) else tuple(shape)):
        found.append(arithmetic.remainder(left, size))
        left = arithmetic.floor_divide(left, size)
    return tuple(reversed(found))


# where a mask holds


def nonzero(input: Any, *, as_tuple: bool = False) -> Any:
    """The indices of non-zero elements: one row per element, or with `as_tuple` one vector per dimension.

    Fetches their number.
    """
    x = tensor_of("nonzero", input)
    columns = nonzero_columns(x)
    if as_tuple:
        return columns
    if not x.shape:
        return creation.zeros((columns[0].shape[0], 0), dtype=int64)
    return join_and_pad.stack(columns, 1)


def argwhere(input: Any) -> Tensor:
    """The indices of non-zero elements, one row per element. Fetches their number."""
    out: Tensor = nonzero(input)
    return out


def _masked(name: str, mask: Any) -> Tensor:
    known = tensor_of(name, mask)
    if known.dtype is not bool_:
        raise DTypeError(f"{name}: a mask is boolean, not {known.dtype}")
    return known


def masked_select(input: Any, mask: Any) -> Tensor:
    """A vector of the elements where a mask, whose shape broadcasts, is true. Fetches their number."""
    x, known = tensor_of("masked_select", input), _masked("masked_select", mask)
    shape = broadcast("masked_select", [x.shape, known.shape])
    places = places_of(_spread(known, shape))
    return emission.emit("take", (_reshaped(_spread(x, shape), (math.prod(shape),)), places), 0)


def ranks(mask: Tensor) -> Tensor:
    """For each element of the flattened mask how many are true before it."""
    flat = cast(_reshaped(mask, (mask.numel(),)), int64)
    return arithmetic.sub(emission.emit("cumsum", (flat,), 0), flat)


def masked_scatter(input: Any, mask: Any, source: Any) -> Tensor:
    """`input` with consecutive elements of `source` written where a mask is true. Nothing is fetched.

    If `source` has too few elements, the fetch raises an error; surplus elements are ignored.
    """
    x, known = tensor_of("masked_scatter", input), _masked("masked_scatter", mask)
    values = one_dtype("masked_scatter", x, source)
    shape = broadcast("masked_scatter", [x.shape, known.shape])
    return in_order(_spread(x, shape), _spread(known, shape), _reshaped(values, (values.numel(),)))


def in_order(x: Tensor, mask: Tensor, values: Tensor, *, whole: bool = False) -> Tensor:
    """`x` with a vector's elements, or slices, in order where a mask over its first dimensions holds.

    When the `whole` vector must be used up and is not, the index of its first missing element is out of range.
    """
    rest = x.shape[mask.ndim :]
    if mask.numel() == 0:
        return written_nowhere(x, values)
    flat = _reshaped(mask, (mask.numel(),))
    if values.shape[0] == 0:
        if bool(flat.any()):
            raise ShapeError(f"a mask of shape {mask.shape} that holds somewhere, but there is nothing to write")
        return written_nowhere(x, values)
    where = arithmetic.where(flat, ranks(mask), 0)
    if whole:
        count = emission.emit("sum", (cast(flat, int64),), (0,), False)
        where = arithmetic.where(arithmetic.eq(count, values.shape[0]), where, values.shape[0])
    found = _reshaped(emission.emit("take", (values, where), 0), x.shape)
    return arithmetic.where(_spread(_reshaped(mask, (*mask.shape, *(1,) * len(rest))), x.shape), found, x)


def written_nowhere(x: Tensor, values: Tensor, axis: int = 0) -> Tensor:
    """`x`, to which no places along an axis were written: where `values` have a gradient it is zeros, and `x` has one too."""
    if values._edge is None:
        return x
    return arithmetic.where(creation.full((), False), emission.emit("sum", (values,), (axis,), False), x)


@also_named(tensor="input")
def one_hot(input: Any, num_classes: int = -1) -> Tensor:
    """An int64 tensor with one more dimension: 1 at each class, 0 elsewhere. Without `num_classes` the largest class
    is fetched.
    """
    x = integers("one_hot", input)
    if num_classes == 0 and x.numel():
        raise ValueError("one_hot: of no classes there is no tensor with elements")
    if num_classes < 0:
        num_classes = int(x.max().item()) + 1
    shape = (*x.shape, num_classes)
    index = _reshaped(cast(x, int64), (*x.shape, 1))
    ones = creation.ones(index.shape, dtype=int64)
    return emission.emit("scatter_add", (creation.zeros(shape, dtype=int64), index, ones), x.ndim)
