"""Reductions composed of others: pairs of moments, norms, counts, and those that pass over NaN."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.client.tensor.operands import cast, tensor_of
from gt.ir.dtypes import HALF_DTYPES, float32

from . import arithmetic, reductions
from .reductions import UNSET, spelled

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["aminmax", "count_nonzero", "nanmean", "nansum", "std_mean", "var_mean"]


def var_mean(
    input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None,
    axis: Any = None, keepdims: Any = UNSET,
) -> Any:  # fmt: skip
    """`var` and `mean` over the same axes."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    chosen = spelled("var_mean", dim, axis, None)
    keep = spelled("var_mean", keepdim, keepdims, False)
    spread = reductions.var(input, dim, unbiased, keepdim, correction=correction, axis=axis, keepdims=keepdims)
    return spread, reductions.mean(input, None if chosen == () else chosen, keep)


def std_mean(
    input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None,
    axis: Any = None, keepdims: Any = UNSET,
) -> Any:  # fmt: skip
    """`std` and `mean` over the same axes."""
    x = tensor_of("std_mean", input)
    wide = cast(x, float32) if x.dtype in HALF_DTYPES else x
    spread, center = var_mean(wide, dim, unbiased, keepdim, correction=correction, axis=axis, keepdims=keepdims)
    root = arithmetic.sqrt(spread)
    return (cast(root, x.dtype), cast(center, x.dtype)) if x.dtype in HALF_DTYPES else (root, center)


def aminmax(
    input: Any, *, dim: int | None = None, keepdim: bool = False, axis: Any = None, keepdims: Any = UNSET
) -> Any:
    """`(smallest, largest)` of everything or along an axis."""
    chosen = spelled("aminmax", dim, axis, None)
    keep = spelled("aminmax", keepdim, keepdims, False)
    return reductions.Range(reductions.amin(input, chosen, keep), reductions.amax(input, chosen, keep))


def count_nonzero(input: Any, dim: Any = None, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The number of elements that are not zero, over axes; int64."""
    x = tensor_of("count_nonzero", input)
    kept = x if x.dtype.kind == "b" else arithmetic.ne(x, 0)
    return reductions.sum(kept, spelled("count_nonzero", dim, axis, None), keepdims)


def _without_nan(name: str, input: Any) -> Tensor:
    x = tensor_of(name, input)
    return arithmetic.where(arithmetic.isnan(x), 0.0, x) if x.dtype.kind == "f" else x


def nansum(
    input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, axis: Any = None, keepdims: Any = UNSET
) -> Tensor:
    """The sum of what is not NaN, over axes."""
    return reductions.sum(_without_nan("nansum", input), dim, keepdim, dtype=dtype, axis=axis, keepdims=keepdims)


def nanmean(
    input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, axis: Any = None, keepdims: Any = UNSET
) -> Tensor:
    """The mean of what is not NaN, over axes; NaN where nothing is."""
    x = tensor_of("nanmean", input)
    total = nansum(x, dim, keepdim, dtype=dtype, axis=axis, keepdims=keepdims)
    known = arithmetic.logical_not(arithmetic.isnan(x))
    count = reductions.sum(known, dim, keepdim, axis=axis, keepdims=keepdims)
    return arithmetic.div(total, cast(count, total.dtype))


def nonzero(x: Tensor) -> Tensor:
    """1 where an element is not 0, with gradient 0, as PyTorch has it."""
    return arithmetic.where(arithmetic.isnan(x), 1.0, arithmetic.abs(arithmetic.sign(x)))


def _root(total: Tensor) -> Tensor:
    """The square root, with gradient 0 at 0: there the norm has no slope, and PyTorch says 0."""
    zero = arithmetic.eq(total, 0)
    return arithmetic.where(zero, 0.0, arithmetic.sqrt(arithmetic.where(zero, 1.0, total)))


def _power(base: Tensor, exponent: float) -> Tensor:
    """A power with gradient 0 at 0."""
    zero = arithmetic.eq(base, 0)
    value = 0.0 if exponent > 0 else math.inf
    return arithmetic.where(zero, value, arithmetic.pow(arithmetic.where(zero, 1.0, base), exponent))
