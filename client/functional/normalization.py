"""Normalisation over batches, groups and instances: (x − mean) / √(variance + eps), scaled and moved by channel.

Normalisation over the last dimensions is in `layer_norms.py`. Batch statistics are those of the whole batch, however it
is sharded, so there is no second form that synchronises. Float16 is computed with in float32, where squares fit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, join_and_pad, shape_ops
from gt.client.ops.arithmetic import add, div, in_single, mul, rsqrt, square, sub
from gt.client.tensor import emission, grad_mode
from gt.client.tensor.operands import cast, of_kinds, tensor_of
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import float32

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["batch_norm", "group_norm", "instance_norm", "local_response_norm"]


def _wide(name: str, input: Any) -> Tensor:
    x = tensor_of(name, input)
    if x.dtype.kind != "f":
        raise DTypeError(f"{name} takes floating-point numbers, not {x.dtype}")
    return cast(x, float32) if x.dtype.itemsize == 2 else x


def _moments(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, int]:
    """x less its mean, that mean, the mean of squares about it (both with their axes kept), and of how many."""
    count = math.prod(x.shape[axis] for axis in axes)
    mean = div(emission.emit("sum", (x,), axes, True), float(count))
    center = sub(x, mean)
    return center, mean, div(emission.emit("sum", (square(center),), axes, True), float(count)), count


def _channelled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scaled and moved along dimension 1."""
    shape = (1, -1, *(1,) * (x.ndim - 2))
    if weight is not None:
        x = mul(x, shape_ops.reshape(weight, shape))
    if bias is not None:
        x = add(x, shape_ops.reshape(bias, shape))
    return x


def _remember(running: Tensor | None, fresh: Tensor, momentum: Any) -> None:
    """A running statistic takes its part of a new one; a momentum is a number or a tensor without dimensions."""
    if running is not None:
        running = tensor_of("a running statistic", running)
        with grad_mode.no_grad():
            step = mul(sub(cast(shape_ops.reshape(fresh, running.shape), running.dtype), running), momentum)
            running.add_(step)


def batch_norm(
    input: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalised by channel (dimension 1) over all else (Ioffe and Szegedy, 2015, arXiv:1502.03167).

    In training by the batch's own statistics, of which `momentum` (a number, or a tensor without dimensions) goes into the
    running ones, the variance as the unbiased one; otherwise by the running ones.
    """
    x = _wide("batch_norm", input)
    if x.ndim < 2:
        raise ShapeError(f"batch_norm takes (N, C, …), not shape {x.shape}")
    if training and eps <= 0:
        raise ValueError(f"batch_norm: in training eps is positive, not {eps}")
    dtype = tensor_of("batch_norm", input).dtype
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm: outside training it needs running_mean and running_var")
        shape = (1, -1, *(1,) * (x.ndim - 2))
        center = sub(x, shape_ops.reshape(running_mean, shape))
        scale = rsqrt(add(shape_ops.reshape(running_var, shape), float(eps)))
        return cast(_channelled(mul(center, scale), weight, bias), dtype)
    axes = (0, *range(2, x.ndim))
    if math.prod(x.shape[axis] for axis in axes) == 1:
        raise ShapeError(f"Expected more than 1 value per channel when training, got input size {x.shape}")
    center, mean, spread, count = _moments(x, axes)
    if count:  # an empty batch teaches nothing
        _remember(running_mean, mean.detach(), momentum)
        if running_var is not None:
            _remember(running_var, mul(spread.detach(), count / (count - 1)), momentum)
    return cast(_channelled(mul(center, rsqrt(add(spread, float(eps)))), weight, bias), dtype)


def instance_norm(
    input: Any,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel of each example by itself (Ulyanov et al., 2016, arXiv:1607.08022).

    Running statistics are means over the batch; with `use_input_stats=False` they take the place of the examples' own.
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    x = _wide("instance_norm", input)
    dtype = tensor_of("instance_norm", input).dtype
    axes = tuple(range(2, x.ndim))
    if math.prod(x.shape[2:]) == 1:
        raise ShapeError(f"Expected more than 1 spatial element when training, got input size {x.shape}")
    center, mean, spread, count = _moments(x, axes)
    if running_mean is not None:
        _remember(running_mean, _over_batch(mean.detach()), momentum)
    if running_var is not None:
        _remember(running_var, _over_batch(mul(spread.detach(), count / (count - 1))), momentum)
    return cast(_channelled(mul(center, rsqrt(add(spread, float(eps)))), weight, bias), dtype)


def _over_batch(x: Tensor) -> Tensor:
    return div(emission.emit("sum", (x,), (0,), False), float(x.shape[0]))


def group_norm(
    input: Any,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Each group of channels of each example by itself (Wu and He, 2018, arXiv:1803.08494)."""
    x = _wide("group_norm", input)
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise ShapeError(f"group_norm: {num_groups} groups do not divide the channels of (N, C, …) in shape {x.shape}")
    dtype = tensor_of("group_norm", input).dtype
    size = math.prod(x.shape[2:]) * (x.shape[1] // num_groups)
    if size * x.shape[0] == 1:
        raise ShapeError(f"Expected more than 1 value per channel when training, got input size {x.shape}")
    grouped = shape_ops.reshape(x, (x.shape[0], num_groups, size))
    center, _, spread, _ = _moments(grouped, (2,))
    out = shape_ops.reshape(mul(center, rsqrt(add(spread, float(eps)))), x.shape)
    return cast(_channelled(out, weight, bias), dtype)


@in_single
def local_response_norm(input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x over `(k + alpha · mean of squares of size neighbouring channels)` to the power beta (Krizhevsky et al., 2012)."""
    x = of_kinds("local_response_norm", input, "bif")
    if x.ndim < 3:
        raise ShapeError(f"local_response_norm takes (N, C, …) of at least three dimensions, not shape {x.shape}")
    if size < 1:
        raise ShapeError(f"local_response_norm: size is at least 1, not {size}")
    squares, channels = square(x), x.shape[1]
    reach, total = size // 2, squares
    for shift in (
        *range(max(-reach, 1 - channels), 0),
        *range(1, min(size - reach, channels)),
    ):  # beyond these are zeros
        total = add(total, _shifted(squares, shift, channels))
    scale = arithmetic.pow(add(mul(total, alpha / size), float(k)), float(beta))
    return div(x, scale)


def _shifted(x: Tensor, shift: int, channels: int) -> Tensor:
    """Channel c + `shift` in the place of channel c; zeros where there is none."""
    part = shape_ops.narrow(x, 1, max(shift, 0), channels - abs(shift))
    empty = mul(shape_ops.narrow(x, 1, 0, abs(shift)), 0.0)
    return join_and_pad.cat((part, empty) if shift > 0 else (empty, part), 1)
