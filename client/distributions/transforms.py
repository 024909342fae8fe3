"""Transforms: invertible functions of tensors, and the log-determinants of their Jacobians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.client.functional import activations
from gt.client.ops import arithmetic, elementwise, join_and_pad, reductions, shape_ops, triangular
from gt.client.tensor.tensor import Tensor
from gt.ir.dtype_limits import finfo

from . import constraints
from .distribution import sum_rightmost

__all__ = [
    "AbsTransform", "AffineTransform", "CatTransform", "ComposeTransform", "CumulativeDistributionTransform", "ExpTransform",
    "IndependentTransform", "LowerCholeskyTransform", "PowerTransform", "ReshapeTransform", "SigmoidTransform",
    "SoftmaxTransform", "SoftplusTransform", "StackTransform", "StickBreakingTransform", "TanhTransform", "Transform",
    "identity_transform",
]  # fmt: skip


class Transform:
    """Base class: `t(x)`, `t.inv(y)` and `t.log_abs_det_jacobian(x, y)`, which has no dimensions of an event."""

    bijective = False
    domain: Any = constraints.real
    codomain: Any = constraints.real
    sign: Any = 0

    def __init__(self, cache_size: int = 0) -> None:
        self._cache_size = cache_size

    def __call__(self, x: Any) -> Tensor:
        """The function of x."""
        raise NotImplementedError(f"{type(self).__name__} has no function")

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no inverse")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of how much it stretches a volume about x."""
        raise NotImplementedError(f"{type(self).__name__} stretches no volumes")

    @property
    def inv(self) -> Transform:
        """The inverse function."""
        return _InverseTransform(self)

    def with_cache(self, cache_size: int = 1) -> Transform:
        """Itself: nothing is kept."""
        return self

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of its results for operands of this one."""
        return shape

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of its operands for results of this one."""
        return shape

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _InverseTransform(Transform):
    """The inverse of another transform."""

    def __init__(self, forward: Transform) -> None:
        super().__init__()
        self._forward = forward
        self.bijective = forward.bijective
        self.domain, self.codomain = forward.codomain, forward.domain
        self.sign = forward.sign

    def __call__(self, x: Any) -> Tensor:
        return self._forward._inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._forward(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._forward.log_abs_det_jacobian(y, x)

    @property
    def inv(self) -> Transform:
        return self._forward

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self._forward.inverse_shape(shape)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self._forward.forward_shape(shape)


class ComposeTransform(Transform):
    """Several in a row, the first first."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = list(parts)
        self.bijective = all(part.bijective for part in self.parts)
        if self.parts:
            inner, outer = 0, 0
            for part in reversed(self.parts):
                inner = max(part.domain.event_dim, inner + part.domain.event_dim - part.codomain.event_dim)
            for part in self.parts:
                outer = max(part.codomain.event_dim, outer + part.codomain.event_dim - part.domain.event_dim)
            self.domain = with_event_dim(self.parts[0].domain, inner)
            self.codomain = with_event_dim(self.parts[-1].codomain, outer)
            signs = [part.sign for part in self.parts]
            self.sign = signs[0]
            for sign in signs[1:]:
                self.sign = self.sign * sign

    def __call__(self, x: Any) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x  # type: ignore[no-any-return]  # a part returns a tensor

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part._inverse(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        total: Any = None
        dims = self.domain.event_dim
        for part in self.parts:
            after = part(x)
            term = sum_rightmost(part.log_abs_det_jacobian(x, after), dims - part.domain.event_dim)
            total = term if total is None else total + term
            dims += part.codomain.event_dim - part.domain.event_dim
            x = after
        return arithmetic.mul(x, 0.0) if total is None else total

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape


identity_transform = ComposeTransform([])


def with_event_dim(constraint: Any, event_dim: int) -> Any:
    """A constraint on events of at least so many dimensions."""
    more = event_dim - constraint.event_dim
    return constraints.independent(constraint, more) if more > 0 else constraint


class IndependentTransform(Transform):
    """Another one, some of whose batch dimensions count as one event."""

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.base_transform, self.reinterpreted_batch_ndims = base_transform, reinterpreted_batch_ndims
        self.bijective, self.sign = base_transform.bijective, base_transform.sign
        self.domain = constraints.independent(base_transform.domain, reinterpreted_batch_ndims)
        self.codomain = constraints.independent(base_transform.codomain, reinterpreted_batch_ndims)

    def __call__(self, x: Any) -> Tensor:
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.base_transform._inverse(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return sum_rightmost(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.base_transform.inverse_shape(shape)


class ReshapeTransform(Transform):
    """Events in another shape."""

    bijective = True

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ValueError(
                f"ReshapeTransform: {self.in_shape} and {self.out_shape} differ in how many elements there are"
            )
        self.domain = constraints.independent(constraints.real, len(self.in_shape))
        self.codomain = constraints.independent(constraints.real, len(self.out_shape))

    def __call__(self, x: Any) -> Tensor:
        return shape_ops.reshape(x, (*x.shape[: x.ndim - len(self.in_shape)], *self.out_shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return shape_ops.reshape(y, (*y.shape[: y.ndim - len(self.out_shape)], *self.in_shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return sum_rightmost(arithmetic.mul(x, 0.0), len(self.in_shape))

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[: len(shape) - len(self.in_shape)], *self.out_shape)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[: len(shape) - len(self.out_shape)], *self.in_shape)


class ExpTransform(Transform):
    """eˣ."""

    codomain = constraints.positive
    bijective, sign = True, 1

    def __call__(self, x: Any) -> Tensor:
        return arithmetic.exp(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return arithmetic.log(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class PowerTransform(Transform):
    """Positive numbers to a power."""

    domain = constraints.positive
    codomain = constraints.positive
    bijective = True

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent
        self.sign = arithmetic.sign(exponent) if isinstance(exponent, Tensor) else math.copysign(1, exponent)

    def __call__(self, x: Any) -> Tensor:
        return arithmetic.pow(x, self.exponent)

    def _inverse(self, y: Tensor) -> Tensor:
        return arithmetic.pow(y, 1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return arithmetic.log(arithmetic.abs(y * self.exponent / x))


class SigmoidTransform(Transform):
    """1 / (1 + e⁻ˣ)."""

    codomain = constraints.unit_interval
    bijective, sign = True, 1

    def __call__(self, x: Any) -> Tensor:
        kind = finfo(x.dtype)
        return arithmetic.clamp(arithmetic.sigmoid(x), kind.tiny, 1 - kind.eps)

    def _inverse(self, y: Tensor) -> Tensor:
        kind = finfo(y.dtype)
        kept = arithmetic.clamp(y, kind.tiny, 1 - kind.eps)
        return arithmetic.log(kept) - arithmetic.log1p(-kept)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -activations.softplus(-x) - activations.softplus(x)


class SoftplusTransform(Transform):
    """log(1 + eˣ)."""

    codomain = constraints.positive
    bijective, sign = True, 1

    def __call__(self, x: Any) -> Tensor:
        return activations.softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return arithmetic.log(-arithmetic.expm1(-y)) + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -activations.softplus(-x)


class TanhTransform(Transform):
    """The hyperbolic tangent."""

    codomain = constraints.interval(-1.0, 1.0)
    bijective, sign = True, 1

    def __call__(self, x: Any) -> Tensor:
        return arithmetic.tanh(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return elementwise.atanh(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (math.log(2.0) - x - activations.softplus(x * -2.0)) * 2.0


class AbsTransform(Transform):
    """|x|, whose inverse is taken for the positive one."""

    codomain = constraints.positive

    def __call__(self, x: Any) -> Tensor:
        return arithmetic.abs(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class AffineTransform(Transform):
    """loc + scale · x."""

    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self.event_dim = loc, scale, event_dim
        self.domain = self.codomain = with_event_dim(constraints.real, event_dim)
        self.sign = arithmetic.sign(scale) if isinstance(scale, Tensor) else (scale > 0) - (scale < 0)

    def __call__(self, x: Any) -> Tensor:
        return x * self.scale + self.loc  # type: ignore[no-any-return]  # x is a tensor

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale  # type: ignore[no-any-return]  # y is a tensor

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.scale, Tensor):
            stretch = arithmetic.log(arithmetic.abs(self.scale))
        else:
            stretch = arithmetic.mul(x, 0.0) + math.log(abs(self.scale))
        return sum_rightmost(stretch + arithmetic.mul(x, 0.0), self.event_dim)


class SoftmaxTransform(Transform):
    """Softmax along the last dimension; not invertible, so its inverse is one of several."""

    domain = constraints.real_vector
    codomain = constraints.simplex

    def __call__(self, x: Any) -> Tensor:
        return reductions.softmax(x, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return arithmetic.log(y)


class StickBreakingTransform(Transform):
    """n numbers as n + 1 that are positive and add up to 1: each takes a share of what those before it left."""

    domain = constraints.real_vector
    codomain = constraints.simplex
    bijective = True

    def __call__(self, x: Any) -> Tensor:
        share = self._shares(x)
        left = arithmetic.exp(arithmetic.log1p(-share).cumsum(-1))
        before = join_and_pad.pad(left, (1, 0), value=1.0)
        return join_and_pad.pad(share, (0, 1), value=1.0) * before

    def _shares(self, x: Tensor) -> Tensor:
        kind = finfo(x.dtype)
        return arithmetic.clamp(arithmetic.sigmoid(x - self._offset(x)), kind.tiny, 1 - kind.eps)

    def _offset(self, x: Tensor) -> Tensor:
        from gt.client.ops import creation

        count = x.shape[-1]
        return arithmetic.log(creation.arange(count, 0, -1, dtype=x.dtype))

    def _inverse(self, y: Tensor) -> Tensor:
        head = y[..., :-1]
        rest = arithmetic.clamp(1.0 - head.cumsum(-1), min=finfo(y.dtype).tiny)
        return arithmetic.log(head) - arithmetic.log(rest) + self._offset(head)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        moved = x - self._offset(x)
        return reductions.sum(-moved + activations.logsigmoid(moved) + arithmetic.log(y[..., :-1]), -1)

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] - 1)


class LowerCholeskyTransform(Transform):
    """Matrices as lower triangles with a positive diagonal: its exponential."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def __call__(self, x: Any) -> Tensor:
        diagonal = arithmetic.exp(triangular.diagonal(x, dim1=-2, dim2=-1))
        return triangular.tril(x, -1) + triangular.diag_embed(diagonal)

    def _inverse(self, y: Tensor) -> Tensor:
        diagonal = arithmetic.log(triangular.diagonal(y, dim1=-2, dim2=-1))
        return triangular.tril(y, -1) + triangular.diag_embed(diagonal)


class CatTransform(Transform):
    """One for each part of a dimension."""

    def __init__(
        self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = list(tseq), dim
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        self.bijective = all(each.bijective for each in self.transforms)

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return shape_ops.split(x, self.lengths, self.dim)

    def __call__(self, x: Any) -> Tensor:
        return join_and_pad.cat([t(part) for t, part in zip(self.transforms, self._parts(x), strict=True)], self.dim)

    def _inverse(self, y: Tensor) -> Tensor:
        return join_and_pad.cat(
            [t._inverse(part) for t, part in zip(self.transforms, self._parts(y), strict=True)], self.dim
        )

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        parts = zip(self.transforms, self._parts(x), self._parts(y), strict=True)
        return join_and_pad.cat([t.log_abs_det_jacobian(a, b) for t, a, b in parts], self.dim)


class StackTransform(Transform):
    """One for each index along a dimension."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = list(tseq), dim
        self.bijective = all(each.bijective for each in self.transforms)

    def __call__(self, x: Any) -> Tensor:
        parts = zip(self.transforms, shape_ops.unbind(x, self.dim), strict=True)
        return join_and_pad.stack([t(part) for t, part in parts], self.dim)

    def _inverse(self, y: Tensor) -> Tensor:
        parts = zip(self.transforms, shape_ops.unbind(y, self.dim), strict=True)
        return join_and_pad.stack([t._inverse(part) for t, part in parts], self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        parts = zip(self.transforms, shape_ops.unbind(x, self.dim), shape_ops.unbind(y, self.dim), strict=True)
        return join_and_pad.stack([t.log_abs_det_jacobian(a, b) for t, a, b in parts], self.dim)


class CumulativeDistributionTransform(Transform):
    """The cdf of a distribution."""

    bijective, sign = True, 1
    codomain = constraints.unit_interval

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution
        self.domain = distribution.support

    def __call__(self, x: Any) -> Tensor:
        return self.distribution.cdf(x)  # type: ignore[no-any-return]

    def _inverse(self, y: Tensor) -> Tensor:
        return self.distribution.icdf(y)  # type: ignore[no-any-return]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distribution.log_prob(x)  # type: ignore[no-any-return]
