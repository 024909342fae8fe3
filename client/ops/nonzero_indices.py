"""Indices of non-zero elements. Their number is data, so it is fetched."""

from __future__ import annotations

from gt.client.tensor import emission
from gt.client.tensor.operands import cast
from gt.client.tensor.tensor import Tensor
from gt.ir.dtypes import bool_, int64


def places_of(mask: Tensor) -> Tensor:
    """The indices at which a mask is true in the flattened tensor; their number is fetched."""
    flat = mask if mask.ndim == 1 else emission.emit("reshape", (mask,), (mask.numel(),))
    count = int(emission.emit("sum", (cast(flat, int64),), (0,), False))
    return emission.emit("flatnonzero", (flat,), count)


def nonzero_columns(x: Tensor) -> tuple[Tensor, ...]:
    """For each dimension (a number has one) the indices of the non-zero elements along it, in row-major order."""
    left = places_of(cast(x, bool_))
    shape = x.shape or (1,)
    columns: list[Tensor] = []
    for size in reversed(shape[1:]):
        columns.append(left % max(size, 1))
        left = left // max(size, 1)
    return (left, *reversed(columns))
