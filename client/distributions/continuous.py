"""Distributions over real numbers whose samples are functions of uniform or normal ones."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from gt.client.ops import arithmetic, elementwise, random
from gt.client.tensor.tensor import Tensor
from gt.ir.dtype_limits import finfo

from . import constraints
from .distribution import EULER_GAMMA, HALF_LOG_2PI, Distribution, ExponentialFamily, tensors

__all__ = [
    "Cauchy", "Exponential", "Gumbel", "HalfCauchy", "HalfNormal", "Kumaraswamy", "Laplace", "Normal", "Pareto",
    "Uniform", "Weibull",
]  # fmt: skip

log, exp, where = arithmetic.log, arithmetic.exp, arithmetic.where


def normal(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers in the dtype of a parameter."""
    return random.draw("normal", shape, like.dtype)


def open_uniform(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform numbers between 0 and 1, neither of which is drawn."""
    return arithmetic.clamp(random.draw("uniform", shape, like.dtype), min=finfo(like.dtype).tiny)


class Normal(ExponentialFamily):
    """The normal distribution with mean `loc` and standard deviation `scale`."""

    arg_constraints: ClassVar[dict[str, Any]] = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    parts: ClassVar[dict[str, int]] = {"loc": 0, "scale": 0}
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = tensors(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return arithmetic.square(self.scale)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.loc + self.scale * normal(self.loc, self._extended_shape(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        apart = (self._checked_value(value) - self.loc) / self.scale
        return arithmetic.square(apart) * -0.5 - log(self.scale) - HALF_LOG_2PI

    def cdf(self, value: Any) -> Tensor:
        return (elementwise.erf((self._checked_value(value) - self.loc) / (self.scale * math.sqrt(2))) + 1.0) * 0.5

    def icdf(self, value: Any) -> Tensor:
        return self.loc + self.scale * elementwise.erfinv(value * 2.0 - 1.0) * math.sqrt(2)

    def entropy(self) -> Tensor:
        return log(self.scale) + (0.5 + HALF_LOG_2PI)


class HalfNormal(Distribution):
    """The size of a normal number with mean 0."""

    arg_constraints: ClassVar[dict[str, Any]] = {"scale": constraints.positive}
    support = constraints.nonnegative
    parts: ClassVar[dict[str, int]] = {"scale": 0}
    has_rsample = True

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        (self.scale,) = tensors(scale)
        super().__init__(self.scale.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def mode(self) -> Tensor:
        return self.scale * 0.0

    @property
    def variance(self) -> Tensor:
        return arithmetic.square(self.scale) * (1 - 2 / math.pi)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return arithmetic.abs(normal(self.scale, self._extended_shape(sample_shape))) * self.scale

    def log_prob(self, value: Any) -> Tensor:
        x = self._checked_value(value)
        inside = arithmetic.square(x / self.scale) * -0.5 - log(self.scale) + (math.log(2) - HALF_LOG_2PI)
        return where(arithmetic.ge(x, 0), inside, -math.inf)

    def cdf(self, value: Any) -> Tensor:
        return elementwise.erf(self._checked_value(value) / (self.scale * math.sqrt(2)))

    def icdf(self, value: Any) -> Tensor:
        return elementwise.erfinv(value) * self.scale * math.sqrt(2)

    def entropy(self) -> Tensor:
        return log(self.scale) + (0.5 + HALF_LOG_2PI - math.log(2))


class Uniform(Distribution):
    """The uniform distribution from `low` up to `high`."""

    parts: ClassVar[dict[str, int]] = {"low": 0, "high": 0}
    arg_constraints: ClassVar[dict[str, Any]] = {"low": constraints.real, "high": constraints.real}
    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = tensors(low, high)
        super().__init__(self.low.shape, (), validate_args)
        if self._validate_args and not bool(arithmetic.lt(self.low, self.high).all()):
            raise ValueError("Uniform: low is below high")

    @property
    def support(self) -> Any:
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        return (self.low + self.high) * 0.5

    @property
    def mode(self) -> Tensor:
        return self.high * math.nan

    @property
    def stddev(self) -> Tensor:
        return (self.high - self.low) * math.sqrt(1 / 12)

    @property
    def variance(self) -> Tensor:
        return arithmetic.square(self.high - self.low) * (1 / 12)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        share = random.draw("uniform", self._extended_shape(sample_shape), self.low.dtype)
        return self.low + share * (self.high - self.low)

    def log_prob(self, value: Any) -> Tensor:
        x = self._checked_value(value)
        inside = arithmetic.logical_and(arithmetic.le(self.low, x), arithmetic.lt(x, self.high))
        return where(inside, -log(self.high - self.low), -math.inf)

    def cdf(self, value: Any) -> Tensor:
        return arithmetic.clamp((self._checked_value(value) - self.low) / (self.high - self.low), 0.0, 1.0)

    def icdf(self, value: Any) -> Tensor:
        return arithmetic.add(self.low, value * (self.high - self.low))

    def entropy(self) -> Tensor:
        return log(self.high - self.low)


class Exponential(ExponentialFamily):
    """The exponential distribution with this rate."""

    arg_constraints: ClassVar[dict[str, Any]] = {"rate": constraints.positive}
    support = constraints.nonnegative
    parts: ClassVar[dict[str, int]] = {"rate": 0}
    has_rsample = True

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = tensors(rate)
        super().__init__(self.rate.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return arithmetic.reciprocal(self.rate)

    @property
    def mode(self) -> Tensor:
        return self.rate * 0.0

    @property
    def stddev(self) -> Tensor:
        return arithmetic.reciprocal(self.rate)

    @property
    def variance(self) -> Tensor:
        return arithmetic.pow(self.rate, -2)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return random.exponential(self._extended_shape(sample_shape), self.rate.dtype) / self.rate

    def log_prob(self, value: Any) -> Tensor:
        return log(self.rate) - self.rate * self._checked_value(value)

    def cdf(self, value: Any) -> Tensor:
        return -arithmetic.expm1(-self.rate * self._checked_value(value))

    def icdf(self, value: Any) -> Tensor:
        return -arithmetic.log1p(-value) / self.rate

    def entropy(self) -> Tensor:
        return 1.0 - log(self.rate)


class Laplace(Distribution):
    """The Laplace distribution about `loc`."""

    arg_constraints: ClassVar[dict[str, Any]] = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    parts: ClassVar[dict[str, int]] = {"loc": 0, "scale": 0}
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = tensors(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return self.scale * math.sqrt(2)

    @property
    def variance(self) -> Tensor:
        return arithmetic.square(self.scale) * 2.0

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        side = open_uniform(self.loc, self._extended_shape(sample_shape)) - 0.5
        return self.loc - self.scale * arithmetic.sign(side) * arithmetic.log1p(arithmetic.abs(side) * -2.0)

    def log_prob(self, value: Any) -> Tensor:
        return -log(self.scale * 2.0) - arithmetic.abs(self._checked_value(value) - self.loc) / self.scale

    def cdf(self, value: Any) -> Tensor:
        apart = self._checked_value(value) - self.loc
        return 0.5 - arithmetic.sign(apart) * 0.5 * arithmetic.expm1(-arithmetic.abs(apart) / self.scale)

    def icdf(self, value: Any) -> Tensor:
        side = value - 0.5
        return self.loc - self.scale * arithmetic.sign(side) * arithmetic.log1p(arithmetic.abs(side) * -2.0)

    def entropy(self) -> Tensor:
        return log(self.scale * 2.0) + 1.0


class Cauchy(Distribution):
    """The Cauchy distribution about `loc`; it has no mean."""

    arg_constraints: ClassVar[dict[str, Any]] = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    parts: ClassVar[dict[str, int]] = {"loc": 0, "scale": 0}
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = tensors(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc * math.nan

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale * math.inf

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(open_uniform(self.loc, self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Tensor:
        apart = (self._checked_value(value) - self.loc) / self.scale
        return -math.log(math.pi) - log(self.scale) - arithmetic.log1p(arithmetic.square(apart))

    def cdf(self, value: Any) -> Tensor:
        return elementwise.atan((self._checked_value(value) - self.loc) / self.scale) / math.pi + 0.5

    def icdf(self, value: Any) -> Tensor:
        return arithmetic.tan((value - 0.5) * math.pi) * self.scale + self.loc

    def entropy(self) -> Tensor:
        return log(self.scale) + math.log(4 * math.pi)


class HalfCauchy(Distribution):
    """The size of a Cauchy number about 0."""

    arg_constraints: ClassVar[dict[str, Any]] = {"scale": constraints.positive}
    support = constraints.nonnegative
    parts: ClassVar[dict[str, int]] = {"scale": 0}
    has_rsample = True

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        (self.scale,) = tensors(scale)
        super().__init__(self.scale.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * 0.0 + math.inf

    @property
    def mode(self) -> Tensor:
        return self.scale * 0.0

    @property
    def variance(self) -> Tensor:
        return self.scale * 0.0 + math.inf

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(open_uniform(self.scale, self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Tensor:
        x = self._checked_value(value)
        inside = math.log(2 / math.pi) - log(self.scale) - arithmetic.log1p(arithmetic.square(x / self.scale))
        return where(arithmetic.ge(x, 0), inside, -math.inf)

    def cdf(self, value: Any) -> Tensor:
        return elementwise.atan(self._checked_value(value) / self.scale) * (2 / math.pi)

    def icdf(self, value: Any) -> Tensor:
        return arithmetic.tan(value * (math.pi / 2)) * self.scale

    def entropy(self) -> Tensor:
        return log(self.scale) + math.log(2 * math.pi)


class Gumbel(Distribution):
    """The Gumbel distribution: of the largest of many."""

    arg_constraints: ClassVar[dict[str, Any]] = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    parts: ClassVar[dict[str, int]] = {"loc": 0, "scale": 0}
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = tensors(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * EULER_GAMMA

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return self.scale * (math.pi / math.sqrt(6))

    @property
    def variance(self) -> Tensor:
        return arithmetic.square(self.stddev)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        wait = arithmetic.clamp(
            random.exponential(self._extended_shape(sample_shape), self.loc.dtype), min=finfo(self.loc.dtype).tiny
        )
        return self.loc - self.scale * log(wait)

    def log_prob(self, value: Any) -> Tensor:
        apart = (self.loc - self._checked_value(value)) / self.scale
        return apart - exp(apart) - log(self.scale)

    def cdf(self, value: Any) -> Tensor:
        return exp(-exp((self.loc - self._checked_value(value)) / self.scale))

    def icdf(self, value: Any) -> Tensor:
        return self.loc - self.scale * log(-log(value))

    def entropy(self) -> Tensor:
        return log(self.scale) + (1 + EULER_GAMMA)


class Pareto(Distribution):
    """The Pareto distribution from `scale` on."""

    arg_constraints: ClassVar[dict[str, Any]] = {"scale": constraints.positive, "alpha": constraints.positive}
    parts: ClassVar[dict[str, int]] = {"scale": 0, "alpha": 0}
    has_rsample = True

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = tensors(scale, alpha)
        super().__init__(self.scale.shape, (), validate_args)

    @property
    def support(self) -> Any:
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Tensor:
        return where(arithmetic.gt(self.alpha, 1), self.alpha * self.scale / (self.alpha - 1.0), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        a = self.alpha
        inside = arithmetic.square(self.scale) * a / (arithmetic.square(a - 1.0) * (a - 2.0))
        return where(arithmetic.gt(a, 2), inside, math.inf)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        wait = random.exponential(self._extended_shape(sample_shape), self.scale.dtype)
        return self.scale * exp(wait / self.alpha)

    def log_prob(self, value: Any) -> Tensor:
        x = self._checked_value(value)
        inside = log(self.alpha) + self.alpha * log(self.scale) - (self.alpha + 1.0) * log(x)
        return where(arithmetic.ge(x, self.scale), inside, -math.inf)

    def cdf(self, value: Any) -> Tensor:
        return arithmetic.clamp(1.0 - arithmetic.pow(self.scale / self._checked_value(value), self.alpha), min=0.0)

    def icdf(self, value: Any) -> Tensor:
        return self.scale * arithmetic.pow(1.0 - value, -arithmetic.reciprocal(self.alpha))

    def entropy(self) -> Tensor:
        return log(self.scale / self.alpha) + (1.0 + arithmetic.reciprocal(self.alpha))


class Weibull(Distribution):
    """The Weibull distribution."""

    arg_constraints: ClassVar[dict[str, Any]] = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive
    parts: ClassVar[dict[str, int]] = {"scale": 0, "concentration": 0}
    has_rsample = True

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = tensors(scale, concentration)
        super().__init__(self.scale.shape, (), validate_args)

    def _moment(self, order: float) -> Tensor:
        return exp(elementwise.lgamma(arithmetic.reciprocal(self.concentration) * order + 1.0))

    @property
    def mean(self) -> Tensor:
        return self.scale * self._moment(1.0)

    @property
    def mode(self) -> Tensor:
        k = self.concentration
        peaked = arithmetic.gt(k, 1)
        safe = where(peaked, k, 2.0)
        return where(peaked, self.scale * arithmetic.pow((safe - 1.0) / safe, arithmetic.reciprocal(safe)), 0.0)

    @property
    def variance(self) -> Tensor:
        return arithmetic.square(self.scale) * (self._moment(2.0) - arithmetic.square(self._moment(1.0)))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        wait = random.exponential(self._extended_shape(sample_shape), self.scale.dtype)
        wait = arithmetic.clamp(wait, min=finfo(self.scale.dtype).tiny)
        return self.scale * arithmetic.pow(wait, arithmetic.reciprocal(self.concentration))

    def log_prob(self, value: Any) -> Tensor:
        k, share = self.concentration, self._checked_value(value) / self.scale
        return log(k / self.scale) + (k - 1.0) * log(share) - arithmetic.pow(share, k)

    def cdf(self, value: Any) -> Tensor:
        return -arithmetic.expm1(-arithmetic.pow(self._checked_value(value) / self.scale, self.concentration))

    def icdf(self, value: Any) -> Tensor:
        return self.scale * arithmetic.pow(-arithmetic.log1p(-value), arithmetic.reciprocal(self.concentration))

    def entropy(self) -> Tensor:
        k = self.concentration
        return (1.0 - arithmetic.reciprocal(k)) * EULER_GAMMA + log(self.scale / k) + 1.0


class Kumaraswamy(Distribution):
    """The Kumaraswamy distribution, from 0 to 1: much like a beta distribution."""

    arg_constraints: ClassVar[dict[str, Any]] = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval
    parts: ClassVar[dict[str, int]] = {"concentration1": 0, "concentration0": 0}
    has_rsample = True

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = tensors(concentration1, concentration0)
        super().__init__(self.concentration1.shape, (), validate_args)

    def _moment(self, order: float) -> Tensor:
        a, b = self.concentration1, self.concentration0
        first = arithmetic.reciprocal(a) * order + 1.0
        return exp(log(b) + elementwise.lgamma(first) + elementwise.lgamma(b) - elementwise.lgamma(first + b))

    @property
    def mean(self) -> Tensor:
        return self._moment(1.0)

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        peak = arithmetic.pow((a - 1.0) / (a * b - 1.0), arithmetic.reciprocal(a))
        return where(arithmetic.logical_or(arithmetic.lt(a, 1), arithmetic.lt(b, 1)), math.nan, peak)

    @property
    def variance(self) -> Tensor:
        return self._moment(2.0) - arithmetic.square(self._moment(1.0))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(open_uniform(self.concentration1, self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Tensor:
        x, a, b = self._checked_value(value), self.concentration1, self.concentration0
        return log(a * b) + (a - 1.0) * log(x) + (b - 1.0) * arithmetic.log1p(-arithmetic.pow(x, a))

    def cdf(self, value: Any) -> Tensor:
        rest = 1.0 - arithmetic.pow(self._checked_value(value), self.concentration1)
        return 1.0 - arithmetic.pow(rest, self.concentration0)

    def icdf(self, value: Any) -> Tensor:
        rest = arithmetic.pow(1.0 - value, arithmetic.reciprocal(self.concentration0))
        return arithmetic.pow(1.0 - rest, arithmetic.reciprocal(self.concentration1))

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = elementwise.digamma(b + 1.0) + EULER_GAMMA
        return (1.0 - arithmetic.reciprocal(b)) + (1.0 - arithmetic.reciprocal(a)) * harmonic - log(a) - log(b)
