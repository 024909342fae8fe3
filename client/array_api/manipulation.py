"""The standard's functions that move elements without computing with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.client.ops import join_and_pad, shape_ops
from gt.client.ops.shape_ops import broadcast_to, moveaxis
from gt.client.tensor.operands import clone
from gt.errors import ShapeError

from .promotion import common

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "broadcast_arrays", "broadcast_to", "concat", "expand_dims", "flip", "moveaxis", "permute_dims", "repeat", "reshape",
    "roll", "squeeze", "stack", "tile", "unstack",
]  # fmt: skip


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Tensors in the shape to which all of them broadcast."""
    return list(join_and_pad.broadcast_tensors(*arrays))


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Tensors joined along an axis; without one, all their elements in one dimension."""
    parts = common("concat", *arrays)
    return (
        join_and_pad.cat(parts, axis)
        if axis is not None
        else join_and_pad.cat([shape_ops.reshape(x, -1) for x in parts])
    )


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis."""
    return join_and_pad.stack(common("stack", *arrays), axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """All places along an axis, which is dropped."""
    return shape_ops.unbind(x, axis)


def expand_dims(x: Tensor, /, axis: int) -> Tensor:
    """A new dimension of size 1 before `axis`."""
    return shape_ops.unsqueeze(x, axis)


def squeeze(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """Without dimensions of size 1. Raises `ShapeError` for one of another size."""
    for each in axis if isinstance(axis, tuple) else (axis,):
        size = x.shape[shape_ops.axis_of("squeeze", each, x.shape)]
        if size != 1:
            raise ShapeError(f"squeeze: dimension {each} of shape {x.shape} has size {size}, not 1")
    return shape_ops.squeeze(x, axis)


def flip(x: Tensor, /, *, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """The order reversed along axes; without any, along all of them."""
    return join_and_pad.flip(x, dims=axis)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """Dimensions in another order."""
    return shape_ops.permute(x, axes)


def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Each element, or slice along an axis, several times in a row. Of a tensor of `repeats` the sum is fetched."""
    return join_and_pad.repeat_interleave(x, repeats, axis)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """The same elements in another shape; with `copy=False` a view, or `ShapeError` where that needs a copy."""
    if copy is False:
        return shape_ops.view(x, shape)
    return shape_ops.reshape(clone(x) if copy else x, shape)


def roll(x: Tensor, /, shift: Any, *, axis: Any = None) -> Tensor:
    """Elements shifted along axes, round the ends; without axes in the flattened tensor."""
    if isinstance(shift, int) and isinstance(axis, tuple):
        shift = (shift,) * len(axis)
    return join_and_pad.roll(x, shift, axis)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """The tensor laid side by side."""
    return join_and_pad.tile(x, repetitions)
