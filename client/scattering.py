"""Values that meet at places which tensors list: joined there by a sum, a product, a mean, or the largest or smallest.

Sums are one instruction. For the others values are sorted by place, or by size, and of those for one place the last is
written, so the same call gives the same bits. Reading and plain writing are in `gathering.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.dtypes import bool_, int64

from . import apply as emission
from . import arithmetic, creation, gathering, shaping

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = ["index_reduce", "scatter_reduce"]

_KINDS = ("sum", "prod", "mean", "amax", "amin")


def scatter_reduce(input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Tensor:
    """`input` with the elements of `src` reduced into it at `index` along `dim`: 'sum', 'prod', 'mean', 'amax' or
    'amin'.

    The elements of `input` are included unless `include_self` is False. Equal extremes share the gradient.
    """
    source = arithmetic.tensor_of("scatter_reduce", src)
    x, at, places, values = gathering._along("scatter_reduce", input, dim, index, source)
    return _joined("scatter_reduce", _KINDS, x, at, places, values, reduce, include_self).reshape(input.shape)


def index_reduce(input: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Tensor:
    """`input` with the slices of `source` reduced into it along `dim` at the indices in a vector, like
    `scatter_reduce`.
    """
    x, at, places = gathering._listed("index_reduce", input, dim, index)
    values = gathering._slices("index_reduce", x, at, places, source)
    shape = tuple(size if axis == at else 1 for axis, size in enumerate(values.shape))
    spread = shaping.expand(emission.apply("reshape", (places,), shape), values.shape)
    return _joined("index_reduce", _KINDS[1:], x, at, spread, values, reduce, include_self).reshape(input.shape)


def _joined(
    name: str, kinds: tuple[str, ...], x: Tensor, at: int, places: Tensor, values: Tensor, reduce: str, include: bool
) -> Tensor:
    if reduce not in kinds:
        raise ValueError(f"{name}: reduce is one of {', '.join(kinds)}, not {reduce!r}")
    if places.numel() == 0:
        return arithmetic.clone(x)
    if x.dtype is bool_:  # as the numbers 0 and 1
        known = [arithmetic.cast(each, int64) for each in (x, values)]
        return arithmetic.cast(_joined(name, kinds, known[0], at, places, known[1], reduce, include), bool_)
    size = x.shape[at]
    places = arithmetic.where(arithmetic.lt(places, 0), arithmetic.add(places, size), places)
    if not include:
        reached = emission.apply(
            "scatter", (creation.full(x.shape, False), places, creation.full(places.shape, True)), at
        )
        x = arithmetic.where(reached, _nothing(reduce, x), x)
    if reduce == "sum":
        return emission.apply("scatter_add", (x, places, values), at)
    if reduce == "prod":
        return arithmetic.mul(x, _products(x, at, places, values))
    if reduce == "mean":
        total = emission.apply("scatter_add", (x, places, values), at)
        ones = creation.ones(places.shape, dtype=x.dtype)
        begin = creation.ones(x.shape, dtype=x.dtype) if include else arithmetic.cast(~reached, x.dtype)
        count = emission.apply("scatter_add", (begin, places, ones), at)
        return arithmetic.div(total, count, rounding_mode=None if x.dtype.kind in "fc" else "floor")
    from .extremes import Extreme  # which needs the tape, and that needs this module

    extreme: Tensor = Extreme.apply(x, places, values, at, reduce == "amax")
    return extreme


def _nothing(reduce: str, x: Tensor) -> Any:
    """What changes nothing when it is joined to a value."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if x.dtype.kind == "f":
        return -math.inf if reduce == "amax" else math.inf
    info = np.iinfo(x.dtype.name)
    return int(info.min if reduce == "amax" else info.max)


def _part(x: Tensor, at: int, start: int, size: int) -> Tensor:
    return emission.apply("slice", (x, start if size else 0), (at,), (size,), (1,))


def _products(x: Tensor, at: int, places: Tensor, values: Tensor) -> Tensor:
    """In the shape of `x` the products of the values for each place, 1 where there are none: sorted by their places, and
    runs of equals multiplied by doubling the reach (Hillis and Steele, 1986)."""
    order = emission.apply("argsort", (places,), at, False)
    places = emission.apply("gather", (places, order), at)
    values = emission.apply("gather", (values, order), at)
    size, step = places.shape[at], 1
    while step < size:
        rest = size - step
        same = arithmetic.eq(_part(places, at, step, rest), _part(places, at, 0, rest))
        before = arithmetic.where(same, _part(values, at, 0, rest), 1)
        joined = arithmetic.mul(_part(values, at, step, rest), before)
        values = emission.apply("cat", (_part(values, at, 0, step), joined), at)
        step *= 2
    return emission.apply("scatter", (creation.ones(x.shape, dtype=x.dtype), places, values), at)
