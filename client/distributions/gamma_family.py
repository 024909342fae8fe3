"""Distributions made of gamma numbers: gamma, chi-squared, beta, Dirichlet, Student's t and Fisher's F."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from gt.client.ops import arithmetic, creation, elementwise, join_and_pad, reductions, special
from gt.client.tensor.operands import cast
from gt.client.tensor.tensor import Tensor
from gt.ir.dtype_limits import finfo

from . import constraints
from .continuous import normal
from .distribution import Distribution, ExponentialFamily, tensors
from .inverse_cdf_samplers import standard_gamma

__all__ = ["Beta", "Chi2", "Dirichlet", "FisherSnedecor", "Gamma", "InverseGamma", "StudentT"]

lgamma, digamma, log, where = elementwise.lgamma, elementwise.digamma, arithmetic.log, arithmetic.where


class Gamma(ExponentialFamily):
    """The gamma distribution with shape `concentration` and this rate."""

    arg_constraints: ClassVar[dict[str, Any]] = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative
    parts: ClassVar[dict[str, int]] = {"concentration": 0, "rate": 0}
    has_rsample = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = tensors(concentration, rate)
        super().__init__(self.concentration.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return arithmetic.clamp((self.concentration - 1.0) / self.rate, min=0.0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / arithmetic.square(self.rate)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return standard_gamma(self.concentration, self._extended_shape(sample_shape)) / self.rate

    def log_prob(self, value: Any) -> Tensor:
        x, a = self._checked_value(value), self.concentration
        return elementwise.xlogy(a, self.rate) + elementwise.xlogy(a - 1.0, x) - self.rate * x - lgamma(a)

    def cdf(self, value: Any) -> Tensor:
        return special.gammainc(self.concentration, self.rate * self._checked_value(value))

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - log(self.rate) + lgamma(a) + (1.0 - a) * digamma(a)


class Chi2(Gamma):
    """The sum of squares of `df` standard normal numbers."""

    arg_constraints: ClassVar[dict[str, Any]] = {"df": constraints.positive}
    support = constraints.nonnegative

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (known,) = tensors(df)
        super().__init__(known * 0.5, 0.5, validate_args)

    @property
    def df(self) -> Tensor:
        """Degrees of freedom."""
        return self.concentration * 2.0


class InverseGamma(Distribution):
    """One over a gamma number of shape `concentration` and this rate."""

    arg_constraints: ClassVar[dict[str, Any]] = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive
    parts: ClassVar[dict[str, int]] = {"concentration": 0, "rate": 0}
    has_rsample = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = tensors(concentration, rate)
        super().__init__(self.concentration.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        a = self.concentration
        return where(arithmetic.gt(a, 1), self.rate / (a - 1.0), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1.0)

    @property
    def variance(self) -> Tensor:
        a = self.concentration
        inside = arithmetic.square(self.rate) / (arithmetic.square(a - 1.0) * (a - 2.0))
        return where(arithmetic.gt(a, 2), inside, math.inf)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.rate / standard_gamma(self.concentration, self._extended_shape(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        x, a = self._checked_value(value), self.concentration
        return a * log(self.rate) - lgamma(a) - (a + 1.0) * log(x) - self.rate / x

    def cdf(self, value: Any) -> Tensor:
        return special.gammaincc(self.concentration, self.rate / self._checked_value(value))

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + log(self.rate) + lgamma(a) - (1.0 + a) * digamma(a)


class Dirichlet(ExponentialFamily):
    """The Dirichlet distribution: positive numbers that add up to 1, along the last dimension."""

    arg_constraints: ClassVar[dict[str, Any]] = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    parts: ClassVar[dict[str, int]] = {"concentration": 1}
    has_rsample = True

    def __init__(self, concentration: Any, validate_args: bool | None = None) -> None:
        (self.concentration,) = tensors(concentration)
        if self.concentration.ndim < 1:
            raise ValueError("Dirichlet: the concentration has at least one dimension, along which numbers add up to 1")
        super().__init__(self.concentration.shape[:-1], self.concentration.shape[-1:], validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / reductions.sum(self.concentration, -1, True)

    @property
    def mode(self) -> Tensor:
        above = arithmetic.clamp(self.concentration - 1.0, min=0.0)
        total = reductions.sum(above, -1, True)
        flat = reductions.all(arithmetic.lt(self.concentration, 1), -1, True)
        first = arithmetic.eq(creation.arange(above.shape[-1]), 0)  # of several corners one, as in PyTorch
        single = cast(first, above.dtype)
        return where(flat, single, above / where(flat, 1.0, total))

    @property
    def variance(self) -> Tensor:
        a = self.concentration
        total = reductions.sum(a, -1, True)
        return a * (total - a) / (arithmetic.square(total) * (total + 1.0))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = standard_gamma(self.concentration, self._extended_shape(sample_shape))
        return drawn / reductions.sum(drawn, -1, True)

    def log_prob(self, value: Any) -> Tensor:
        x, a = self._checked_value(value), self.concentration
        return reductions.sum(elementwise.xlogy(a - 1.0, x), -1) + self._constant()

    def _constant(self) -> Tensor:
        a = self.concentration
        return lgamma(reductions.sum(a, -1)) - reductions.sum(lgamma(a), -1)

    def entropy(self) -> Tensor:
        a = self.concentration
        total, count = reductions.sum(a, -1), float(a.shape[-1])
        rest = reductions.sum((a - 1.0) * digamma(a), -1)
        return -self._constant() - (count - total) * digamma(total) - rest


class Beta(ExponentialFamily):
    """The beta distribution, from 0 to 1."""

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

    def _dirichlet(self) -> Dirichlet:
        return Dirichlet(join_and_pad.stack([self.concentration1, self.concentration0], -1))

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        return self._dirichlet().mode[..., 0]

    @property
    def variance(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return a * b / (arithmetic.square(a + b) * (a + b + 1.0))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        first, second = (standard_gamma(each, shape) for each in (self.concentration1, self.concentration0))
        small, near = finfo(first.dtype).tiny, 1 - finfo(first.dtype).eps / 2
        return arithmetic.clamp(first / (first + second), small, near)

    def log_prob(self, value: Any) -> Tensor:
        x, a, b = self._checked_value(value), self.concentration1, self.concentration0
        inside = elementwise.xlogy(a - 1.0, x) + elementwise.xlog1py(b - 1.0, -x)
        return inside + lgamma(a + b) - lgamma(a) - lgamma(b)

    def entropy(self) -> Tensor:
        return self._dirichlet().entropy()


class StudentT(Distribution):
    """Student's t distribution with `df` degrees of freedom, moved and scaled."""

    arg_constraints: ClassVar[dict[str, Any]] = {
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    parts: ClassVar[dict[str, int]] = {"df": 0, "loc": 0, "scale": 0}
    has_rsample = True

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self.df, self.loc, self.scale = tensors(df, loc, scale)
        super().__init__(self.df.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return where(arithmetic.gt(self.df, 1), self.loc, math.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        finite = arithmetic.square(self.scale) * self.df / (self.df - 2.0)
        wide = where(arithmetic.gt(self.df, 1), math.inf, self.df * math.nan)
        return where(arithmetic.gt(self.df, 2), finite, wide)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        spread = standard_gamma(self.df * 0.5, shape) * 2.0 / self.df
        return self.loc + self.scale * normal(self.loc, shape) * arithmetic.rsqrt(spread)

    def log_prob(self, value: Any) -> Tensor:
        df, apart = self.df, (self._checked_value(value) - self.loc) / self.scale
        constant = log(self.scale) + log(df) * 0.5 + 0.5 * math.log(math.pi) + lgamma(df * 0.5) - lgamma(df * 0.5 + 0.5)
        return (df + 1.0) * -0.5 * arithmetic.log1p(arithmetic.square(apart) / df) - constant

    def entropy(self) -> Tensor:
        half, more = self.df * 0.5, self.df * 0.5 + 0.5
        beta = lgamma(half) + (0.5 * math.log(math.pi)) - lgamma(more)
        return log(self.scale) + more * (digamma(more) - digamma(half)) + log(self.df) * 0.5 + beta


class FisherSnedecor(Distribution):
    """Fisher's F distribution: the ratio of two chi-squared numbers, each over its degrees of freedom."""

    arg_constraints: ClassVar[dict[str, Any]] = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    parts: ClassVar[dict[str, int]] = {"df1": 0, "df2": 0}
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = tensors(df1, df2)
        super().__init__(self.df1.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return where(arithmetic.gt(self.df2, 2), self.df2 / (self.df2 - 2.0), math.nan)

    @property
    def mode(self) -> Tensor:
        peak = (self.df1 - 2.0) / self.df1 * self.df2 / (self.df2 + 2.0)
        return where(arithmetic.gt(self.df1, 2), peak, math.nan)

    @property
    def variance(self) -> Tensor:
        a, b = self.df1, self.df2
        inside = arithmetic.square(b) * 2.0 * (a + b - 2.0) / (a * arithmetic.square(b - 2.0) * (b - 4.0))
        return where(arithmetic.gt(b, 4), inside, math.nan)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        above, below = (standard_gamma(df * 0.5, shape) / (df * 0.5) for df in (self.df1, self.df2))
        return above / below

    def log_prob(self, value: Any) -> Tensor:
        x, a, b = self._checked_value(value), self.df1 * 0.5, self.df2 * 0.5
        ratio = self.df1 / self.df2
        constant = lgamma(a + b) - lgamma(a) - lgamma(b)
        return constant + a * log(ratio) + (a - 1.0) * log(x) - (a + b) * arithmetic.log1p(ratio * x)
