"""The standard's functions that look for elements: at places, in order, distinct ones, where something holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gt.client.ops import arithmetic, gather_scatter, histogram_unique, shape_ops, sort_scan
from gt.client.ops.reductions import argmax, argmin
from gt.client.ops.sort_scan import argsort
from gt.errors import ShapeError

from .promotion import common

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "argmax", "argmin", "argsort", "nonzero", "searchsorted", "sort", "take", "take_along_axis",
    "unique_all", "unique_counts", "unique_inverse", "unique_values", "where",
]  # fmt: skip


class UniqueAll(NamedTuple):
    """The result of `unique_all`."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The result of `unique_counts`."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The result of `unique_inverse`."""

    values: Tensor
    inverse_indices: Tensor


# where


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of elements that are not zero, one vector for each dimension. Their number is fetched."""
    if not x.ndim:
        raise ShapeError("nonzero: a tensor without dimensions has no places")
    found: tuple[Tensor, ...] = gather_scatter.nonzero(x, as_tuple=True)
    return found


def where(condition: Tensor, x1: Any, x2: Any, /) -> Tensor:
    """`x1` where the condition holds, else `x2`."""
    a, b = common("where", x1, x2)
    return arithmetic.where(condition, a, b)


# at places


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The slices along an axis that a vector of places lists; of a vector the axis may go without saying."""
    if axis is None and x.ndim != 1:
        raise ShapeError(f"take: along which axis of shape {x.shape}? pass axis=")
    return gather_scatter.index_select(x, 0 if axis is None else axis, indices)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """`x[..., indices[i], ...]` along an axis; the other dimensions broadcast."""
    return gather_scatter.take_along_dim(x, indices, axis)


# in order


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The values in order along an axis; NaN is the largest."""
    return sort_scan.sort(x, axis, descending).values


def searchsorted(x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """The number of elements of the sorted vector `x1` below each of `x2`; with side 'right' below or equal to it."""
    rows, values = common("searchsorted", x1, x2)
    return sort_scan.searchsorted(rows, values, side=side, sorter=sorter)


# distinct


def unique_all(x: Tensor, /) -> UniqueAll:
    """The distinct elements, where each is first met, where each element is among them, and how often each occurs."""
    flat = shape_ops.reshape(x, -1)
    values, inverse, counts = histogram_unique.unique(flat, return_inverse=True, return_counts=True)
    starts = arithmetic.sub(
        sort_scan.cumsum(counts, 0), counts
    )  # sorting is stable: where a run begins is where it was first met
    indices = gather_scatter.index_select(sort_scan.argsort(flat), 0, starts)
    return UniqueAll(values, indices, shape_ops.reshape(inverse, x.shape), counts)


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The distinct elements, and how often each occurs."""
    return UniqueCounts(*histogram_unique.unique(x, return_counts=True))


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The distinct elements, and where each element is among them."""
    return UniqueInverse(*histogram_unique.unique(x, return_inverse=True))


def unique_values(x: Tensor, /) -> Tensor:
    """The distinct elements, in order. How many there are is fetched."""
    values: Tensor = histogram_unique.unique(x)
    return values
