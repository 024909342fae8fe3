"""Tensors seen by strides: PyTorch's `as_strided`, over the elements of a tensor in row-major order.

A tensor that is no view lies in row-major order, and its views lie within it: there `as_strided` looks. Layouts that are
asked for when a tensor is made mean nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, creation, shape_ops
from gt.client.tensor import emission, views
from gt.client.tensor.operands import cast, clone, tensor_of
from gt.errors import OverlapError, ShapeError

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["as_strided", "as_strided_copy", "as_strided_scatter", "empty_permuted", "empty_strided"]

_WITHIN = ("reshape", "permute", "slice", "expand", "detach", "as_strided", "take")
"""Views whose elements are elements of their base."""


def _places(size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """The position of each element in storage, in the shape `size`."""
    places: Tensor = creation.full((1,) * len(size), offset, dtype="int64")
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        line = arithmetic.mul(creation.arange(count), step)
        places = arithmetic.add(places, shape_ops.reshape(line, (count, *(1,) * (len(size) - axis - 1))))
    return places


def cut(base: Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Tensor:
    """The elements of `base`, in row-major order, that strides name."""
    flat = emission.emit("reshape", (base,), (base.numel(),))
    if math.prod(size) == 0:
        return emission.emit("reshape", (emission.emit("slice", (flat, 0), (0,), (0,), (1,)),), size)
    return emission.emit("take", (flat, _places(size, stride, offset)), 0)


def restored(base: Tensor, part: Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Tensor:
    """`base` with these of its elements replaced. Raises `OverlapError` if strides name one of them twice."""
    reach = 0
    for step, count in sorted((step, count) for count, step in zip(size, stride, strict=True) if count > 1):
        if step <= reach:
            raise OverlapError(f"as_strided: strides {stride} name elements of shape {size} twice: use .clone() first")
        reach += step * (count - 1)
    if part.numel() == 0:
        return base
    flat = emission.emit("reshape", (base,), (base.numel(),))
    places = shape_ops.reshape(_places(size, stride, offset), (part.numel(),))
    values = emission.emit("reshape", (part,), (part.numel(),))
    return emission.emit("reshape", (emission.emit("scatter", (flat, places, values), 0),), base.shape)


class StridedView(views.ViewDerivation):
    """A view by size, strides and offset, within the elements of its root."""

    __slots__ = ()

    def cut(self) -> Tensor:
        """The elements that the strides name, of the base as it now is."""
        return cut(self.base, *self.attributes)

    def restore(self, part: Tensor) -> Tensor:
        """The base with these of its elements replaced."""
        return restored(self.base, part, *self.attributes)


def root_of(x: Tensor) -> Tensor:
    """The tensor within which this one lies."""
    while x._view is not None and x._view.op in _WITHIN:
        x = x._view.base
    return x


def _checked(name: str, root: Tensor, size: Any, stride: Any, offset: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape, steps = creation.shape_of(name, (tuple(size),)), tuple(int(step) for step in stride)
    if len(shape) != len(steps) or min(steps, default=0) < 0 or offset < 0:
        raise ShapeError(
            f"{name}: size {shape}, stride {steps} and offset {offset}: one stride, at least 0, for each size"
        )
    last = offset + sum(step * (count - 1) for step, count in zip(steps, shape, strict=True))
    if math.prod(shape) and last >= root.numel():
        raise ShapeError(
            f"{name}: size {shape} with stride {steps} from {offset} on reaches element {last} "
            f"of {root.numel()}, those of shape {root.shape}"
        )
    return shape, steps


def as_strided(input: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """The elements of a tensor, or of the one that it is a view of, in row-major order, seen by strides: a view.

    Without an offset it begins where `input` begins. Writing where strides name an element twice is an error.
    """
    x = tensor_of("as_strided", input)
    offset = views.offset_of(x) if storage_offset is None else int(storage_offset)
    root = root_of(x)
    shape, steps = _checked("as_strided", root, size, stride, offset)
    out = cut(root, shape, steps, offset)
    out._view = StridedView(root, "as_strided", (shape, steps, offset), ())
    return out


def as_strided_copy(input: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """A copy of the view that `as_strided` gives."""
    return clone(as_strided(input, size, stride, storage_offset))


def as_strided_scatter(input: Any, src: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """`input` with the elements that `as_strided` shows replaced by those of `src`."""
    x, part = tensor_of("as_strided_scatter", input), tensor_of("as_strided_scatter", src)
    offset = 0 if storage_offset is None else int(storage_offset)
    shape, steps = _checked("as_strided_scatter", x, size, stride, offset)
    if part.shape != shape:
        raise ShapeError(f"as_strided_scatter: a source of shape {part.shape} for size {shape}")
    return restored(x, cast(part, x.dtype), shape, steps, offset)


def empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, requires_grad: bool = False, device: Any = None, pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:  # fmt: skip
    """A tensor of this size, of zeros; the strides mean nothing."""
    return creation.empty(tuple(size), dtype=dtype, requires_grad=requires_grad)


def empty_permuted(
    size: Any, physical_layout: Any, *, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    pin_memory: bool = False, layout: Any = None,
) -> Tensor:  # fmt: skip
    """A tensor of this size, of zeros; the layout means nothing, and names each dimension once."""
    order = [shape_ops.axis_of("empty_permuted", axis, tuple(size)) for axis in physical_layout]
    if sorted(order) != list(range(len(size))):
        raise ShapeError(f"empty_permuted: {tuple(physical_layout)} does not name each dimension of {tuple(size)} once")
    return creation.empty(tuple(size), dtype=dtype, requires_grad=requires_grad)
