"""Scatter with reduction: values for one index are joined by a sum, a product, a mean, a maximum or a minimum.

Sums are one instruction. For the others values are sorted by place, or by size, and of those for one place the last is
written, so the same call gives the same bits. Reading and plain writing are in `gather_scatter.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.client.tensor import emission
from gt.client.tensor.custom_function import Function
from gt.client.tensor.operands import cast, clone, tensor_of
from gt.errors import DTypeError
from gt.ir.dtypes import bool_, int64

from . import arithmetic, creation, gather_scatter, shape_ops

if TYPE_CHECKING:
    from gt.client.tensor.custom_function import FunctionCtx
    from gt.client.tensor.tensor import Tensor

__all__ = ["scatter", "index_reduce", "scatter_reduce"]

_KINDS = ("sum", "prod", "mean", "amax", "amin")


def scatter_reduce(input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Tensor:
    """`input` with the elements of `src` reduced into it at `index` along `dim`: 'sum', 'prod', 'mean', 'amax' or
    'amin'.

    The elements of `input` are included unless `include_self` is False. Equal extremes share the gradient.
    """
    source = tensor_of("scatter_reduce", src)
    x, at, places, values = gather_scatter._along("scatter_reduce", input, dim, index, source)
    return _joined("scatter_reduce", _KINDS, x, at, places, values, reduce, include_self).reshape(input.shape)


def scatter(
    input: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    """`input` with the elements of `src`, or a number, written at `index` along `dim`; for duplicate indices, the
    last wins.

    `reduce` 'add' adds them instead, 'multiply' multiplies.
    """
    if reduce not in (None, "add", "multiply"):
        raise ValueError(f"scatter: reduce is None, 'add' or 'multiply', not {reduce!r}")
    given = value if src is None else src
    if given is None:
        raise TypeError("scatter: what to write is missing: pass src= or value=")
    x, at, places, values = gather_scatter._along("scatter", input, dim, index, given)
    if places.numel() == 0:
        return clone(tensor_of("scatter", input))
    if reduce == "multiply":
        return gather_scatter._reshaped(scatter_reduce(x, at, places, values, "prod"), input.shape)
    out = emission.emit("scatter" if reduce is None else "scatter_add", (x, places, values), at)
    return gather_scatter._reshaped(out, input.shape)


def index_reduce(input: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Tensor:
    """`input` with the slices of `source` reduced into it along `dim` at the indices in a vector, like
    `scatter_reduce`.
    """
    x, at, places = gather_scatter._listed("index_reduce", input, dim, index)
    values = gather_scatter._slices("index_reduce", x, at, places, source)
    shape = tuple(size if axis == at else 1 for axis, size in enumerate(values.shape))
    spread = shape_ops.expand(emission.emit("reshape", (places,), shape), values.shape)
    return _joined("index_reduce", _KINDS[1:], x, at, spread, values, reduce, include_self).reshape(input.shape)


def _joined(
    name: str, kinds: tuple[str, ...], x: Tensor, at: int, places: Tensor, values: Tensor, reduce: str, include: bool
) -> Tensor:
    if reduce not in kinds:
        raise ValueError(f"{name}: reduce is one of {', '.join(kinds)}, not {reduce!r}")
    if x.dtype is bool_ and reduce == "mean":
        raise DTypeError(f"{name}: the mean of booleans is a number: cast them first")
    if places.numel() == 0:
        return clone(x)
    if x.dtype is bool_:  # as the numbers 0 and 1
        known = [cast(each, int64) for each in (x, values)]
        return cast(_joined(name, kinds, known[0], at, places, known[1], reduce, include), bool_)
    size = x.shape[at]
    places = arithmetic.where(arithmetic.lt(places, 0), arithmetic.add(places, size), places)
    if not include:
        reached = emission.emit(
            "scatter", (creation.full(x.shape, False), places, creation.full(places.shape, True)), at
        )
        x = arithmetic.where(reached, _nothing(reduce, x), x)
    if reduce == "sum":
        return emission.emit("scatter_add", (x, places, values), at)
    if reduce == "prod":
        return arithmetic.mul(x, _products(x, at, places, values))
    if reduce == "mean":
        total = emission.emit("scatter_add", (x, places, values), at)
        ones = creation.ones(places.shape, dtype=x.dtype)
        begin = creation.ones(x.shape, dtype=x.dtype) if include else cast(~reached, x.dtype)
        count = emission.emit("scatter_add", (begin, places, ones), at)
        return arithmetic.div(total, count, rounding_mode=None if x.dtype.kind in "fc" else "floor")

    extreme: Tensor = Extreme.apply(x, places, values, at, reduce == "amax")
    return extreme


def _nothing(reduce: str, x: Tensor) -> Any:
    """The neutral element: joined to a value it changes nothing."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if x.dtype.kind == "f":
        return -math.inf if reduce == "amax" else math.inf
    info = np.iinfo(x.dtype.name)
    return int(info.min if reduce == "amax" else info.max)


