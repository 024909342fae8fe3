"""Reductions and normalisations of the elements that a mask keeps: PyTorch's `masked`.

What is masked out counts as what changes nothing: 0 in sums, 1 in products, −∞ in maxima. Where nothing is left the result is
that, or NaN where there is no such number.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.client.ops import arithmetic, creation, elementwise, reductions, shape_ops, sort_scan
from gt.client.ops.linalg import norms
from gt.client.tensor.operands import cast, clone, floating, tensor_of
from gt.ir.dtypes import int64

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "log_softmax", "logaddexp", "logsumexp", "mean", "median",
    "norm", "normalize", "prod", "softmax", "softmin", "std", "sum", "var",
]  # fmt: skip


def _filled(name: str, input: Any, mask: Any, value: Any, dtype: Any = None) -> Tensor:
    """The elements that are kept, in a dtype, and `value` in the place of the others."""
    x = tensor_of(name, input)
    x = x if dtype is None else cast(x, dtype)
    if mask is None:
        return x
    return arithmetic.where(cast(tensor_of(name, mask), "bool"), x, creation.full((), value, dtype=x.dtype))


def _least(x: Tensor) -> Any:
    """The least number of a dtype."""
    if x.dtype.kind == "f":
        return -math.inf
    return False if x.dtype.kind == "b" else int(np.iinfo(x.dtype.name).min)


def _most(x: Tensor) -> Any:
    if x.dtype.kind == "f":
        return math.inf
    return True if x.dtype.kind == "b" else int(np.iinfo(x.dtype.name).max)


def _axes(dim: Any) -> Any:
    """All dimensions for none: an empty list names none in PyTorch, too."""
    return None if dim is None or dim == () or dim == [] else dim


def sum(input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The sum of what is kept."""
    x = _filled("masked.sum", input, mask, 0, dtype)
    return reductions.sum(_whole(x, dtype), _axes(dim), keepdim, dtype=dtype)


def _whole(x: Tensor, dtype: Any) -> Tensor:
    """Booleans and integers as int64, unless a dtype was asked for."""
    return cast(x, int64) if dtype is None and x.dtype.kind in "bi" else x


