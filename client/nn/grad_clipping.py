"""Gradient clipping, and parameters as one vector and back. Nothing here waits unless it is asked to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gt.client.functional import functional
from gt.client.ops import arithmetic, creation, join_and_pad, reductions, shape_ops
from gt.client.tensor import emission_context, grad_mode
from gt.client.tensor.operands import cast, clone
from gt.client.tensor.tensor import Tensor
from gt.errors import GradientError, ShapeError

from .parameter import Parameter, mark_parameter

__all__ = [
    "clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm", "parameters_to_vector",
    "vector_to_parameters",
]  # fmt: skip


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p.grad for p in listed if p.grad is not None]


def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all elements of all tensors, as if they were one vector. Only `error_if_nonfinite` waits."""
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    power = float(norm_type)
    if not listed:
        return creation.zeros(())
    with emission_context.with_changes(phase="update", grad=False, lower=None):
        norms = [_norm(tensor, power) for tensor in listed]
        total = norms[0] if len(norms) == 1 else _norm(join_and_pad.stack(norms), power)
    if error_if_nonfinite and not math.isfinite(float(total)):
        raise GradientError(
            f"the total norm of order {norm_type} of the gradients is non-finite, so it cannot be clipped"
        )
    return total


def _norm(x: Tensor, power: float) -> Tensor:
    if power == math.inf:
        return reductions.amax(arithmetic.abs(x))
    if power == -math.inf:
        return reductions.amin(arithmetic.abs(x))
    if power == 0:
        return reductions.sum(cast(arithmetic.ne(x, 0), x.dtype))
    if power == 1:
        return reductions.sum(arithmetic.abs(x))
    if power == 2:
        return arithmetic.sqrt(reductions.sum(arithmetic.square(x)))
    return arithmetic.pow(reductions.sum(arithmetic.pow(arithmetic.abs(x), power)), 1 / power)


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale the gradients, in place, by `max_norm / total_norm` where that is below 1."""
    with emission_context.with_changes(phase="update", grad=False, lower=None):
        scale = arithmetic.minimum(arithmetic.div(float(max_norm), arithmetic.add(total_norm, 1e-6)), 1.0)
        for gradient in _gradients(parameters):
            gradient.copy_(arithmetic.mul(gradient, cast(scale, gradient.dtype)))


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients, in place, so that their norm is at most `max_norm`; returns what it was, without waiting."""
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    total = get_total_norm(_gradients(listed), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(listed, max_norm, total)
    return total


clip_grad_norm = clip_grad_norm_
"""An older name, which PyTorch still has."""


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Keep every element of the gradients, in place, from −`clip_value` to `clip_value`."""
    bound = float(clip_value)
    with emission_context.with_changes(phase="update", grad=False, lower=None):
        for gradient in _gradients(parameters):
            gradient.copy_(functional.clamp(gradient, -bound, bound))


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of all parameters, one after the other."""
    return join_and_pad.cat([shape_ops.reshape(p, (-1,)) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write the elements of a vector into parameters, one after the other."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected a tensor, but got: {type(vec).__name__}")
    listed, start = list(parameters), 0
    if sum(p.numel() for p in listed) > vec.numel():
        raise ShapeError(f"vector_to_parameters: {vec.numel()} elements for {sum(p.numel() for p in listed)}")
    with grad_mode.no_grad():
        for p in listed:
            fresh: Any = shape_ops.reshape(shape_ops.narrow(vec.detach(), 0, start, p.numel()), p.shape)
            p.data = mark_parameter(fresh) if isinstance(p, Parameter) else clone(fresh)
            start += p.numel()
