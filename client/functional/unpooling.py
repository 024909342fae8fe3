"""Unpooling, which puts maxima back where they came from, and pooling by the norm of a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, creation, shape_ops
from gt.client.ops.arithmetic import in_single
from gt.client.tensor.operands import integers, tensor_of
from gt.errors import ShapeError

from . import pooling
from .convolution import Sizes, each_of

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["lp_pool1d", "lp_pool2d", "lp_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d"]


def _lp(name: str, count: int, input: Any, norm_type: float, kernel_size: Any, stride: Any, ceil_mode: bool) -> Tensor:
    """As PyTorch: (the sum of x^p)^(1/p), without absolute values, and 0 where the sum is negative."""
    x, p = tensor_of(name, input), float(norm_type)
    sizes = each_of(name, "kernel_size", kernel_size, count)
    pool = (pooling.avg_pool1d, pooling.avg_pool2d, pooling.avg_pool3d)[count - 1]
    mean = pool(arithmetic.pow(x, p), sizes, stride, 0, ceil_mode)
    total = arithmetic.mul(
        arithmetic.mul(arithmetic.sign(mean), arithmetic.relu(arithmetic.abs(mean))), math.prod(sizes)
    )
    return arithmetic.pow(total, 1 / p)


@in_single
def lp_pool1d(
    input: Any, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """(Σ xᵖ)^(1/p) of each window of (N, C, L)."""
    return _lp("lp_pool1d", 1, input, norm_type, kernel_size, stride, ceil_mode)


@in_single
def lp_pool2d(
    input: Any, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """(Σ xᵖ)^(1/p) of each window of (N, C, H, W)."""
    return _lp("lp_pool2d", 2, input, norm_type, kernel_size, stride, ceil_mode)


@in_single
def lp_pool3d(
    input: Any, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """(Σ xᵖ)^(1/p) of each window of (N, C, D, H, W)."""
    return _lp("lp_pool3d", 3, input, norm_type, kernel_size, stride, ceil_mode)


def _unpool(
    name: str, count: int, input: Any, indices: Any, kernel_size: Any, stride: Any, padding: Any, output_size: Any
) -> Tensor:
    x, places = tensor_of(name, input), integers(name, indices)
    if x.ndim not in (count + 1, count + 2) or x.shape != places.shape:
        raise ShapeError(
            f"{name}: {count + 1} or {count + 2} dimensions, and as many indices, not {x.shape} and {places.shape}"
        )
    sizes = each_of(name, "kernel_size", kernel_size, count)
    steps = sizes if stride is None or stride == () else each_of(name, "stride", stride, count)
    pads = each_of(name, "padding", padding, count, 0)
    space = tuple(
        (length - 1) * step + size - 2 * pad
        for length, step, size, pad in zip(x.shape[-count:], steps, sizes, pads, strict=True)
    )
    if output_size is not None:
        asked = tuple(output_size)[-count:]
        if len(asked) != count or any(abs(a - b) >= s for a, b, s in zip(asked, space, steps, strict=True)):
            raise ShapeError(f"{name}: output_size {tuple(output_size)} is not within a stride of {space}")
        space = asked
    lead = x.shape[:-count]
    flat = shape_ops.reshape(x, (*lead, math.prod(x.shape[-count:])))
    where = shape_ops.reshape(places, flat.shape)
    empty = creation.zeros((*lead, math.prod(space)), dtype=x.dtype)
    from gt.client.ops.scatter_reductions import Laid

    return shape_ops.reshape(Laid.apply(empty, where, flat, len(lead)), (*lead, *space))


def max_unpool1d(
    input: Any, indices: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """The inverse of `max_pool1d`: its results at the indices that it gave, else zeros; of several for one index the last."""
    return _unpool("max_unpool1d", 1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Any, indices: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """As `max_unpool1d`, of `max_pool2d`."""
    return _unpool("max_unpool2d", 2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Any, indices: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """As `max_unpool1d`, of `max_pool3d`."""
    return _unpool("max_unpool3d", 3, input, indices, kernel_size, stride, padding, output_size)
