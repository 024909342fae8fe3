"""Numerical calculus on samples: integrals by the trapezoidal rule, gradients by differences, covariance and correlation."""

from __future__ import annotations

from typing import Any

from gt.client.tensor import emission
from gt.client.tensor.operands import cast, of_kinds, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import get_default_dtype

from . import (
    arithmetic,
    complex_numbers,
    contractions,
    creation,
    join_and_pad,
    reductions,
    shape_ops,
    sort_scan,
    triangular,
)
from .random import checked
from .shape_ops import axis_of

__all__ = ["corrcoef", "cov", "cumulative_trapezoid", "gradient", "trapezoid", "trapz"]


def _part(x: Tensor, at: int, start: int, size: int) -> Tensor:
    return emission.emit("slice", (x, start if size else 0), (at,), (size,), (1,))


def _areas(name: str, y: Any, x: Any, dx: Any, dim: int) -> tuple[Tensor, int]:
    """Of every two neighbours along an axis their mean times the way between them, doubled where dx is a number."""
    values = of_kinds(name, y, "ifc")
    at = axis_of(name, dim, values.shape)
    size = max(values.shape[at] - 1, 0)
    pairs = arithmetic.add(_part(values, at, min(1, values.shape[at]), size), _part(values, at, 0, size))
    if x is None:
        return arithmetic.mul(pairs, dx if isinstance(dx, Tensor) else float(dx)), at
    points = tensor_of(name, x)
    if points.ndim == 1 and values.ndim > 1:
        points = shape_ops.reshape(points, (-1, *(1,) * (values.ndim - at - 1)))
        return arithmetic.mul(pairs, sort_scan.diff(points, dim=0)), at
    return arithmetic.mul(pairs, sort_scan.diff(points, dim=points.ndim - values.ndim + at)), at


