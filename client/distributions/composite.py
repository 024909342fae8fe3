"""Distributions made of others: transformed, of several dimensions at once, mixed, and relaxed classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from gt.client.functional import activations
from gt.client.ops import arithmetic, creation, gather_scatter, random, reductions, shape_ops
from gt.client.tensor.operands import cast
from gt.client.tensor.tensor import Tensor
from gt.ir.dtype_limits import finfo

from . import constraints
from .continuous import Normal, open_uniform
from .discrete import Categorical, _Classes, _Odds, clamp_probs
from .distribution import Distribution, sum_rightmost
from .transforms import ComposeTransform, ExpTransform, SigmoidTransform, StickBreakingTransform, Transform

__all__ = [
    "ContinuousBernoulli", "Independent", "LogNormal", "LogisticNormal", "MixtureSameFamily", "RelaxedBernoulli",
    "RelaxedOneHotCategorical", "TransformedDistribution",
]  # fmt: skip


class Independent(Distribution):
    """Another distribution, the last of whose batch dimensions count as one event."""

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ) -> None:
        batch, event = base_distribution.batch_shape, base_distribution.event_shape
        count = reinterpreted_batch_ndims
        if count > len(batch):
            raise ValueError(f"Independent: {count} dimensions of a batch of shape {batch}")
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, count
        self.has_rsample = base_distribution.has_rsample
        self.has_enumerate_support = not count and base_distribution.has_enumerate_support
        super().__init__(batch[: len(batch) - count], (*batch[len(batch) - count :], *event), validate_args)

    def expand(self, batch_shape: Any) -> Independent:
        more = self._event_shape[: self.reinterpreted_batch_ndims]
        return type(self)(self.base_dist.expand((*batch_shape, *more)), self.reinterpreted_batch_ndims)

    @property
    def support(self) -> Any:
        return constraints.independent(self.base_dist.support, self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Any) -> Tensor:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims:
            raise NotImplementedError("Independent: the values of several together are too many to list")
        return self.base_dist.enumerate_support(expand)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


class TransformedDistribution(Distribution):
    """The distribution of samples of another one after one or several transforms."""

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        whole = ComposeTransform(self.transforms)
        dims = len(base_distribution.event_shape)
        shape = (*base_distribution.batch_shape, *base_distribution.event_shape)
        needed = whole.domain.event_dim
        if needed > dims:
            base_distribution = Independent(base_distribution, needed - dims)
        self.base_dist = base_distribution
        self.has_rsample = base_distribution.has_rsample
        made = whole.forward_shape(shape)
        event = max(whole.codomain.event_dim + max(dims - needed, 0), 0)
        super().__init__(made[: len(made) - event], made[len(made) - event :], validate_args)

    def expand(self, batch_shape: Any) -> TransformedDistribution:
        new = TransformedDistribution.__new__(type(self))
        new.__dict__.update(self.__dict__)
        base = self.base_dist
        new.base_dist = base.expand(batch_shape)
        new._batch_shape = tuple(batch_shape)
        return new

    @property
    def support(self) -> Any:
        return self.transforms[-1].codomain if self.transforms else self.base_dist.support

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self._through(self.base_dist.sample(sample_shape)).detach()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self._through(self.base_dist.rsample(sample_shape))

    def _through(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value: Any) -> Tensor:
        y = self._checked_value(value)
        dims, total = len(self._event_shape), cast(creation.zeros(()), y.dtype)
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            dims += transform.domain.event_dim - transform.codomain.event_dim
            total = total - sum_rightmost(transform.log_abs_det_jacobian(x, y), dims - transform.domain.event_dim)
            y = x
        return total + sum_rightmost(self.base_dist.log_prob(y), dims - len(self.base_dist.event_shape))

    def _falling(self) -> Any:
        """The product of the transforms' signs."""
        sign: Any = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        return sign

    def cdf(self, value: Any) -> Tensor:
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        return self._flip_share(self.base_dist.cdf(value))

    def _flip_share(self, share: Tensor) -> Tensor:
        """A probability, or what it leaves of 1 where the transforms fall."""
        sign = self._falling()
        if isinstance(sign, (int, float)):
            return share if sign == 1 else 1.0 - share
        return (share - 0.5) * sign + 0.5  # type: ignore[no-any-return]

    def icdf(self, value: Any) -> Tensor:
        return self._through(self.base_dist.icdf(self._flip_share(value)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist!r}, {self.transforms!r})"


class LogNormal(TransformedDistribution):
    """The exponential of a normal number."""

    arg_constraints: ClassVar[dict[str, Any]] = {"loc": constraints.real, "scale": constraints.positive}
    base_dist: Normal

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Normal(loc, scale), ExpTransform(), validate_args)

    @property
    def loc(self) -> Tensor:
        """The mean of the logarithm."""
        return self.base_dist.loc

    @property
    def scale(self) -> Tensor:
        """The standard deviation of the logarithm."""
        return self.base_dist.scale

    @property
    def mean(self) -> Tensor:
        return arithmetic.exp(self.loc + arithmetic.square(self.scale) * 0.5)

    @property
    def mode(self) -> Tensor:
        return arithmetic.exp(self.loc - arithmetic.square(self.scale))

    @property
    def variance(self) -> Tensor:
        spread = arithmetic.square(self.scale)
        return arithmetic.expm1(spread) * arithmetic.exp(self.loc * 2.0 + spread)

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc


