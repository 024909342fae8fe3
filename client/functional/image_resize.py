"""Images and sequences in other sizes: pixel shuffles and interpolation. Padding is in `gt.client.ops.join_and_pad`.

PyTorch's names, arguments and defaults; they are reached as `gt.nn.functional`. Sizes change
along one axis after the other, mostly at places that the workers count out themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gt.client.ops import arithmetic, creation, shape_ops
from gt.client.ops.arithmetic import add, mul, sub
from gt.client.tensor import emission
from gt.client.tensor.operands import cast, tensor_of
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import float32, float64, int64, uint8

from . import pooling

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "channel_shuffle", "interpolate", "pixel_shuffle", "pixel_unshuffle", "upsample", "upsample_bilinear", "upsample_nearest",
]  # fmt: skip


# channels and pixels


def pixel_shuffle(input: Any, upscale_factor: int) -> Tensor:
    """(…, C·r², H, W) as (…, C, H·r, W·r) (Shi et al., 2016, arXiv:1609.05158)."""
    x, r = tensor_of("pixel_shuffle", input), int(upscale_factor)
    if x.ndim < 3 or r < 1 or x.shape[-3] % (r * r):
        raise ShapeError(f"pixel_shuffle by {r} takes (…, C·{r}², H, W), not shape {x.shape}")
    *lead, channels, height, width = x.shape
    n = len(lead)
    apart = shape_ops.reshape(x, (*lead, channels // (r * r), r, r, height, width))
    turned = shape_ops.permute(apart, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return shape_ops.reshape(turned, (*lead, channels // (r * r), height * r, width * r))


def pixel_unshuffle(input: Any, downscale_factor: int) -> Tensor:
    """The inverse of `pixel_shuffle`."""
    x, r = tensor_of("pixel_unshuffle", input), int(downscale_factor)
    if x.ndim < 3 or r < 1 or x.shape[-2] % r or x.shape[-1] % r:
        raise ShapeError(f"pixel_unshuffle by {r} takes (…, C, H·{r}, W·{r}), not shape {x.shape}")
    *lead, channels, height, width = x.shape
    n = len(lead)
    apart = shape_ops.reshape(x, (*lead, channels, height // r, r, width // r, r))
    turned = shape_ops.permute(apart, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return shape_ops.reshape(turned, (*lead, channels * r * r, height // r, width // r))


def channel_shuffle(input: Any, groups: int) -> Tensor:
    """Channels (dimension 1) dealt out: one of each group in turn (Zhang et al., 2018, arXiv:1707.01083)."""
    x = tensor_of("channel_shuffle", input)
    if x.ndim < 3 or groups < 1 or x.shape[1] % groups:
        raise ShapeError(f"channel_shuffle: {groups} groups do not divide the channels of shape {x.shape}")
    apart = shape_ops.reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    return shape_ops.reshape(shape_ops.transpose(apart, 1, 2), x.shape)


# other sizes

_LINEAR: Final = {"linear": 1, "bilinear": 2, "trilinear": 3}
_SMOOTH: Final = {**_LINEAR, "bicubic": 2}
"""Modes that look between elements, and of how many dimensions."""
_MODES: Final = ("nearest", "nearest-exact", "area", *_SMOOTH)


def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """(N, C, …) at another size: 'nearest', 'nearest-exact', 'linear', 'bilinear', 'trilinear', 'bicubic' or 'area'.

    With `antialias`, for 'bilinear' and 'bicubic', a smaller image is made of all the elements that fall into one.
    """
    x = tensor_of("interpolate", input)
    field = x.ndim - 2
    if field not in (1, 2, 3):
        raise ShapeError(f"interpolate takes (N, C, …) of three to five dimensions, not shape {x.shape}")
    if mode not in _MODES:
        raise ValueError(f"interpolate: the mode is one of {', '.join(_MODES)}, not {mode!r}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError("interpolate: antialias is for the modes 'bilinear' and 'bicubic'")
    if mode in _SMOOTH and _SMOOTH[mode] != field:
        raise ShapeError(f"interpolate: mode {mode!r} is for {_SMOOTH[mode]} dimensions, not for shape {x.shape}")
    if align_corners is not None and mode not in _SMOOTH:
        raise ValueError("interpolate: align_corners is for the modes that look between elements")
    if mode in _SMOOTH and x.dtype.kind in "bi" and not (x.dtype is uint8 and field == 2):
        raise DTypeError(
            f"interpolate: what lies between elements is no {x.dtype}: cast to a floating-point dtype first"
        )
    if x.dtype is uint8 and mode in _SMOOTH:
        smooth = interpolate(
            cast(x, float32), size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
        )
        return cast(arithmetic.clamp(arithmetic.round(smooth), 0.0, 255.0), uint8)
    sizes, scales = _sizes(x, field, size, scale_factor, bool(recompute_scale_factor))
    if mode == "area":
        return (pooling.adaptive_avg_pool1d, pooling.adaptive_avg_pool2d, pooling.adaptive_avg_pool3d)[field - 1](
            x, sizes
        )
    for axis, (out, scale) in enumerate(zip(sizes, scales, strict=True), start=2):
        if mode not in _SMOOTH:
            x = _nearest(x, axis, out, scale, 0.5 if mode == "nearest-exact" else 0.0)
        elif out == x.shape[axis] and scale is None:
            continue
        elif antialias:
            x = _filtered(x, axis, out, scale, bool(align_corners), mode == "bicubic")
        elif mode == "bicubic":
            x = _bent(x, axis, out, scale, bool(align_corners))
        else:
            x = _between(x, axis, out, scale, bool(align_corners))
    return x


def _sizes(
    x: Tensor, field: int, size: Any, scale_factor: Any, recompute: bool
) -> tuple[list[int], list[float | None]]:
    """The new sizes, and the factors to look up with: None where the sizes say them."""
    if (size is None) is (scale_factor is None):
        raise ValueError("interpolate: give either size or scale_factor")
    asked = scale_factor if size is None else size
    if size is None and not all(factor > 0 for factor in (asked if isinstance(asked, Sequence) else (asked,))):
        raise ValueError(f"interpolate: a scale_factor is above 0, not {asked}")
    listed = list(asked) if isinstance(asked, Sequence) else [asked] * field
    if len(listed) != field:
        raise ShapeError(f"interpolate: {asked} does not name {field} dimensions of shape {x.shape}")
    if size is not None:
        sizes = [int(each) for each in listed]
    else:
        sizes = [math.floor(old * float(factor)) for old, factor in zip(x.shape[2:], listed, strict=True)]
    if min(sizes, default=1) < 1:
        raise ShapeError(f"interpolate: {sizes} of shape {x.shape}: every new size is at least 1")
    if size is not None:
        return sizes, [None] * field
    return sizes, [None if recompute else float(factor) for factor in listed]


def _nearest(x: Tensor, axis: int, out: int, scale: float | None, shift: float) -> Tensor:
    """Places are counted in float32, as PyTorch does."""
    size = x.shape[axis]
    step = size / out if scale is None else 1 / scale
    places = arithmetic.floor(mul(add(creation.arange(out, dtype=float32), shift), step))
    return emission.emit("take", (x, cast(arithmetic.minimum(places, float(size - 1)), int64)), axis)


def _places(x: Tensor, axis: int, out: int, scale: float | None, corners: bool) -> Tensor:
    """The position of each new element among the old ones."""
    size = x.shape[axis]
    steps = creation.arange(out, dtype=float64 if x.dtype is float64 else float32)
    if corners:
        return mul(steps, (size - 1) / (out - 1) if out > 1 else 0.0)
    return sub(mul(add(steps, 0.5), size / out if scale is None else 1 / scale), 0.5)


def _beside(weights: Tensor, x: Tensor, axis: int) -> Tensor:
    """A weight for each place along an axis."""
    return shape_ops.reshape(cast(weights, x.dtype), (-1, *(1,) * (x.ndim - axis - 1)))


def _between(x: Tensor, axis: int, out: int, scale: float | None, corners: bool) -> Tensor:
    """Each new element on the line between two old ones."""
    size = x.shape[axis]
    at = arithmetic.maximum(_places(x, axis, out, scale, corners), 0.0)
    low = arithmetic.minimum(arithmetic.floor(at), float(size - 1))
    part = _beside(sub(at, low), x, axis)
    first = cast(low, int64)
    second = arithmetic.minimum(add(first, 1), size - 1)
    a, b = (emission.emit("take", (x, places), axis) for places in (first, second))
    return add(mul(a, sub(1.0, part)), mul(b, part))


def cubic(t: Any, a: float = -0.75) -> list[Any]:
    """The weights of four neighbours, the second of which is `t` away: cubic convolution (Keys, 1981)."""

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1.0

    def far(x: Any) -> Any:
        return ((x * a - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def _bent(x: Tensor, axis: int, out: int, scale: float | None, corners: bool) -> Tensor:
    """Each new element on a curve through four old ones."""
    at = _places(x, axis, out, scale, corners)
    low = arithmetic.floor(at)
    total = None
    for shift, weight in enumerate(cubic(sub(at, low)), start=-1):
        place = arithmetic.clamp(add(cast(low, int64), shift), 0, x.shape[axis] - 1)
        part = mul(emission.emit("take", (x, place), axis), _beside(weight, x, axis))
        total = part if total is None else add(total, part)
    assert total is not None, "there are four neighbours"
    return total


def _filtered(x: Tensor, axis: int, out: int, scale: float | None, corners: bool, bent: bool) -> Tensor:
    """Each new element a weighted mean of the old ones around it, of a filter as wide as an element of the smaller image.

    The weights are one matrix, made at the client; they depend on sizes alone.
    """
    size = x.shape[axis]
    if corners:
        step = (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        step = size / out if scale is None else 1 / scale
    reach = (2.0 if bent else 1.0) * max(step, 1.0)
    inverse = 1 / step if step >= 1 else 1.0
    weights = np.zeros((out, size))
    for row in range(out):
        center = step * (row + 0.5)
        first = max(int(center - reach + 0.5), 0)
        last = min(int(center + reach + 0.5), size)
        away = np.abs((np.arange(first, last) - center + 0.5) * inverse)
        if bent:
            a = -0.5
            near = ((a + 2) * away - (a + 3)) * away * away + 1
            far = (((away - 5) * away + 8) * away - 4) * a
            share = np.where(away < 1, near, np.where(away < 2, far, 0.0))
        else:
            share = np.maximum(1 - away, 0.0)
        weights[row, first:last] = share / share.sum() if share.sum() else share
    moved = shape_ops.movedim(x, axis, -1)
    product = emission.emit("matmul", (moved, creation.tensor(weights.T.copy(), dtype=x.dtype)))
    return shape_ops.movedim(product, -1, axis)


def upsample(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """`interpolate` by its older name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Any, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` to the nearest element, by an older name."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: Any, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` between elements, corners on corners, by an older name."""
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)
