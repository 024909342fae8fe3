"""The Kullback-Leibler divergence of two distributions, by the kinds of both; an error where there is no formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from gt.client.functional import activations
from gt.client.ops import arithmetic, elementwise, reductions, shape_ops
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError

from .composite import Independent, TransformedDistribution
from .continuous import Cauchy, Exponential, Gumbel, HalfNormal, Laplace, Normal, Pareto, Uniform
from .discrete import Bernoulli, Binomial, Categorical, Geometric, OneHotCategorical, Poisson
from .distribution import EULER_GAMMA, Distribution, sum_rightmost
from .gamma_family import Beta, Dirichlet, Gamma
from .multivariate_normal import MultivariateNormal, half_log_det, whiten

__all__ = ["kl_divergence", "register_kl"]

lgamma, digamma, log, square, where = (
    elementwise.lgamma, elementwise.digamma, arithmetic.log, arithmetic.square, arithmetic.where,
)  # fmt: skip


def _normals(p: Normal, q: Normal) -> Tensor:
    ratio = square(p.scale / q.scale)
    return (ratio + square((p.loc - q.loc) / q.scale) - 1.0 - log(ratio)) * 0.5


def _half_normals(p: HalfNormal, q: HalfNormal) -> Tensor:
    ratio = square(p.scale / q.scale)
    return (ratio - 1.0 - log(ratio)) * 0.5


def _uniforms(p: Uniform, q: Uniform) -> Tensor:
    outside = arithmetic.logical_or(arithmetic.gt(q.low, p.low), arithmetic.lt(q.high, p.high))
    return where(outside, math.inf, log((q.high - q.low) / (p.high - p.low)))


def _exponentials(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1.0 - log(ratio)


def _laplaces(p: Laplace, q: Laplace) -> Tensor:
    ratio, apart = p.scale / q.scale, arithmetic.abs(p.loc - q.loc)
    return ratio * arithmetic.exp(-apart / p.scale) + apart / q.scale - 1.0 - log(ratio)


def _cauchies(p: Cauchy, q: Cauchy) -> Tensor:
    above = square(p.scale + q.scale) + square(p.loc - q.loc)
    return log(above / (p.scale * q.scale * 4.0))


def _gumbels(p: Gumbel, q: Gumbel) -> Tensor:
    ratio, first, second = p.scale / q.scale, q.loc / q.scale, p.loc / q.scale
    moved = arithmetic.exp(first + lgamma(ratio + 1.0) - second)
    return -log(ratio) - first + second + ratio * EULER_GAMMA + moved - (1.0 + EULER_GAMMA)


def _paretos(p: Pareto, q: Pareto) -> Tensor:
    scales, shapes = p.scale / q.scale, q.alpha / p.alpha
    return where(arithmetic.lt(p.scale, q.scale), math.inf, q.alpha * log(scales) - log(shapes) + shapes - 1.0)


def _gammas(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    return b * log(p.rate / q.rate) + lgamma(b) - lgamma(a) + (a - b) * digamma(a) + (q.rate - p.rate) * (a / p.rate)


def _betas(p: Beta, q: Beta) -> Tensor:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    sums = lgamma(c) + lgamma(d) + lgamma(a + b) - lgamma(c + d) - lgamma(a) - lgamma(b)
    return sums + (a - c) * digamma(a) + (b - d) * digamma(b) + (c + d - a - b) * digamma(a + b)


def _dirichlets(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = reductions.sum(a, -1)
    constants = lgamma(total) - lgamma(reductions.sum(b, -1)) + reductions.sum(lgamma(b) - lgamma(a), -1)
    return constants + reductions.sum((a - b) * (digamma(a) - shape_ops.unsqueeze(digamma(total), -1)), -1)


def _multivariate(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ShapeError(f"kl_divergence: events of shape {p.event_shape} and {q.event_shape}")
    from gt.client.ops import join_and_pad
    from gt.client.ops.linalg import linalg

    batch = join_and_pad.broadcast_shapes(p.batch_shape, q.batch_shape)
    size = p.event_shape[0]
    mine, theirs = (shape_ops.expand(each.scale_tril, (*batch, size, size)) for each in (p, q))
    spread = reductions.sum(square(linalg.solve_triangular(theirs, mine, upper=False)), (-2, -1))
    apart = reductions.sum(square(whiten(q.scale_tril, shape_ops.expand(q.loc - p.loc, (*batch, size)))), -1)
    return half_log_det(q.scale_tril) - half_log_det(p.scale_tril) + (spread + apart - float(size)) * 0.5


def _bernoullis(p: Bernoulli, q: Bernoulli) -> Tensor:
    yes = p.probs * (activations.softplus(-q.logits) - activations.softplus(-p.logits))
    no = (1.0 - p.probs) * (activations.softplus(q.logits) - activations.softplus(p.logits))
    yes = where(arithmetic.eq(q.probs, 0), math.inf, yes)
    no = where(arithmetic.eq(q.probs, 1), math.inf, no)
    return where(arithmetic.eq(p.probs, 0), 0.0, yes) + where(arithmetic.eq(p.probs, 1), 0.0, no)


def _binomials(p: Binomial, q: Binomial) -> Tensor:
    inside = p.total_count * (p.probs * (p.logits - q.logits) + arithmetic.log1p(-p.probs) - arithmetic.log1p(-q.probs))
    return where(arithmetic.gt(p.total_count, q.total_count), math.inf, inside)


def _geometrics(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - arithmetic.log1p(-q.probs) / p.probs - q.logits


def _poissons(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (log(p.rate) - log(q.rate)) - (p.rate - q.rate)


def _classes(p: Any, q: Any) -> Tensor:
    terms = p.probs * (p.logits - q.logits)
    terms = where(arithmetic.eq(q.probs, 0), math.inf, terms)
    return reductions.sum(where(arithmetic.eq(p.probs, 0), 0.0, terms), -1)


def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("kl_divergence: two Independent with different numbers of dimensions")
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if [type(each) for each in p.transforms] != [type(each) for each in q.transforms] or p.event_shape != q.event_shape:
        raise NotImplementedError("kl_divergence: two distributions that are transformed differently")
    return kl_divergence(p.base_dist, q.base_dist)


def _uniform_normal(p: Uniform, q: Normal) -> Tensor:
    width = p.high - p.low
    constant = log(q.scale * math.sqrt(2 * math.pi) / width)
    return constant + (square(width) / 12.0 + square((p.high + p.low - q.loc * 2.0) * 0.5)) / (square(q.scale) * 2.0)


def _exponential_gamma(p: Exponential, q: Gamma) -> Tensor:
    ratio = q.rate / p.rate
    return (
        -q.concentration * log(ratio)
        + ratio
        + lgamma(q.concentration)
        + q.concentration * EULER_GAMMA
        - (1.0 + EULER_GAMMA)
    )


def _gamma_exponential(p: Gamma, q: Exponential) -> Tensor:
    return -p.entropy() - log(q.rate) + q.rate * p.concentration / p.rate


def _laplace_normal(p: Laplace, q: Normal) -> Tensor:
    spread, ratio = square(q.scale), square(p.scale / q.scale)
    constant = log(ratio * 2.0) * 0.5 * -1.0 + 0.5 * math.log(math.pi)
    return constant + square(p.loc - q.loc) / (spread * 2.0) + ratio - 1.0


Formula = Callable[[Any, Any], Tensor]

_KL_FORMULAS: Final[dict[tuple[type[Distribution], type[Distribution]], Formula]] = {
    (Normal, Normal): _normals,
    (HalfNormal, HalfNormal): _half_normals,
    (Uniform, Uniform): _uniforms,
    (Exponential, Exponential): _exponentials,
    (Laplace, Laplace): _laplaces,
    (Cauchy, Cauchy): _cauchies,
    (Gumbel, Gumbel): _gumbels,
    (Pareto, Pareto): _paretos,
    (Gamma, Gamma): _gammas,
    (Beta, Beta): _betas,
    (Dirichlet, Dirichlet): _dirichlets,
    (MultivariateNormal, MultivariateNormal): _multivariate,
    (Bernoulli, Bernoulli): _bernoullis,
    (Binomial, Binomial): _binomials,
    (Geometric, Geometric): _geometrics,
    (Poisson, Poisson): _poissons,
    (Categorical, Categorical): _classes,
    (OneHotCategorical, OneHotCategorical): _classes,
    (Independent, Independent): _independent,
    (TransformedDistribution, TransformedDistribution): _transformed,
    (Uniform, Normal): _uniform_normal,
    (Exponential, Gamma): _exponential_gamma,
    (Gamma, Exponential): _gamma_exponential,
    (Laplace, Normal): _laplace_normal,
}


def register_kl(type_p: type[Distribution], type_q: type[Distribution]) -> Callable[[Formula], Formula]:
    """A decorator: the formula for these two kinds, and what derives from them."""

    def register(function: Formula) -> Formula:
        _KL_FORMULAS[type_p, type_q] = function
        return function

    return register


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The mean, over samples of p, of how much more likely they are under p than under q, as a logarithm."""
    found = [
        (type(p).__mro__.index(first) + type(q).__mro__.index(second), number)
        for number, (first, second) in enumerate(_KL_FORMULAS)
        if isinstance(p, first) and isinstance(q, second)
    ]
    if not found:
        raise NotImplementedError(
            f"no divergence of {type(p).__name__} from {type(q).__name__}: gt.distributions.register_kl"
        )
    return list(_KL_FORMULAS.values())[min(found)[1]](p, q)