def _part(x: Tensor, at: int, start: int, size: int) -> Tensor:
    return emission.emit("slice", (x, start if size else 0), (at,), (size,), (1,))


def _products(x: Tensor, at: int, places: Tensor, values: Tensor) -> Tensor:
    """In the shape of `x` the products of the values for each place, 1 where there are none: sorted by their places, and
    runs of equals multiplied by doubling the reach (Hillis and Steele, 1986)."""
    order = emission.emit("argsort", (places,), at, False)
    places = emission.emit("gather", (places, order), at)
    values = emission.emit("gather", (values, order), at)
    size, step = places.shape[at], 1
    while step < size:
        rest = size - step
        same = arithmetic.eq(_part(places, at, step, rest), _part(places, at, 0, rest))
        before = arithmetic.where(same, _part(values, at, 0, rest), 1)
        joined = arithmetic.mul(_part(values, at, step, rest), before)
        values = emission.emit("cat", (_part(values, at, 0, step), joined), at)
        step *= 2
    return emission.emit("scatter", (creation.ones(x.shape, dtype=x.dtype), places, values), at)


# What meets at a place, where several may be the one that is kept: which of them the gradient goes to. These are functions of
# the tape's own kind, for what they are composed of would give all to the last.


def _turned(x: Tensor) -> Tensor:
    """In the opposite order, exactly: −x of floating-point numbers, −x − 1 of integers."""
    return arithmetic.neg(x) if x.dtype.kind == "f" else arithmetic.bitwise_not(x)


class Extreme(Function):
    """The largest or smallest at each place; equals share the gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, places: Tensor, values: Tensor, at: int, largest: bool) -> Tensor:
        mine, others = (x, values) if largest else (_turned(x), _turned(values))
        order = emission.emit("argsort", (others,), at, False)
        where = emission.emit("gather", (places, order), at)
        last = emission.emit("scatter", (mine, where, emission.emit("gather", (others, order), at)), at)
        out = arithmetic.maximum(mine, last)
        out = out if largest else _turned(out)
        ctx.save_for_backward(x, places, values, out)
        ctx.at = at  # type: ignore[attr-defined]  # any attribute may be set on it
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Any, ...]:
        x, places, values, out = ctx.saved_tensors
        assert x is not None, "it was saved"
        assert values is not None, "it was saved"
        at: int = ctx.at  # type: ignore[attr-defined]
        kept = cast(arithmetic.eq(x, out), g.dtype)
        taken = cast(arithmetic.eq(values, emission.emit("gather", (out, places), at)), g.dtype)
        share = arithmetic.div(g, emission.emit("scatter_add", (kept, places, taken), at))
        return (
            arithmetic.mul(kept, share), None,
            arithmetic.mul(taken, emission.emit("gather", (share, places), at)), None, None,
        )  # fmt: skip


class Laid(Function):
    """The last of the values for each place of an empty tensor; all of them get the gradient, as PyTorch has it: where windows
    overlap, they come from one element."""

    @staticmethod
    def forward(ctx: FunctionCtx, empty: Tensor, places: Tensor, values: Tensor, at: int) -> Tensor:
        ctx.save_for_backward(places)
        ctx.at = at  # type: ignore[attr-defined]  # any attribute may be set on it
        return emission.emit("scatter", (empty, places, values), at)

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Any, ...]:
        (places,) = ctx.saved_tensors
        return None, None, emission.emit("gather", (g, places), ctx.at), None  # type: ignore[attr-defined]
