"""Gamma, Poisson and binomial numbers without rejection: one uniform draw each, through the inverse of the cdf.

So a sample is a pure function of seed, number of the draw and place, as all of GT's random numbers are. Computed in float64.
"""

from __future__ import annotations

import math
from typing import Any

from gt.client.ops import arithmetic, creation, elementwise, random, special
from gt.client.ops.random import Generator, checked
from gt.client.tensor.custom_function import Function, FunctionCtx
from gt.client.tensor.operands import cast, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.ir.dtype_limits import finfo
from gt.ir.dtypes import float64

__all__ = ["binomial", "poisson", "standard_gamma"]

HALLEY_STEPS = 6
"""Steps of Halley's method from Wilson and Hilferty's estimate to the inverse, within rounding."""
HALF_ULP = 2.0**-54
"""Half of the spacing of uniform numbers: with it added, none is 0."""


def _unit(shape: tuple[int, ...], generator: Generator | None) -> Tensor:
    return arithmetic.add(random.draw("uniform", shape, float64, generator), HALF_ULP)


def _density(x: Tensor, shape: Tensor) -> Tensor:
    return arithmetic.exp((shape - 1.0) * arithmetic.log(x) - x - elementwise.lgamma(shape))


class _InverseGammaCDF(Function):
    """The x with P(shape, x) = share, for shapes from 1 on. Its gradient is that of the implicit function."""

    @staticmethod
    def forward(ctx: FunctionCtx, shape: Tensor, share: Tensor) -> Tensor:
        upper = arithmetic.gt(share, 0.5)
        z = special.ndtri(share)
        third = arithmetic.reciprocal(shape) * (1 / 9)
        guess = 1.0 - third + z * arithmetic.sqrt(third)
        guess = shape * guess * guess * guess  # Wilson and Hilferty, 1931
        least = arithmetic.exp((arithmetic.log(share) + elementwise.lgamma(shape + 1.0)) / shape)
        x = arithmetic.maximum(guess, least)
        for _ in range(HALLEY_STEPS):
            low = special.gammainc(shape, x) - share
            high = (1.0 - share) - special.gammaincc(shape, x)
            step = arithmetic.where(upper, high, low) / arithmetic.maximum(_density(x, shape), finfo(float64).tiny)
            bend = 1.0 - step * ((shape - 1.0) / x - 1.0) * 0.5
            moved = x - step / arithmetic.maximum(bend, 0.5)
            x = arithmetic.maximum(arithmetic.minimum(moved, x * 4.0), arithmetic.maximum(x * 0.25, least))
        ctx.save_for_backward(shape, x, upper)
        return x

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Any:
        shape, x, upper = (tensor_of("standard_gamma", each) for each in ctx.saved_tensors)
        step = arithmetic.sqrt(shape) * 5e-5  # a share of how far the numbers are spread
        low = special.gammainc(shape + step, x) - special.gammainc(shape - step, x)
        high = special.gammaincc(shape - step, x) - special.gammaincc(shape + step, x)
        slope = arithmetic.where(upper, high, low) / (step * 2.0)
        return gradient * (-slope / _density(x, shape)), None


def standard_gamma(shape: Tensor, size: tuple[int, ...], generator: Generator | None = None) -> Tensor:
    """Gamma numbers of this shape (which broadcasts to `size`) and rate 1, through which gradients flow to the shape.

    A shape a below 1 is that of a + 1, times a uniform number to the power 1/a (Stuart, 1962).
    """
    a = cast(shape, float64)
    small = arithmetic.lt(a, 1.0)
    drawn: Tensor = _InverseGammaCDF.apply(arithmetic.where(small, a + 1.0, a).expand(size), _unit(size, generator))
    share = arithmetic.log(_unit(size, generator)) / arithmetic.where(small, a, 1.0)
    drawn = drawn * arithmetic.where(small, arithmetic.exp(share), 1.0)
    out = cast(drawn, shape.dtype)
    return arithmetic.maximum(out, finfo(shape.dtype).tiny)


MAX_POISSON_OFFSET = 64.0
"""How far the inverse of a Poisson cdf is from its normal estimate, at most: checked against SciPy's."""


def poisson(input: Any, generator: Generator | None = None) -> Tensor:
    """For each rate, at least 0, a count of the Poisson distribution, in the dtype of `input`."""
    x = tensor_of("poisson", input).detach()
    rate = checked(cast(x, float64))
    share = _unit(x.shape, generator)
    guess = arithmetic.floor(rate + arithmetic.sqrt(rate) * special.ndtri(share))
    low = arithmetic.maximum(
        guess - MAX_POISSON_OFFSET, -1.0
    )  # the largest number of which is known that its cdf is below the share
    high = arithmetic.maximum(guess, 0.0) + MAX_POISSON_OFFSET
    for _ in range(math.ceil(math.log2(2 * MAX_POISSON_OFFSET + 1)) + 1):
        middle = arithmetic.floor((low + high) * 0.5)
        enough = arithmetic.ge(special.gammaincc(middle + 1.0, rate), share)
        low, high = arithmetic.where(enough, low, middle), arithmetic.where(enough, middle, high)
    return cast(arithmetic.where(arithmetic.gt(rate, 0), high, rate), x.dtype)


def binomial(count: Any, prob: Any, generator: Generator | None = None) -> Tensor:
    """How many of `count` trials succeed, each with the probability `prob`, in the dtype of `count`.

    Every trial is drawn. Of a tensor of counts the largest is fetched.
    """
    n, p = tensor_of("binomial", count).detach(), tensor_of("binomial", prob).detach()
    shape = arithmetic.add(n, p).shape
    most = int(n.max().item()) if n.numel() else 0
    return trials(most, n, p, shape, generator)


def trials(
    most: int, count: Tensor, prob: Tensor, shape: tuple[int, ...], generator: Generator | None = None
) -> Tensor:
    """Of up to `most` trials, of which `count` take part, how many succeed."""
    draws = random.draw("uniform", (most, *shape), float64, generator)
    numbers = creation.arange(most).reshape((most, *(1,) * len(shape)))
    won = arithmetic.logical_and(arithmetic.lt(draws, prob), arithmetic.lt(numbers, count))
    return cast(won.sum(0), count.dtype)
