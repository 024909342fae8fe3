"""Distributions over whole numbers and classes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from gt.client.functional import activations
from gt.client.ops import arithmetic, creation, elementwise, gather_scatter, join_and_pad, random, reductions, shape_ops
from gt.client.tensor.operands import cast
from gt.client.tensor.tensor import Tensor
from gt.ir.dtype_limits import finfo
from gt.ir.dtypes import float64

from . import constraints, inverse_cdf_samplers
from .distribution import Distribution, ExponentialFamily, lazy, tensors
from .gamma_family import Gamma

__all__ = [
    "Bernoulli", "Binomial", "Categorical", "Geometric", "Multinomial", "NegativeBinomial", "OneHotCategorical",
    "OneHotCategoricalStraightThrough", "Poisson",
]  # fmt: skip

lgamma, log, where = elementwise.lgamma, arithmetic.log, arithmetic.where


def one_of(name: str, probs: Any, logits: Any) -> None:
    """Raise `ValueError` unless one of the two is given."""
    if (probs is None) is (logits is None):
        raise ValueError(f"{name}: either probs or logits is given")


def clamp_probs(probs: Tensor) -> Tensor:
    """Probabilities kept from 0 and 1, so that their logarithms are finite."""
    eps = finfo(probs.dtype).eps
    return arithmetic.clamp(probs, eps, 1 - eps)


class _Odds(Distribution):
    """The base of distributions given by a probability or by its logit."""

    arg_constraints: ClassVar[dict[str, Any]] = {"probs": constraints.unit_interval, "logits": constraints.real}
    parts: ClassVar[dict[str, int]] = {"probs": 0, "logits": 0}

    def _parameters(self, probs: Any, logits: Any, *others: Any) -> list[Tensor]:
        one_of(type(self).__name__, probs, logits)
        known = tensors(logits if probs is None else probs, *others)
        self.__dict__["logits" if probs is None else "probs"] = known[0]
        return known

    @lazy
    def probs(self) -> Tensor:
        """The probabilities."""
        return arithmetic.sigmoid(self.logits)

    @lazy
    def logits(self) -> Tensor:
        """Their logits."""
        kept = clamp_probs(self.probs)
        return log(kept) - arithmetic.log1p(-kept)

    @property
    def param_shape(self) -> tuple[int, ...]:
        """The shape of the parameter."""
        shape: tuple[int, ...] = (self.__dict__.get("probs", self.__dict__.get("logits"))).shape  # type: ignore[union-attr]
        return shape


def _entropy(logits: Tensor, probs: Tensor) -> Tensor:
    """Of one trial: the cross-entropy of the probabilities with themselves."""
    return activations.softplus(logits) - logits * probs


class Bernoulli(_Odds, ExponentialFamily):
    """1 with a probability, else 0."""

    support = constraints.boolean
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        (known,) = self._parameters(probs, logits)
        super().__init__(known.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        high = cast(arithmetic.gt(self.probs, 0.5), self.probs.dtype)
        return where(arithmetic.eq(self.probs, 0.5), math.nan, high)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1.0 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        probs = self.probs.detach()
        return cast(random.truths(self._extended_shape(sample_shape), probs), probs.dtype)

    def log_prob(self, value: Any) -> Tensor:
        return self.logits * self._checked_value(value) - activations.softplus(self.logits)

    def entropy(self) -> Tensor:
        return _entropy(self.logits, self.probs)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = creation.arange(2, dtype=self.probs.dtype).reshape((2, *(1,) * len(self._batch_shape)))
        return shape_ops.expand(values, (2, *self._batch_shape)) if expand else values


class Geometric(_Odds):
    """How many trials fail before the first success."""

    support = constraints.nonnegative_integer

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        (known,) = self._parameters(probs, logits)
        super().__init__(known.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return arithmetic.reciprocal(self.probs) - 1.0

    @property
    def mode(self) -> Tensor:
        return self.probs * 0.0

    @property
    def variance(self) -> Tensor:
        return (arithmetic.reciprocal(self.probs) - 1.0) / self.probs

    def sample(self, sample_shape: Any = ()) -> Tensor:
        probs = self.probs.detach()
        wait = random.exponential(self._extended_shape(sample_shape), float64)
        return cast(arithmetic.floor(wait / -arithmetic.log1p(-cast(probs, float64))), probs.dtype)

    def log_prob(self, value: Any) -> Tensor:
        x = self._checked_value(value)
        return elementwise.xlog1py(x, -self.probs) + log(self.probs)

    def entropy(self) -> Tensor:
        return _entropy(self.logits, self.probs) / self.probs


class Binomial(_Odds):
    """How many of `total_count` trials succeed. Every trial is drawn."""

    parts: ClassVar[dict[str, int]] = {"total_count": 0, "probs": 0, "logits": 0}
    has_enumerate_support = True

    def __init__(
        self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        known, self.total_count = self._parameters(probs, logits, total_count)
        self._most = int(total_count) if isinstance(total_count, (int, float)) else None
        self.total_count = cast(self.total_count, known.dtype)
        super().__init__(known.shape, (), validate_args)

    @property
    def support(self) -> Any:
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return arithmetic.minimum(arithmetic.floor((self.total_count + 1.0) * self.probs), self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1.0 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        count, shape = self.total_count.detach(), self._extended_shape(sample_shape)
        most = int(count.max().item()) if self._most is None else self._most
        return inverse_cdf_samplers.trials(most, count, cast(self.probs.detach(), float64), shape)

    def log_prob(self, value: Any) -> Tensor:
        x, n = self._checked_value(value), self.total_count
        ways = lgamma(n + 1.0) - lgamma(x + 1.0) - lgamma(n - x + 1.0)
        return ways + x * self.logits - n * activations.softplus(self.logits)

    def entropy(self) -> Tensor:
        likelihood = self.log_prob(self.enumerate_support(False))
        return -reductions.sum(arithmetic.exp(likelihood) * likelihood, 0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self._most is None:
            raise NotImplementedError("Binomial: the numbers of trials differ, so there is no one list of values")
        count = self._most + 1
        values = creation.arange(count, dtype=self.probs.dtype).reshape((count, *(1,) * len(self._batch_shape)))
        return shape_ops.expand(values, (count, *self._batch_shape)) if expand else values


class NegativeBinomial(_Odds):
    """How many trials succeed before `total_count` have failed."""

    support = constraints.nonnegative_integer
    parts: ClassVar[dict[str, int]] = {"total_count": 0, "probs": 0, "logits": 0}

    def __init__(
        self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        known, self.total_count = self._parameters(probs, logits, total_count)
        self.total_count = cast(self.total_count, known.dtype)
        super().__init__(known.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.total_count * arithmetic.exp(self.logits)

    @property
    def mode(self) -> Tensor:
        peak = arithmetic.floor((self.total_count - 1.0) * arithmetic.exp(self.logits))
        return arithmetic.clamp(peak, min=0.0)

    @property
    def variance(self) -> Tensor:
        return self.mean / arithmetic.sigmoid(-self.logits)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        gamma = Gamma(self.total_count.detach(), arithmetic.exp(-self.logits.detach()))
        return inverse_cdf_samplers.poisson(gamma.sample(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        x, n = self._checked_value(value), self.total_count
        ways = lgamma(n + x) - lgamma(x + 1.0) - lgamma(n)
        plain = n * activations.logsigmoid(-self.logits) + x * activations.logsigmoid(self.logits)
        return plain + where(arithmetic.eq(n + x, 0), 0.0, ways)


class Poisson(ExponentialFamily):
    """Counts of the Poisson distribution with this rate."""

    arg_constraints: ClassVar[dict[str, Any]] = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer
    parts: ClassVar[dict[str, int]] = {"rate": 0}

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = tensors(rate)
        super().__init__(self.rate.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def mode(self) -> Tensor:
        return arithmetic.floor(self.rate)

    @property
    def variance(self) -> Tensor:
        return self.rate

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return inverse_cdf_samplers.poisson(shape_ops.expand(self.rate.detach(), self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Tensor:
        x = self._checked_value(value)
        return elementwise.xlogy(x, self.rate) - self.rate - lgamma(x + 1.0)


class _Classes(Distribution):
    """The base of distributions given by probabilities along the last dimension, which are normalised, or their logarithms."""

    arg_constraints: ClassVar[dict[str, Any]] = {
        "probs": constraints.independent(constraints.nonnegative, 1),
        "logits": constraints.real_vector,
    }
    parts: ClassVar[dict[str, int]] = {"probs": 1, "logits": 1}

    def _parameters(self, probs: Any, logits: Any) -> Tensor:
        name = type(self).__name__
        one_of(name, probs, logits)
        (known,) = tensors(logits if probs is None else probs)
        if known.ndim < 1:
            raise ValueError(f"{name}: the parameter has at least one dimension, that of the classes")
        if probs is None:
            self.__dict__["logits"] = known - reductions.logsumexp(known, -1, True)
        else:
            self.__dict__["probs"] = known / reductions.sum(known, -1, True)
        return known

    @lazy
    def probs(self) -> Tensor:
        """The probabilities, which add up to 1."""
        return reductions.softmax(self.logits, -1)

    @lazy
    def logits(self) -> Tensor:
        """Their logarithms."""
        return log(clamp_probs(self.probs))

    @property
    def param_shape(self) -> tuple[int, ...]:
        """The shape of the parameter."""
        shape: tuple[int, ...] = (self.__dict__.get("probs", self.__dict__.get("logits"))).shape  # type: ignore[union-attr]
        return shape

    def _draw_classes(self, shape: tuple[int, ...]) -> Tensor:
        """Classes of this shape, for each of the batch."""
        weights = cast(self.probs.detach(), float64)
        ends = weights.cumsum(-1)
        share = random.draw("uniform", (*shape, 1), float64) * ends[..., -1:]
        passed = cast(arithmetic.le(ends, share), "int64").sum(-1)
        return arithmetic.minimum(passed, weights.shape[-1] - 1)

    def entropy(self) -> Tensor:
        least = finfo(self.logits.dtype).min
        return -reductions.sum(arithmetic.clamp(self.logits, min=least) * self.probs, -1)


class Categorical(_Classes):
    """One of several classes, by its index."""

    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        known = self._parameters(probs, logits)
        self._num_events = known.shape[-1]
        super().__init__(known.shape[:-1], (), validate_args)

    @property
    def support(self) -> Any:
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def mean(self) -> Tensor:
        return creation.full(self._batch_shape, math.nan, dtype=self.probs.dtype)

    @property
    def variance(self) -> Tensor:
        return creation.full(self._batch_shape, math.nan, dtype=self.probs.dtype)

    @property
    def mode(self) -> Tensor:
        return reductions.argmax(self.probs, -1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self._draw_classes(self._extended_shape(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        classes = shape_ops.unsqueeze(cast(self._checked_value(value), "int64"), -1)
        shape = join_and_pad.broadcast_shapes(classes.shape[:-1], self.logits.shape[:-1])
        scores = shape_ops.expand(self.logits, (*shape, self._num_events))
        return shape_ops.squeeze(gather_scatter.gather(scores, -1, shape_ops.expand(classes, (*shape, 1))), -1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        count = self._num_events
        values = creation.arange(count).reshape((count, *(1,) * len(self._batch_shape)))
        return shape_ops.expand(values, (count, *self._batch_shape)) if expand else values


class OneHotCategorical(_Classes):
    """One of several classes, as a vector of zeros with one 1."""

    support = constraints.one_hot
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        known = self._parameters(probs, logits)
        super().__init__(known.shape[:-1], known.shape[-1:], validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return self._one_hot_of(reductions.argmax(self.probs, -1))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1.0 - self.probs)

    def _one_hot_of(self, classes: Tensor) -> Tensor:
        return cast(gather_scatter.one_hot(classes, self._event_shape[0]), self.probs.dtype)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return self._one_hot_of(self._draw_classes(shape[:-1]))

    def log_prob(self, value: Any) -> Tensor:
        return reductions.sum(where(arithmetic.eq(self._checked_value(value), 0), 0.0, self.logits), -1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        (count,) = self._event_shape
        values = creation.eye(count, dtype=self.probs.dtype).reshape((count, *(1,) * len(self._batch_shape), count))
        return shape_ops.expand(values, (count, *self._batch_shape, count)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """As `OneHotCategorical`, with gradients as if a sample were the probabilities (Bengio et al., 2013)."""

    has_rsample = True

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class Multinomial(_Classes):
    """How often each of several classes comes up in `total_count` trials."""

    def __init__(
        self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        known = self._parameters(probs, logits)
        self.total_count = int(total_count)
        super().__init__(known.shape[:-1], known.shape[-1:], validate_args)

    @property
    def support(self) -> Any:
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.probs * float(self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1.0 - self.probs) * float(self.total_count)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        classes = self._draw_classes((self.total_count, *shape[:-1]))
        return cast(gather_scatter.one_hot(classes, shape[-1]).sum(0), self.probs.dtype)

    def log_prob(self, value: Any) -> Tensor:
        x = self._checked_value(value)
        ways = lgamma(reductions.sum(x, -1) + 1.0) - reductions.sum(lgamma(x + 1.0), -1)
        return ways + reductions.sum(where(arithmetic.eq(x, 0), 0.0, self.logits * x), -1)

    def entropy(self) -> Tensor:
        n = self.total_count
        trials = creation.arange(1, n + 1, dtype=self.probs.dtype)
        binomial = Binomial(n, probs=self.probs)
        chances = arithmetic.exp(binomial.log_prob(binomial.enumerate_support(False)))[1:]
        counted = lgamma(trials + 1.0).reshape((n, *(1,) * self.probs.ndim))
        return super().entropy() * float(n) - math.lgamma(n + 1) + reductions.sum(chances * counted, (0, -1))
