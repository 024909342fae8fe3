"""Reductions composed of others: pairs of moments, norms, counts, and those that pass over NaN."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.dtypes import HALVES, as_dtype, float32
from gt.errors import DTypeError

from . import apply as emission
from . import arithmetic, reductions
from .reductions import UNSET, axes_of, spelled

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = ["aminmax", "count_nonzero", "nanmean", "nansum", "norm", "std_mean", "var_mean"]


def var_mean(input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, **more: Any) -> Any:
    """`var` and `mean` over the same axes."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    chosen = spelled("var_mean", dim, more.get("axis"), None)
    keep = spelled("var_mean", keepdim, more.get("keepdims", UNSET), False)
    spread = reductions.var(input, dim, unbiased, keepdim, **more)
    return spread, reductions.mean(input, None if chosen == () else chosen, keep)


def std_mean(input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, **more: Any) -> Any:
    """`std` and `mean` over the same axes."""
    x = arithmetic.tensor_of("std_mean", input)
    wide = arithmetic.cast(x, float32) if x.dtype in HALVES else x
    spread, center = var_mean(wide, dim, unbiased, keepdim, **more)
    root = arithmetic.sqrt(spread)
    return (arithmetic.cast(root, x.dtype), arithmetic.cast(center, x.dtype)) if x.dtype in HALVES else (root, center)


def aminmax(
    input: Any, *, dim: int | None = None, keepdim: bool = False, axis: Any = None, keepdims: Any = UNSET
) -> Any:
    """`(smallest, largest)` of everything or along an axis."""
    chosen = spelled("aminmax", dim, axis, None)
    keep = spelled("aminmax", keepdim, keepdims, False)
    return reductions.Range(reductions.amin(input, chosen, keep), reductions.amax(input, chosen, keep))


def count_nonzero(input: Any, dim: Any = None, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """How many elements are not zero, over axes; int64."""
    x = arithmetic.tensor_of("count_nonzero", input)
    kept = x if x.dtype.kind == "b" else arithmetic.ne(x, 0)
    return reductions.sum(kept, spelled("count_nonzero", dim, axis, None), keepdims)


def _without_nan(name: str, input: Any) -> Tensor:
    x = arithmetic.tensor_of(name, input)
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
    x = arithmetic.tensor_of("nanmean", input)
    total = nansum(x, dim, keepdim, dtype=dtype, axis=axis, keepdims=keepdims)
    known = arithmetic.logical_not(arithmetic.isnan(x))
    count = reductions.sum(known, dim, keepdim, axis=axis, keepdims=keepdims)
    return arithmetic.div(total, arithmetic.cast(count, total.dtype))


def norm(
    input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, *, dtype: Any = None, axis: Any = None,
    keepdims: Any = UNSET,
) -> Tensor:  # fmt: skip
    """`(Σ |x|ᵖ)^(1/p)` over axes: for p = 0 how many are not zero, for ±∞ the largest or smallest |x|; 'fro' is 2, and 'nuc' of
    matrices the sum of their singular values."""
    x = arithmetic.tensor_of("norm", input)
    if dtype is not None:
        x = arithmetic.cast(x, as_dtype(dtype))
    if x.dtype.kind not in "fc":
        raise DTypeError(f"norm takes floating-point or complex numbers, not {x.dtype}: cast first, or pass dtype=")
    if x.dtype in HALVES:  # whose squares may be beyond what float16 holds
        wide = norm(arithmetic.cast(x, float32), p, dim, keepdim, axis=axis, keepdims=keepdims)
        return arithmetic.cast(wide, x.dtype)
    chosen = spelled("norm", dim, axis, None)
    keep = spelled("norm", keepdim, keepdims, False)
    if p == "nuc":
        from .norms import matrix_norm  # which is above this module

        return matrix_norm(x, "nuc", (-2, -1) if chosen is None else chosen, keep)
    power = 2.0 if p in ("fro", None) else float(p)
    if x.ndim == 0:
        axes: tuple[int, ...] = ()
    else:
        axes = axes_of("norm", chosen, x)
    size = arithmetic.abs(x)
    if power == math.inf:
        return reductions.amax(size, axes or None, keep)
    if power == -math.inf:
        return reductions.amin(size, axes or None, keep)
    if power == 0:
        return emission.apply("sum", (nonzero(size),), axes, bool(keep))
    if power == 1:
        return emission.apply("sum", (size,), axes, bool(keep))
    if power == 2:
        return _root(emission.apply("sum", (arithmetic.square(x if x.dtype.kind == "f" else size),), axes, bool(keep)))
    total = emission.apply("sum", (_power(size, power),), axes, bool(keep))
    return _power(total, 1 / power)


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