class LogisticNormal(TransformedDistribution):
    """Positive numbers that add up to 1, made of normal ones by breaking a stick."""

    base_dist: Any

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale)
        if not base.batch_shape:
            base = base.expand((1,))
        super().__init__(base, StickBreakingTransform(), validate_args)

    @property
    def loc(self) -> Tensor:
        """The means of what is transformed."""
        return self.base_dist.base_dist.loc  # type: ignore[no-any-return]

    @property
    def scale(self) -> Tensor:
        """The standard deviations of what is transformed."""
        return self.base_dist.base_dist.scale  # type: ignore[no-any-return]


class MixtureSameFamily(Distribution):
    """One of several distributions, which lie along the last dimension of a batch, with the probabilities of classes."""

    def __init__(
        self, mixture_distribution: Categorical, component_distribution: Distribution, validate_args: bool | None = None
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError("MixtureSameFamily: the mixture is a Categorical distribution")
        batch = component_distribution.batch_shape
        if not batch or mixture_distribution.param_shape[-1] != batch[-1]:
            raise ValueError(
                f"MixtureSameFamily: {mixture_distribution.param_shape[-1]} classes for a batch of shape {batch}"
            )
        self._mixture_distribution, self._component_distribution = mixture_distribution, component_distribution
        self._num_component = batch[-1]
        super().__init__(batch[:-1], component_distribution.event_shape, validate_args)

    @property
    def mixture_distribution(self) -> Categorical:
        """With which probability each distribution is chosen."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        """The distributions among which is chosen."""
        return self._component_distribution

    @property
    def support(self) -> Any:
        return self._component_distribution.support

    def expand(self, batch_shape: Any) -> MixtureSameFamily:
        mixed = self._mixture_distribution.expand(batch_shape)
        return type(self)(mixed, self._component_distribution.expand((*batch_shape, self._num_component)))

    def _shares(self) -> Tensor:
        probs = self._mixture_distribution.probs
        return shape_ops.reshape(probs, (*probs.shape, *(1,) * len(self._event_shape)))

    def _over(self, x: Tensor) -> Tensor:
        return reductions.sum(self._shares() * x, -1 - len(self._event_shape))

    @property
    def mean(self) -> Tensor:
        return self._over(self._component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        centre = shape_ops.unsqueeze(self.mean, -1 - len(self._event_shape))
        within, means = self._component_distribution.variance, self._component_distribution.mean
        return self._over(within) + self._over(arithmetic.square(means - centre))

    def cdf(self, value: Any) -> Tensor:
        each = self._component_distribution.cdf(shape_ops.unsqueeze(self._checked_value(value), -1))
        return reductions.sum(each * self._mixture_distribution.probs, -1)

    def log_prob(self, value: Any) -> Tensor:
        each = self._component_distribution.log_prob(
            shape_ops.unsqueeze(self._checked_value(value), -1 - len(self._event_shape))
        )
        return reductions.logsumexp(each + reductions.log_softmax(self._mixture_distribution.logits, -1), -1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        event = len(self._event_shape)
        each = self._component_distribution.sample(sample_shape)
        chosen = self._mixture_distribution.sample(sample_shape)
        shape = (*each.shape[: each.ndim - event - 1], 1, *self._event_shape)
        places = shape_ops.reshape(chosen, (*shape[: len(shape) - event], *(1,) * event))
        return shape_ops.squeeze(gather_scatter.gather(each, -1 - event, shape_ops.expand(places, shape)), -1 - event)


# relaxed classes


class RelaxedBernoulli(TransformedDistribution):
    """Numbers between 0 and 1 that are nearly 0 or 1 when it is cold (Maddison et al., 2017; Jang et al., 2017)."""

    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(_LogitRelaxedBernoulli(temperature, probs, logits), SigmoidTransform(), validate_args)

    @property
    def temperature(self) -> Any:
        """How far samples are from 0 and 1."""
        return self.base_dist.temperature  # type: ignore[attr-defined]

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        return self.base_dist.probs  # type: ignore[attr-defined, no-any-return]

    @property
    def logits(self) -> Tensor:
        """Their logits."""
        return self.base_dist.logits  # type: ignore[attr-defined, no-any-return]


class _LogitRelaxedBernoulli(_Odds):
    support = constraints.real
    has_rsample = True

    def __init__(self, temperature: Any, probs: Any, logits: Any) -> None:
        self.temperature = temperature
        (known,) = self._parameters(probs, logits)
        super().__init__(known.shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        share = clamp_probs(open_uniform(self.logits, self._extended_shape(sample_shape)))
        noise = arithmetic.log(share) - arithmetic.log1p(-share)
        return arithmetic.div(noise + self.logits, self.temperature)

    def log_prob(self, value: Any) -> Tensor:
        apart = self.logits - self._checked_value(value) * self.temperature
        size = self.temperature if isinstance(self.temperature, Tensor) else float(self.temperature)
        first = arithmetic.log(size) if isinstance(size, Tensor) else math.log(size)
        return arithmetic.add(apart - activations.softplus(apart) * 2.0, first)


class RelaxedOneHotCategorical(_Classes):
    """Positive numbers that add up to 1, nearly all in one place when it is cold (Jang et al., 2017)."""

    support = constraints.simplex
    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        known = self._parameters(probs, logits)
        self.temperature = temperature
        super().__init__(known.shape[:-1], known.shape[-1:], validate_args)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        wait = random.exponential(self._extended_shape(sample_shape), self.logits.dtype)
        gumbel = -arithmetic.log(arithmetic.clamp(wait, min=finfo(self.logits.dtype).tiny))
        return reductions.softmax((self.logits + gumbel) / self.temperature, -1)

    def log_prob(self, value: Any) -> Tensor:
        x, count, t = self._checked_value(value), self._event_shape[0], self.temperature
        logs = arithmetic.log(x)
        scores = self.logits - logs * t
        scores = reductions.sum(scores - reductions.logsumexp(scores, -1, True), -1)
        cold = arithmetic.log(t) if isinstance(t, Tensor) else math.log(t)
        return scores + math.lgamma(count) + cold * float(count - 1) - reductions.sum(logs, -1)


class ContinuousBernoulli(_Odds):
    """Numbers from 0 to 1 with a density like a Bernoulli probability (Loaiza-Ganem and Cunningham, 2019)."""

    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self, probs: Any = None, logits: Any = None, lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        (known,) = self._parameters(probs, logits)
        self._lims = lims
        super().__init__(known.shape, (), validate_args)

    def _cut(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where the probabilities are not near a half, the probabilities, and those with a safe number where they are."""
        probs = clamp_probs(self.probs)
        away = arithmetic.logical_or(arithmetic.le(probs, self._lims[0]), arithmetic.gt(probs, self._lims[1]))
        return away, probs, arithmetic.where(away, probs, self._lims[0])

    def _log_constant(self) -> Tensor:
        away, probs, cut = self._cut()
        low = arithmetic.where(arithmetic.le(cut, 0.5), cut, 0.0)
        high = arithmetic.where(arithmetic.ge(cut, 0.5), cut, 1.0)
        ratio = arithmetic.log(arithmetic.abs(arithmetic.log1p(-cut) - arithmetic.log(cut)))
        below = arithmetic.log1p(low * -2.0)
        above = arithmetic.log(high * 2.0 - 1.0)
        exact = ratio - arithmetic.where(arithmetic.lt(cut, 0.5), below, above)
        x = arithmetic.square(probs - 0.5)
        return arithmetic.where(away, exact, (x * (104.0 / 45.0) + 4.0 / 3.0) * x + math.log(2.0))

    @property
    def mean(self) -> Tensor:
        away, probs, cut = self._cut()
        exact = cut / (cut * 2.0 - 1.0) + 1.0 / (arithmetic.log1p(-cut) - arithmetic.log(cut))
        x = probs - 0.5
        return arithmetic.where(away, exact, 0.5 + (1.0 / 3.0 + arithmetic.square(x) * (16.0 / 45.0)) * x)

    @property
    def variance(self) -> Tensor:
        away, probs, cut = self._cut()
        step = arithmetic.square(arithmetic.log1p(-cut) - arithmetic.log(cut))
        exact = cut * (cut - 1.0) / arithmetic.square(1.0 - cut * 2.0) + arithmetic.reciprocal(step)
        x = arithmetic.square(probs - 0.5)
        return arithmetic.where(away, exact, 1.0 / 12.0 - (1.0 / 15.0 - x * (128.0 / 945.0)) * x)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(open_uniform(self.probs, self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Tensor:
        x = self._checked_value(value)
        return self.logits * x - activations.softplus(self.logits) + self._log_constant()

    def cdf(self, value: Any) -> Tensor:
        x = self._checked_value(value)
        away, _, cut = self._cut()
        above = arithmetic.pow(cut, x) * arithmetic.pow(1.0 - cut, 1.0 - x) + cut - 1.0
        share = arithmetic.where(away, above / (cut * 2.0 - 1.0), x)
        return arithmetic.clamp(share, 0.0, 1.0)

    def icdf(self, value: Any) -> Tensor:
        away, _, cut = self._cut()
        exact = (arithmetic.log1p(-cut + value * (cut * 2.0 - 1.0)) - arithmetic.log1p(-cut)) / (
            arithmetic.log(cut) - arithmetic.log1p(-cut)
        )
        return arithmetic.where(away, exact, value)

    def entropy(self) -> Tensor:
        probs = clamp_probs(self.probs)
        log0, log1 = arithmetic.log1p(-probs), arithmetic.log(probs)
        return self.mean * (log0 - log1) - self._log_constant() - log0