def prod(input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The product of what is kept."""
    x = _whole(_filled("masked.prod", input, mask, 1, dtype), dtype)
    axes = range(x.ndim) if _axes(dim) is None else [dim] if isinstance(dim, int) else dim
    for axis in sorted((shape_ops.axis_of("masked.prod", each, x.shape) for each in axes if x.ndim), reverse=True):
        x = reductions.prod(x, axis, keepdim, dtype=x.dtype)
    return clone(x)


def amax(input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The largest of what is kept."""
    x = tensor_of("masked.amax", input) if dtype is None else cast(input, dtype)
    return reductions.amax(_filled("masked.amax", x, mask, _least(x)), _axes(dim), keepdim)


def amin(input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The smallest of what is kept."""
    x = tensor_of("masked.amin", input) if dtype is None else cast(input, dtype)
    return reductions.amin(_filled("masked.amin", x, mask, _most(x)), _axes(dim), keepdim)


def argmax(input: Any, dim: int | None = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The index of the first of the largest of what is kept."""
    x = tensor_of("masked.argmax", input) if dtype is None else cast(input, dtype)
    return _kept(reductions.argmax(_filled("masked.argmax", x, mask, _least(x)), dim, keepdim), x, None)


def argmin(input: Any, dim: int | None = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The index of the first of the smallest of what is kept."""
    x = tensor_of("masked.argmin", input) if dtype is None else cast(input, dtype)
    return _kept(reductions.argmin(_filled("masked.argmin", x, mask, _most(x)), dim, keepdim), x, None)


def _kept(out: Tensor, input: Any, dtype: Any) -> Tensor:
    """A result in the dtype asked for, or that of the input: so has PyTorch it here, of indices too."""
    return cast(out, tensor_of("masked", input).dtype if dtype is None else dtype)


def cumsum(input: Any, dim: int, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """The cumulative sum of what is kept."""
    return _kept(sort_scan.cumsum(_filled("masked.cumsum", input, mask, 0, dtype), dim, dtype=dtype), input, dtype)


def cumprod(input: Any, dim: int, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """The cumulative product of what is kept."""
    return _kept(sort_scan.cumprod(_filled("masked.cumprod", input, mask, 1, dtype), dim, dtype=dtype), input, dtype)


def _count(x: Tensor, dim: Any, keepdim: bool, mask: Any) -> Tensor:
    """The number of elements that are kept."""
    kept = creation.ones(x.shape, dtype=int64) if mask is None else cast(mask, int64)
    return reductions.sum(shape_ops.expand(kept, x.shape), _axes(dim), keepdim)


def _fractional(name: str, input: Any, dtype: Any) -> Tensor:
    x = tensor_of(name, input) if dtype is None else cast(input, dtype)
    return floating(name, x)


def mean(input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The mean of what is kept; NaN where nothing is."""
    x = _fractional("masked.mean", input, dtype)
    total = reductions.sum(_filled("masked.mean", x, mask, 0), _axes(dim), keepdim)
    return arithmetic.div(total, cast(_count(x, dim, keepdim, mask), x.dtype))


def median(input: Any, dim: int = -1, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The median of what is kept, the lower of two."""
    x = tensor_of("masked.median", input) if dtype is None else cast(input, dtype)
    found: Tensor = sort_scan.nanmedian(_filled("masked.median", x, mask, math.nan), dim, keepdim).values
    return found


def var(
    input: Any, dim: Any = None, unbiased: bool = True, *, correction: Any = None, keepdim: bool = False, dtype: Any = None,
    mask: Any = None,
) -> Tensor:  # fmt: skip
    """The variance of what is kept, `correction` (1 if `unbiased`) fewer counting."""
    x = _fractional("masked.var", input, dtype)
    centre = arithmetic.sub(x, mean(x, dim, keepdim=True, mask=mask))
    squares = arithmetic.mul(centre, centre.conj()).real if x.is_complex() else arithmetic.square(centre)
    total = reductions.sum(_filled("masked.var", squares, mask, 0), _axes(dim), keepdim)
    less = int(unbiased) if correction is None else correction
    count = cast(_count(x, dim, keepdim, mask), squares.dtype)
    return _kept(arithmetic.div(total, arithmetic.clamp(arithmetic.sub(count, less), min=0)), x, None)


def std(
    input: Any, dim: Any = None, unbiased: bool = True, *, correction: Any = None, keepdim: bool = False, dtype: Any = None,
    mask: Any = None,
) -> Tensor:  # fmt: skip
    """The root of `var`."""
    return arithmetic.sqrt(var(input, dim, unbiased, correction=correction, keepdim=keepdim, dtype=dtype, mask=mask))


def norm(
    input: Any, ord: float | None = 2.0, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Tensor:
    """The norm of the vectors of what is kept."""
    order = 2.0 if ord is None else float(ord)
    x = _filled("masked.norm", input, mask, math.inf if order == -math.inf or order < 0 else 0, dtype)
    return norms.vector_norm(x, order, _axes(dim), keepdim)


def normalize(input: Any, ord: float, dim: int, *, eps: float = 1e-12, dtype: Any = None, mask: Any = None) -> Tensor:
    """The kept elements over their norm, which counts as at least `eps`; 0 elsewhere."""
    x = _fractional("masked.normalize", input, dtype)
    length = norm(x, ord, dim, keepdim=True, mask=mask)
    whole = _filled("masked.normalize", x, mask, 0)
    return arithmetic.div(whole, arithmetic.maximum(length, creation.full((), eps, dtype=length.dtype)))


def logsumexp(input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The logarithm of the sum of exponentials of what is kept."""
    x = _fractional("masked.logsumexp", input, dtype)
    return _kept(
        reductions.logsumexp(_filled("masked.logsumexp", x, mask, -math.inf), _axes(dim), keepdim), input, dtype
    )


def logaddexp(input: Any, other: Any, *, dtype: Any = None, input_mask: Any = None, other_mask: Any = None) -> Tensor:
    """The logarithm of the sum of two exponentials, each of what its mask keeps."""
    first = _filled("masked.logaddexp", _fractional("masked.logaddexp", input, dtype), input_mask, -math.inf)
    second = _filled("masked.logaddexp", _fractional("masked.logaddexp", other, dtype), other_mask, -math.inf)
    return elementwise.logaddexp(first, second)


def softmax(input: Any, dim: int, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """`softmax` of what is kept; 0 elsewhere."""
    return reductions.softmax(_filled("masked.softmax", input, mask, -math.inf, dtype), dim)


def log_softmax(input: Any, dim: int, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """`log_softmax` of what is kept; −∞ elsewhere."""
    return reductions.log_softmax(_filled("masked.log_softmax", input, mask, -math.inf, dtype), dim)


def softmin(input: Any, dim: int, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """`softmax` of minus what is kept; 0 elsewhere."""
    return softmax(arithmetic.neg(tensor_of("masked.softmin", input)), dim, dtype=dtype, mask=mask)
