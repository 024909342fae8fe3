"""The base class of distributions: a batch of them over events, with samples, densities and moments.

PyTorch's names and formulas. Nothing waits: arguments and samples are checked for their shapes, and for their values only
when `validate_args` asks for it, which fetches an answer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from gt.client.ops import arithmetic, creation, join_and_pad, reductions, shape_ops
from gt.client.tensor import grad_mode
from gt.client.tensor.tensor import Tensor
from gt.ir.dtypes import get_default_dtype

__all__ = ["Distribution", "ExponentialFamily"]

Self = TypeVar("Self", bound="Distribution")

Size = tuple[int, ...]


def tensors(*values: Any) -> list[Tensor]:
    """Numbers and tensors as tensors of one shape; numbers take the dtype of the tensors beside them."""
    known = [value for value in values if isinstance(value, Tensor)]
    floating = [value.dtype for value in known if value.dtype.kind in "fc"]
    dtype = floating[0] if floating else get_default_dtype()
    made = [value if isinstance(value, Tensor) else creation.full((), float(value), dtype=dtype) for value in values]
    return list(join_and_pad.broadcast_tensors(*made))


def sum_rightmost(x: Tensor, count: int) -> Tensor:
    """The sum over the last `count` dimensions."""
    return reductions.sum(x, tuple(range(x.ndim - count, x.ndim))) if count else x


class lazy:  # noqa: N801  # used as `property` is
    """A property that is computed at its first use, and then is an attribute."""

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Tensor:
        if instance is None:
            return self  # type: ignore[return-value]  # asked of the class
        value = instance.__dict__[self.function.__name__] = self.function(instance)
        return value


class Distribution:
    """Base class: `batch_shape` says how many distributions there are, `event_shape` what one sample of one is."""

    has_rsample = False
    has_enumerate_support = False
    arg_constraints: ClassVar[dict[str, Any]] = {}
    parts: ClassVar[dict[str, int]] = {}
    """The tensors that say which distribution it is, and how many dimensions of each belong to an event."""
    _validate_args = False

    def __init__(self, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None) -> None:
        self._batch_shape, self._event_shape = tuple(batch_shape), tuple(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            for name, constraint in self.arg_constraints.items():
                if name in self.__dict__ and not bool(reductions.all(constraint.check(self.__dict__[name]))):
                    raise ValueError(f"{type(self).__name__}: the parameter {name} is not all in {constraint!r}")

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether arguments and samples are checked where a distribution does not say it. At first they are not."""
        Distribution._validate_args = value

    @property
    def batch_shape(self) -> Size:
        """The shape of a batch of distributions."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one sample of one distribution."""
        return self._event_shape

    @property
    def support(self) -> Any:
        """The constraint that samples keep."""
        raise NotImplementedError(f"{type(self).__name__} does not say where its samples lie")

    def expand(self: Self, batch_shape: Any) -> Self:
        """The same distributions for a larger batch."""
        shape = tuple(batch_shape)
        new = copy.copy(self)
        for name, dims in self.parts.items():
            value = self.__dict__.get(name)
            if isinstance(value, Tensor):
                new.__dict__[name] = shape_ops.expand(value, (*shape, *value.shape[value.ndim - dims :]))
        for kind in type(self).__mro__:
            for name, value in vars(kind).items():
                if isinstance(value, lazy) and name not in self.parts:
                    new.__dict__.pop(name, None)
        new._batch_shape = shape
        return new

    def _extended_shape(self, sample_shape: Any = ()) -> Size:
        shape = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        return (*shape, *self._batch_shape, *self._event_shape)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Samples of shape `sample_shape + batch_shape + event_shape`, through which no gradient flows."""
        with grad_mode.no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Samples that are functions of the parameters, to which gradients flow."""
        raise NotImplementedError(f"{type(self).__name__} has no samples through which gradients flow")

    def sample_n(self, n: int) -> Tensor:
        """`sample((n,))`."""
        return self.sample((n,))

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density, or of the probability, at a value."""
        raise NotImplementedError(f"{type(self).__name__} has no density that can be computed")

    def cdf(self, value: Any) -> Tensor:
        """The probability of samples up to a value."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf that can be computed")

    def icdf(self, value: Any) -> Tensor:
        """Up to where the samples of this probability lie."""
        raise NotImplementedError(f"{type(self).__name__} has no inverse cdf that can be computed")

    def entropy(self) -> Tensor:
        """Minus the mean of `log_prob`."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy that can be computed")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values, along a new first dimension."""
        raise NotImplementedError(f"{type(self).__name__} does not have a few values")

    def perplexity(self) -> Tensor:
        """e to the entropy."""
        return arithmetic.exp(self.entropy())

    @property
    def mean(self) -> Tensor:
        """The mean of samples."""
        raise NotImplementedError(f"{type(self).__name__} has no mean that can be computed")

    @property
    def mode(self) -> Tensor:
        """The value of the largest density."""
        raise NotImplementedError(f"{type(self).__name__} has no mode that can be computed")

    @property
    def variance(self) -> Tensor:
        """The variance of samples."""
        raise NotImplementedError(f"{type(self).__name__} has no variance that can be computed")

    @property
    def stddev(self) -> Tensor:
        """The root of the variance."""
        return arithmetic.sqrt(self.variance)

    def _checked_value(self, value: Any) -> Tensor:
        """A value of which a density is asked for: a tensor. With `validate_args` it lies in the support."""
        x = value if isinstance(value, Tensor) else creation.tensor(value)
        if self._validate_args and not bool(reductions.all(self.support.check(x))):
            raise ValueError(f"{type(self).__name__}: a value is not in the support, {self.support!r}")
        return x

    def __repr__(self) -> str:
        said = []
        for name in self.parts:
            value = self.__dict__.get(name)
            if isinstance(value, Tensor):
                said.append(f"{name}: {value.item() if value.numel() == 1 else value.shape}")
        return f"{type(self).__name__}({', '.join(said)})"


class ExponentialFamily(Distribution):
    """Distributions whose densities are exponentials of a product of parameters and statistics."""


EULER_GAMMA = 0.57721566490153286060
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