def trapezoid(y: Any, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Tensor:
    """The integral of samples along an axis by trapezoids, `dx` apart or at the points `x`."""
    areas, at = _areas("trapezoid", y, x, dx, dim)
    total = reductions.sum(areas, at - len(tensor_of("trapezoid", y).shape))
    return arithmetic.div(total, 2.0)


trapz = trapezoid


def cumulative_trapezoid(y: Any, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Tensor:
    """The integrals up to each sample but the first."""
    areas, at = _areas("cumulative_trapezoid", y, x, dx, dim)
    return arithmetic.div(sort_scan.cumsum(areas, at - tensor_of("cumulative_trapezoid", y).ndim), 2.0)


def gradient(input: Any, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """The slopes of samples along each axis, of second order inside: `spacing` is a distance, one for each axis, or the
    points' coordinates (Fornberg, 1988)."""
    x = tensor_of("gradient", input)
    if edge_order not in (1, 2):
        raise ValueError(f"gradient: edge_order is 1 or 2, not {edge_order}")
    axes = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    at = [axis_of("gradient", axis, x.shape) for axis in axes]
    if len({*at}) != len(at):
        raise ShapeError(f"gradient: axes {tuple(axes)} of shape {x.shape} repeat each other")
    spacing = 1 if spacing is None else spacing
    given = list(spacing) if isinstance(spacing, (list, tuple)) else [spacing] * len(at)
    if len(given) != len(at):
        raise ShapeError(f"gradient: {len(given)} spacings for {len(at)} axes")
    if x.dtype.kind not in "fc":
        x = cast(x, get_default_dtype())
    return tuple(_slope(x, axis, each, edge_order) for axis, each in zip(at, given, strict=True))


def _slope(x: Tensor, at: int, spacing: Any, order: int) -> Tensor:
    size = x.shape[at]
    if size < order + 1:
        raise ShapeError(f"gradient: {size} samples along dimension {at} of shape {x.shape} are too few")
    shape = tuple(-1 if axis == at else 1 for axis in range(x.ndim))
    if isinstance(spacing, Tensor) and spacing.ndim:
        ways = shape_ops.reshape(sort_scan.diff(spacing), shape)
    else:
        ways = shape_ops.reshape(arithmetic.mul(creation.ones(size - 1, dtype=x.dtype.to_real()), spacing), shape)
    rises = arithmetic.div(arithmetic.sub(_part(x, at, 1, size - 1), _part(x, at, 0, size - 1)), ways)

    def between(first: Tensor, second: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Two slopes, each weighted with the other's way."""
        total = arithmetic.add(near, far)
        return arithmetic.div(arithmetic.add(arithmetic.mul(first, far), arithmetic.mul(second, near)), total)

    count = size - 2
    before, after = _part(rises, at, 0, count), _part(rises, at, 1 if count else 0, count)
    inside = between(before, after, _part(ways, at, 0, count), _part(ways, at, 1 if count else 0, count))
    first, last = _part(rises, at, 0, 1), _part(rises, at, size - 2, 1)
    if order == 2:
        first = _outside(first, _part(rises, at, 1, 1), _part(ways, at, 0, 1), _part(ways, at, 1, 1))
        last = _outside(last, _part(rises, at, size - 3, 1), _part(ways, at, size - 2, 1), _part(ways, at, size - 3, 1))
    return join_and_pad.cat([first, inside, last], at)


def _outside(end: Tensor, next_: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """At an end, the line through the slopes of the two nearest steps."""
    bend = arithmetic.div(arithmetic.mul(arithmetic.sub(end, next_), near), arithmetic.add(near, far))
    return arithmetic.add(end, bend)


# series


def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Tensor:
    """The covariances of variables, the rows of a matrix, from observations, its columns, which may have weights."""
    x = tensor_of("cov", input)
    if x.ndim > 2:
        raise ShapeError(f"cov takes a matrix or a vector, not shape {x.shape}")
    if x.dtype.kind == "b":
        raise DTypeError("cov takes numbers, not bool")
    x = shape_ops.reshape(x, (1, -1)) if x.ndim < 2 else x
    x = x if x.dtype.kind in "fc" else cast(x, get_default_dtype())
    count, weights = x.shape[1], None
    for name, each in (("fweights", fweights), ("aweights", aweights)):
        if each is not None:
            given = tensor_of("cov", each)
            if given.ndim > 1 or given.numel() != count:
                raise ShapeError(f"cov: {name} of shape {given.shape} for {count} observations")
            if name == "fweights" and given.dtype.kind != "i":
                raise DTypeError(f"cov: fweights count observations, so they are integers, not {given.dtype}")
            known = checked(given)
            weights = known if weights is None else arithmetic.mul(weights, known)
    if weights is None:
        mean = reductions.mean(x, 1, True)
        norm: Any = max(float(count - correction), 0.0)
    else:
        total = reductions.sum(weights)
        mean = arithmetic.div(reductions.sum(arithmetic.mul(x, weights), 1, True), total)
        if aweights is None or not correction:
            norm = arithmetic.sub(total, correction)
        else:
            share = arithmetic.div(reductions.sum(arithmetic.mul(weights, aweights)), total)
            norm = arithmetic.sub(total, arithmetic.mul(share, correction))
        norm = arithmetic.clamp(norm, 0)
    apart = arithmetic.sub(x, mean)
    other = apart if weights is None else arithmetic.mul(apart, weights)
    product = contractions.inner(apart, complex_numbers.conj_physical(other))
    return shape_ops.squeeze(arithmetic.div(product, norm))


def corrcoef(input: Any) -> Tensor:
    """The correlations of variables, the rows of a matrix, from observations, its columns."""
    c = cov(input)
    if c.ndim == 0:
        return arithmetic.div(c, c)
    spread = arithmetic.sqrt(complex_numbers.real(triangular.diagonal(c)))
    out = arithmetic.div(arithmetic.div(c, shape_ops.unsqueeze(spread, 1)), spread)
    if out.dtype.kind == "c":
        parts = [arithmetic.clamp(part, -1, 1) for part in (complex_numbers.real(out), complex_numbers.imag(out))]
        return complex_numbers.complex(*parts)
    return arithmetic.clamp(out, -1, 1)
