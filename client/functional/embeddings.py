"""Embeddings: look-ups of rows of a table, one by one or joined in bags."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, creation, scatter_reductions, shape_ops, sort_scan
from gt.client.ops.linalg import norms
from gt.client.tensor import emission, grad_mode
from gt.client.tensor.operands import cast, integers, tensor_of
from gt.errors import ShapeError
from gt.ir.dtypes import bool_

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["embedding_bag"]


def renormed(weight: Tensor, places: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale down, in place, the rows that are listed and longer than `max_norm`."""
    with grad_mode.no_grad():
        rows, size = weight.shape[0], places.numel()
        listed = creation.full((rows,), False, dtype=bool_)
        flat = emission.emit("reshape", (places,), (size,))
        if size:
            listed = emission.emit("scatter", (listed, flat, creation.full((size,), True)), 0)
        length = norms.vector_norm(weight, norm_type, 1)
        long = arithmetic.logical_and(listed, arithmetic.gt(length, float(max_norm)))
        scale = arithmetic.div(creation.full((), float(max_norm), dtype=weight.dtype), arithmetic.add(length, 1e-7))
        weight.copy_(
            arithmetic.where(
                shape_ops.unsqueeze(long, 1), arithmetic.mul(weight, shape_ops.unsqueeze(scale, 1)), weight
            )
        )


def embedding_bag(
    input: Any, weight: Any, offsets: Any = None, max_norm: float | None = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Any = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """For each bag, a row of `input` or what lies from one of the `offsets` into a vector to the next, the rows of `weight`
    that it lists, as their 'sum', 'mean' or 'max': (bags, size). Those of `padding_idx` do not count; an empty bag is zeros.
    """
    places, rows = integers("embedding_bag", input), tensor_of("embedding_bag", weight)
    if scale_grad_by_freq or sparse:
        raise NotImplementedError(
            "embedding_bag: gradients are dense and unscaled: leave scale_grad_by_freq and sparse"
        )
    if mode not in ("sum", "mean", "max") or (per_sample_weights is not None and mode != "sum"):
        raise ValueError(f"embedding_bag: mode is 'sum', 'mean' or 'max', and with weights 'sum', not {mode!r}")
    if (places.ndim == 1) is (offsets is None) or places.ndim not in (1, 2) or rows.ndim != 2:
        raise ShapeError(
            f"embedding_bag: input (bags, length), or a vector with offsets, and a weight (rows, size), "
            f"not {places.shape} and {rows.shape}"
        )
    if max_norm is not None:
        renormed(rows, places, max_norm, norm_type)
    if offsets is None:
        bags, length = places.shape
        numbers = emission.emit("expand", (creation.arange(bags).reshape(bags, 1),), (bags, length))
        numbers, places = numbers.reshape(-1), places.reshape(-1)
    else:
        begins = integers("embedding_bag", offsets)
        bags = begins.shape[0] - bool(include_last_offset)
        begins = begins[:bags]
        numbers = arithmetic.sub(
            sort_scan.searchsorted(begins, creation.arange(places.shape[0], dtype=begins.dtype), right=True), 1
        )
    found = emission.emit("take", (rows, places), 0)
    kept = None
    if padding_idx is not None:
        kept = arithmetic.ne(places, place_of("embedding_bag", padding_idx, rows.shape[0]))
    if per_sample_weights is not None:
        factor = tensor_of("embedding_bag", per_sample_weights).reshape(-1, 1)
        found = arithmetic.mul(found, factor)
    if mode == "max":
        return _largest(found, numbers, kept, bags)
    if kept is not None:
        found = arithmetic.where(shape_ops.unsqueeze(kept, 1), found, 0.0)
    total = emission.emit("segment_sum", (found, numbers), 0, bags)
    if mode == "sum":
        return total
    ones = creation.ones(places.shape, dtype=rows.dtype) if kept is None else cast(kept, rows.dtype)
    count = emission.emit("segment_sum", (ones, numbers), 0, bags)
    return arithmetic.div(total, shape_ops.unsqueeze(arithmetic.clamp(count, 1), 1))


def _largest(found: Tensor, numbers: Tensor, kept: Tensor | None, bags: int) -> Tensor:
    """The largest of each column in each bag; what does not count goes into one bag more."""
    if kept is not None:
        numbers = arithmetic.where(kept, numbers, bags)
    lowest = creation.full((bags + 1, found.shape[1]), -math.inf, dtype=found.dtype)
    out = scatter_reductions.index_reduce(lowest, 0, numbers, found, "amax")[:bags]
    ones = creation.ones(numbers.shape, dtype=found.dtype)
    count = emission.emit("segment_sum", (ones, numbers), 0, bags + 1)[:bags]
    return arithmetic.where(shape_ops.unsqueeze(arithmetic.eq(count, 0), 1), 0.0, out)


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """The rows of `weight` (rows, size) that integers list: (..., size). The row `padding_idx` gets no gradient.

    With `max_norm` rows that are listed and longer are scaled down in place first. An index out of range is an error at the
    fetch.
    """
    if scale_grad_by_freq or sparse:
        raise NotImplementedError("embedding: gradients are dense and unscaled: leave scale_grad_by_freq and sparse")
    places, rows = tensor_of("embedding", input), tensor_of("embedding", weight)
    if rows.ndim != 2:
        raise ShapeError(f"embedding: a weight of shape (rows, size), not {rows.shape}")
    if max_norm is not None:
        renormed(rows, places, max_norm, norm_type)
    found = emission.emit("take", (rows, places), 0)
    if padding_idx is None:
        return found
    row = place_of("embedding", padding_idx, rows.shape[0])
    padding = emission.emit("reshape", (arithmetic.eq(places, row),), (*places.shape, 1))
    return arithmetic.where(padding, found.detach(), found)


def place_of(name: str, padding_idx: int, rows: int) -> int:
    """The row that `padding_idx` names, which may count from the end."""
    if not -rows <= padding_idx < rows:
        raise ShapeError(f"{name}: padding_idx {padding_idx} is not one of {rows} rows")
    return padding_idx % rows
