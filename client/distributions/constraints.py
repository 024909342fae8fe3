"""Constraints on the values of parameters and samples: objects with `check(value)`, element by element or by event."""

from __future__ import annotations

from typing import Any, Final

from gt.client.ops import arithmetic, creation, reductions, triangular
from gt.client.ops.linalg import linalg, tensor_norm
from gt.client.tensor.tensor import Tensor

__all__ = [
    "Constraint", "boolean", "corr_cholesky", "dependent", "greater_than", "greater_than_eq", "half_open_interval",
    "independent", "integer_interval", "interval", "less_than", "lower_cholesky", "lower_triangular", "multinomial",
    "nonnegative", "nonnegative_integer", "one_hot", "positive", "positive_definite", "positive_integer", "real",
    "real_vector", "simplex", "square", "stack", "symmetric", "unit_interval",
]  # fmt: skip


class Constraint:
    """A region. `is_discrete` says whether it has isolated points, `event_dim` how many dimensions one event has."""

    is_discrete = False
    event_dim = 0

    def check(self, value: Any) -> Tensor:
        """Whether each event lies in the region."""
        raise NotImplementedError(f"{self!r} cannot be checked")

    def __repr__(self) -> str:
        return type(self).__name__.strip("_").lower()


class _Dependent(Constraint):
    """A region that depends on parameters."""

    def __init__(self, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim


class _Real(Constraint):
    def check(self, value: Any) -> Tensor:
        return arithmetic.eq(value, value)  # all but NaN


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Any) -> Tensor:
        return arithmetic.logical_or(arithmetic.eq(value, 0), arithmetic.eq(value, 1))


class interval(Constraint):  # noqa: N801  # PyTorch's names
    """From one bound to another, both included; None: no bound."""

    above: Any = staticmethod(arithmetic.ge)
    below: Any = staticmethod(arithmetic.le)

    def __init__(self, lower_bound: Any = None, upper_bound: Any = None) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: Any) -> Tensor:
        inside = arithmetic.eq(value, value)
        if self.lower_bound is not None:
            inside = arithmetic.logical_and(inside, type(self).above(value, self.lower_bound))
        if self.upper_bound is not None:
            inside = arithmetic.logical_and(inside, type(self).below(value, self.upper_bound))
        return inside

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lower_bound}, {self.upper_bound})"


class half_open_interval(interval):  # noqa: N801
    """From a bound, which is included, up to another, which is not."""

    below = staticmethod(arithmetic.lt)


class greater_than(interval):  # noqa: N801
    """Above a bound."""

    above = staticmethod(arithmetic.gt)

    def __init__(self, lower_bound: Any) -> None:
        super().__init__(lower_bound)


class greater_than_eq(interval):  # noqa: N801
    """From a bound on."""

    def __init__(self, lower_bound: Any) -> None:
        super().__init__(lower_bound)


class less_than(interval):  # noqa: N801
    """Below a bound."""

    below = staticmethod(arithmetic.lt)

    def __init__(self, upper_bound: Any) -> None:
        super().__init__(None, upper_bound)


class integer_interval(interval):  # noqa: N801
    """Whole numbers from one bound to another, both included."""

    is_discrete = True

    def check(self, value: Any) -> Tensor:
        return arithmetic.logical_and(super().check(value), arithmetic.eq(arithmetic.remainder(value, 1), 0))


class independent(Constraint):  # noqa: N801
    """A region of events, each of as many elements as some more dimensions have."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Any) -> Tensor:
        inside = self.base_constraint.check(value)
        count = self.reinterpreted_batch_ndims
        return reductions.all(inside, tuple(range(inside.ndim - count, inside.ndim))) if count else inside


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Any) -> Tensor:
        near = arithmetic.lt(arithmetic.abs(arithmetic.sub(reductions.sum(value, -1), 1)), 1e-6)
        return arithmetic.logical_and(reductions.all(arithmetic.ge(value, 0), -1), near)


class _OneHot(Constraint):
    is_discrete = True
    event_dim = 1

    def check(self, value: Any) -> Tensor:
        truths = reductions.all(boolean.check(value), -1)
        return arithmetic.logical_and(truths, arithmetic.eq(reductions.sum(value, -1), 1))


class multinomial(Constraint):  # noqa: N801
    """Counts, at least 0, that add up to at most a bound."""

    is_discrete = True
    event_dim = 1

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Any) -> Tensor:
        counts = reductions.all(arithmetic.ge(value, 0), -1)
        return arithmetic.logical_and(counts, arithmetic.le(reductions.sum(value, -1), self.upper_bound))


class _Square(Constraint):
    event_dim = 2

    def check(self, value: Any) -> Tensor:
        return creation.full(value.shape[:-2], value.shape[-1] == value.shape[-2])


class _Symmetric(_Square):
    def check(self, value: Any) -> Tensor:
        near = arithmetic.isclose(value, value.mT, atol=1e-6)
        return reductions.all(near, (-2, -1))


class _PositiveDefinite(_Symmetric):
    def check(self, value: Any) -> Tensor:
        least = reductions.amin(linalg.eigvalsh(value), -1)
        return arithmetic.logical_and(super().check(value), arithmetic.gt(least, 0))


class _LowerTriangular(Constraint):
    event_dim = 2

    def check(self, value: Any) -> Tensor:
        return reductions.all(arithmetic.eq(triangular.tril(value), value), (-2, -1))


class _LowerCholesky(_LowerTriangular):
    def check(self, value: Any) -> Tensor:
        diagonal = triangular.diagonal(value, dim1=-2, dim2=-1)
        return arithmetic.logical_and(super().check(value), reductions.all(arithmetic.gt(diagonal, 0), -1))


class _CorrCholesky(_LowerCholesky):
    def check(self, value: Any) -> Tensor:
        lengths = tensor_norm.norm(value, dim=-1)
        unit = reductions.all(arithmetic.lt(arithmetic.abs(arithmetic.sub(lengths, 1)), 1e-4), -1)
        return arithmetic.logical_and(super().check(value), unit)


class stack(Constraint):  # noqa: N801
    """One region for each index along a dimension."""

    def __init__(self, cseq: Any, dim: int = 0) -> None:
        self.cseq, self.dim = list(cseq), dim
        self.is_discrete = any(each.is_discrete for each in self.cseq)
        self.event_dim = max((each.event_dim for each in self.cseq), default=0)

    def check(self, value: Any) -> Tensor:
        from gt.client.ops import join_and_pad

        parts = [each.check(value.select(self.dim, at)) for at, each in enumerate(self.cseq)]
        return join_and_pad.stack(parts, self.dim)


boolean: Final = _Boolean()
corr_cholesky: Final = _CorrCholesky()
dependent: Final = _Dependent()
lower_cholesky: Final = _LowerCholesky()
lower_triangular: Final = _LowerTriangular()
nonnegative: Final = greater_than_eq(0.0)
nonnegative_integer: Final = integer_interval(0, None)
one_hot: Final = _OneHot()
positive: Final = greater_than(0.0)
positive_definite: Final = _PositiveDefinite()
positive_integer: Final = integer_interval(1, None)
real: Final = _Real()
real_vector: Final = independent(real, 1)
simplex: Final = _Simplex()
square: Final = _Square()
symmetric: Final = _Symmetric()
unit_interval: Final = interval(0.0, 1.0)
