"""Distances of points, and vectors brought within a distance of the origin.

The slope of a distance of 0 is taken for 0, as PyTorch has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, creation, reductions, shape_ops, statistics, triangular
from gt.client.ops.arithmetic import in_single
from gt.client.ops.linalg.norms import vector_norm
from gt.client.tensor.operands import tensor_of
from gt.errors import ShapeError

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["cdist", "dist", "pdist", "renorm"]


def _length(x: Tensor, p: float) -> Tensor:
    """(Σ |x|ᵖ)^(1/p) along the last dimension; of 0 the number of elements that are not 0."""

    if p == 0:
        return reductions.sum(statistics.nonzero(x), -1)
    return vector_norm(x, p, -1)


@in_single
def dist(input: Any, other: Any, p: float = 2) -> Tensor:
    """The p-norm of the difference of two tensors that broadcast."""
    apart = arithmetic.sub(tensor_of("dist", input), tensor_of("dist", other))
    return _length(shape_ops.reshape(apart, (-1,) if apart.numel() else (0,)), p)


@in_single
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """The distances of each of the points (…, P, M) from each of (…, R, M): (…, P, R). All modes compute by differences."""
    a, b = tensor_of("cdist", x1), tensor_of("cdist", x2)
    modes = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
    if compute_mode not in modes:
        raise ValueError(f"cdist: compute_mode is one of {modes}, not {compute_mode!r}")
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-1] or p < 0:
        raise ShapeError(f"cdist: points {a.shape} and {b.shape} have the same number of coordinates, and p ≥ 0")
    apart = arithmetic.sub(shape_ops.unsqueeze(a, -2), shape_ops.unsqueeze(b, -3))
    if not apart.shape[-1]:
        return reductions.sum(apart, -1)
    return _length(apart, p)


@in_single
def pdist(input: Any, p: float = 2.0) -> Tensor:
    """The distances of every two rows of a matrix: those of the first from all after it, of the second, and so on."""
    x = tensor_of("pdist", input)
    if x.ndim != 2 or p < 0:
        raise ShapeError(f"pdist takes a matrix, and p ≥ 0, not shape {x.shape} and {p}")
    first, second = triangular.triu_indices(x.shape[0], x.shape[0], 1)
    apart = arithmetic.sub(x.index_select(0, first), x.index_select(0, second))
    return _length(apart, p) if apart.shape[-1] else reductions.sum(apart, -1)


@in_single
def renorm(input: Any, p: float, dim: int, maxnorm: float) -> Tensor:
    """`input` with every slice along `dim` whose p-norm is above `maxnorm` scaled down to it."""
    x = tensor_of("renorm", input)
    at = shape_ops.axis_of("renorm", dim, x.shape)
    if not p > 0 or maxnorm < 0:
        raise ValueError(f"renorm: p is a number above 0 and maxnorm at least 0, not {p} and {maxnorm}")
    rest = tuple(axis for axis in range(x.ndim) if axis != at)

    size = vector_norm(x, p, rest, True) if rest else arithmetic.abs(x)
    scale = arithmetic.div(creation.full((), maxnorm, dtype=size.dtype), arithmetic.add(size, 1e-7))
    return arithmetic.mul(x, arithmetic.where(arithmetic.gt(size, maxnorm), scale, 1.0))
