"""Gradients that wait on their way back until all of their kind have come, and are then made at once.

The gradient of a slice is zeros but in one place; a tensor that was taken apart gets one for each part, and to add up as many
whole tensors takes the square of the time of joining the parts. The gradient of a matrix that meets few rows at a time, as at
every step of a recurrent network, is a product that is smaller than its result; of the rows of all times it is one product.
Which gradients wait follows from shapes, and from where slices begin; never from values.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from . import emission, emission_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gt.client.tensor.tensor import Tensor

MAX_WAITING_ELEMENTS: Final = 1 << 24
"""Elements of operands that wait for one product; with more, what has come is multiplied."""


class Slices:
    """Gradients of slices along one axis, of a tensor that is zero elsewhere: parts that do not overlap, in their order."""

    __slots__ = ("axis", "context", "ends", "parts", "shape", "starts")

    def __init__(self, shape: tuple[int, ...], axis: int, start: int, part: Tensor) -> None:
        self.context = emission_context.current()
        self.shape = shape
        self.axis = axis
        self.starts = [start]
        self.ends = [start + part.shape[axis]]
        self.parts = [part]

    def join(self, other: Tensor | DeferredGradient) -> Tensor | DeferredGradient:
        """Together, unless both have something for the same place."""
        if not isinstance(other, Slices) or other.axis != self.axis:
            return self.whole() + made(other)
        for start, end, part in zip(other.starts, other.ends, other.parts, strict=True):
            at = bisect_left(self.starts, start)
            if (at and self.ends[at - 1] > start) or (at < len(self.starts) and self.starts[at] < end):
                return self.whole() + made(other)
            self.starts.insert(at, start)
            self.ends.insert(at, end)
            self.parts.insert(at, part)
        return self

    def whole(self) -> Tensor:
        """The parts, and zeros between them."""
        before = emission_context.enter(self.context)
        try:
            return self._cat() if len(self.parts) > 1 else self._placed()
        finally:
            emission_context.enter(before)

    def _placed(self) -> Tensor:
        (part,) = self.parts
        operands = self._zeros(self.shape), part, self.starts[0]
        return emission.emit("update_slice", operands, (self.axis,), (part.shape[self.axis],), (1,))

    def _cat(self) -> Tensor:
        parts: list[Tensor] = []
        last = 0
        for start, end, part in zip(self.starts, self.ends, self.parts, strict=True):
            parts += [*self._gap(last, start), part]
            last = end
        parts += self._gap(last, self.shape[self.axis])
        return emission.emit_cat(parts, self.axis)

    def _gap(self, start: int, end: int) -> list[Tensor]:
        shape = (*self.shape[: self.axis], end - start, *self.shape[self.axis + 1 :])
        return [self._zeros(shape)] if end > start else []

    def _zeros(self, shape: tuple[int, ...]) -> Tensor:
        return emission.emit("full", (0.0,), shape, self.parts[0].dtype)


class Products:
    """Gradients aᵀ g of one matrix, for rows a and g: the operands, and what else has come."""

    __slots__ = ("context", "pairs", "shape", "size", "total")

    def __init__(self, a: Tensor, g: Tensor) -> None:
        self.context = emission_context.current()
        self.pairs = [(a, g)]
        self.shape = a.shape, g.shape
        self.size = math.prod(a.shape) + math.prod(g.shape)
        self.total: Tensor | None = None

    def join(self, other: Tensor | DeferredGradient) -> Products:
        """Together. With as many rows each they are all sharded alike, if they are."""
        if not isinstance(other, Products) or other.total is not None or other.shape != self.shape:
            self._add(made(other))
            return self
        self.pairs += other.pairs
        self.size += other.size
        if self.size > MAX_WAITING_ELEMENTS:
            total = self.whole()
            self.total, self.pairs, self.size = total, [], 0
        return self

    def whole(self) -> Tensor:
        """One product of all rows, and what else has come."""
        before = emission_context.enter(self.context)
        try:
            if self.pairs:
                self._add(self._product())
        finally:
            emission_context.enter(before)
        assert self.total is not None, "something has come"
        return self.total

    def _add(self, more: Tensor) -> None:
        self.total = more if self.total is None else self.total + more

    def _product(self) -> Tensor:
        a, g = (_below(parts) for parts in zip(*self.pairs, strict=True))
        return emission.emit("matmul", (emission.emit("permute", (a,), (1, 0)), g))


def _below(parts: Sequence[Tensor]) -> Tensor:
    """Matrices of one shape as one: the first row of each, then the second, so that cuts stay where they are."""
    if len(parts) == 1:
        return parts[0]
    rows, columns = parts[0].shape
    return emission.emit("reshape", (emission.emit_cat(parts, 1),), (rows * len(parts), columns))


DeferredGradient = Slices | Products
DEFERRED_CLASSES: Final = (Slices, Products)


def made(gradient: Tensor | DeferredGradient) -> Tensor:
    """The gradient, made now if it waits."""
    return gradient.whole() if isinstance(gradient, DEFERRED_CLASSES) else gradient


def joined(one: Tensor | DeferredGradient, other: Tensor | DeferredGradient) -> Tensor | DeferredGradient:
    """Two gradients of one tensor as one."""
    if isinstance(one, DEFERRED_CLASSES):
        return one.join(other)
    return other.join(one) if isinstance(other, DEFERRED_CLASSES) else one + other


def slice_gradient(
    shape: tuple[int, ...], g: Tensor, starts: tuple[int, ...], window: tuple[tuple[int, ...], ...]
) -> Tensor | DeferredGradient:
    """The gradient of what was cut: `g` in the place of its slice (axes, sizes, steps), and zeros."""
    axes, _, steps = window
    if len(axes) == 1 and steps == (1,) and g.shape[axes[0]]:
        return Slices(shape, axes[0], starts[0], g)
    zeros = emission.emit("full", (0.0,), shape, g.dtype)
    return emission.emit("update_slice", (zeros, g, *starts), *window)


def matrix_gradient(a: Tensor, g: Tensor) -> Tensor | DeferredGradient:
    """aᵀ g of rows (…, inner) and (…, columns), the gradient of the matrix that they met."""
    rows, inner, columns = math.prod(a.shape[:-1]), a.shape[-1], g.shape[-1]
    if a.ndim > 2:
        a, g = (emission.emit("reshape", (x,), (rows, x.shape[-1])) for x in (a, g))
    few = 0 < rows * (inner + columns) < inner * columns  # to copy the rows takes less than to add up results
    waiting = Products(a, g)
    return waiting if few else waiting.whole()
