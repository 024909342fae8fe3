"""The multivariate normal distribution."""

from __future__ import annotations

from typing import Any, ClassVar

from gt.client.ops import arithmetic, creation, join_and_pad, reductions, shape_ops, triangular
from gt.client.ops.linalg import linalg
from gt.client.ops.matrix_products import matmul
from gt.client.tensor.tensor import Tensor

from . import constraints
from .continuous import normal
from .distribution import HALF_LOG_2PI, Distribution, lazy

__all__ = ["LowRankMultivariateNormal", "MultivariateNormal"]


def whiten(lower: Tensor, apart: Tensor) -> Tensor:
    """L⁻¹ x for vectors x, whose leading dimensions may be more than those of L."""
    column = shape_ops.unsqueeze(apart, -1)
    matrix = shape_ops.expand(lower, (*apart.shape[:-1], *lower.shape[-2:]))
    return shape_ops.squeeze(linalg.solve_triangular(matrix, column, upper=False), -1)


def half_log_det(lower: Tensor) -> Tensor:
    """Half of the logarithm of the determinant of L Lᵀ."""
    return reductions.sum(arithmetic.log(triangular.diagonal(lower, dim1=-2, dim2=-1)), -1)


class MultivariateNormal(Distribution):
    """The normal distribution with mean `loc`, and one of a covariance, a precision, or a covariance's lower triangle."""

    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    parts: ClassVar[dict[str, int]] = {"loc": 1, "scale_tril": 2, "covariance_matrix": 2, "precision_matrix": 2}
    has_rsample = True

    def __init__(
        self, loc: Any, covariance_matrix: Any = None, precision_matrix: Any = None, scale_tril: Any = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        given = [each for each in (covariance_matrix, precision_matrix, scale_tril) if each is not None]
        if len(given) != 1:
            raise ValueError("MultivariateNormal: one of covariance_matrix, precision_matrix and scale_tril is given")
        (matrix,) = given
        if loc.ndim < 1 or matrix.ndim < 2 or matrix.shape[-2:] != (loc.shape[-1],) * 2:
            raise ValueError(f"MultivariateNormal: loc {loc.shape} and a matrix of shape {matrix.shape} do not fit")
        batch = join_and_pad.broadcast_shapes(loc.shape[:-1], matrix.shape[:-2])
        self.loc = shape_ops.expand(loc, (*batch, loc.shape[-1]))
        matrix = shape_ops.expand(matrix, (*batch, *matrix.shape[-2:]))
        if covariance_matrix is not None:
            self.__dict__["covariance_matrix"] = matrix
            self.scale_tril = linalg.cholesky(matrix)
        elif precision_matrix is not None:
            self.__dict__["precision_matrix"] = matrix
            turned = linalg.cholesky(join_and_pad.flip(matrix, (-2, -1)))  # of its inverse: the last row first
            upper = shape_ops.swapped(join_and_pad.flip(turned, (-2, -1)))
            self.scale_tril = linalg.solve_triangular(upper, creation.eye(loc.shape[-1], dtype=loc.dtype), upper=False)
        else:
            self.scale_tril = matrix
        super().__init__(batch, loc.shape[-1:], validate_args)

    @lazy
    def covariance_matrix(self) -> Tensor:
        """L Lᵀ."""
        return matmul(self.scale_tril, shape_ops.swapped(self.scale_tril))

    @lazy
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return linalg.inv(self.covariance_matrix)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return reductions.sum(arithmetic.square(self.scale_tril), -1)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = normal(self.loc, self._extended_shape(sample_shape))
        return self.loc + shape_ops.squeeze(matmul(self.scale_tril, shape_ops.unsqueeze(noise, -1)), -1)

    def log_prob(self, value: Any) -> Tensor:
        apart = self._checked_value(value) - self.loc
        length = reductions.sum(arithmetic.square(whiten(self.scale_tril, apart)), -1)
        return length * -0.5 - half_log_det(self.scale_tril) - float(self._event_shape[0]) * HALF_LOG_2PI

    def entropy(self) -> Tensor:
        return half_log_det(self.scale_tril) + float(self._event_shape[0]) * (0.5 + HALF_LOG_2PI)


class LowRankMultivariateNormal(MultivariateNormal):
    """The normal distribution whose covariance is `cov_factor cov_factorᵀ + diag(cov_diag)`."""

    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    parts: ClassVar[dict[str, int]] = {**MultivariateNormal.parts, "cov_factor": 2, "cov_diag": 1}

    def __init__(self, loc: Any, cov_factor: Any, cov_diag: Any, validate_args: bool | None = None) -> None:
        full = matmul(cov_factor, shape_ops.swapped(cov_factor)) + triangular.diag_embed(cov_diag)
        super().__init__(loc, full, validate_args=validate_args)
        self.cov_factor = shape_ops.expand(cov_factor, (*self._batch_shape, *cov_factor.shape[-2:]))
        self.cov_diag = shape_ops.expand(cov_diag, (*self._batch_shape, *cov_diag.shape[-1:]))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        rank = self.cov_factor.shape[-1]
        first = normal(self.loc, (*shape[:-1], rank, 1))
        along = shape_ops.squeeze(matmul(self.cov_factor, first), -1)
        return self.loc + along + arithmetic.sqrt(self.cov_diag) * normal(self.loc, shape)
