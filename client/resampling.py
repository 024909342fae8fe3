"""Images and sequences in other sizes: pixel shuffles, interpolation. What is put around them is `pad` in `arranging.py`.

PyTorch's names, arguments and defaults; they are reached as `gt.nn.functional`. Sizes change
along one axis after the other, at places that the workers count out themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gt.dtypes import DType, float32, float64, int64
from gt.errors import ShapeError

from . import apply as emission
from . import arithmetic, creation, shaping
from .arithmetic import add, cast, mul, sub, tensor_of

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = [
    "channel_shuffle", "interpolate", "pixel_shuffle", "pixel_unshuffle", "upsample",
]  # fmt: skip


# channels and pixels


def pixel_shuffle(input: Any, upscale_factor: int) -> Tensor:
    """(…, C·r², H, W) as (…, C, H·r, W·r) (Shi et al., 2016, arXiv:1609.05158)."""
    x, r = tensor_of("pixel_shuffle", input), int(upscale_factor)
    if x.ndim < 3 or r < 1 or x.shape[-3] % (r * r):
        raise ShapeError(f"pixel_shuffle by {r} takes (…, C·{r}², H, W), not shape {x.shape}")
    *lead, channels, height, width = x.shape
    n = len(lead)
    apart = shaping.reshape(x, (*lead, channels // (r * r), r, r, height, width))
    turned = shaping.permute(apart, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return shaping.reshape(turned, (*lead, channels // (r * r), height * r, width * r))


def pixel_unshuffle(input: Any, downscale_factor: int) -> Tensor:
    """What `pixel_shuffle` does, undone."""
    x, r = tensor_of("pixel_unshuffle", input), int(downscale_factor)
    if x.ndim < 3 or r < 1 or x.shape[-2] % r or x.shape[-1] % r:
        raise ShapeError(f"pixel_unshuffle by {r} takes (…, C, H·{r}, W·{r}), not shape {x.shape}")
    *lead, channels, height, width = x.shape
    n = len(lead)
    apart = shaping.reshape(x, (*lead, channels, height // r, r, width // r, r))
    turned = shaping.permute(apart, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return shaping.reshape(turned, (*lead, channels * r * r, height // r, width // r))


def channel_shuffle(input: Any, groups: int) -> Tensor:
    """Channels (dimension 1) dealt out: one of each group in turn (Zhang et al., 2018, arXiv:1707.01083)."""
    x = tensor_of("channel_shuffle", input)
    if x.ndim < 3 or groups < 1 or x.shape[1] % groups:
        raise ShapeError(f"channel_shuffle: {groups} groups do not divide the channels of shape {x.shape}")
    apart = shaping.reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    return shaping.reshape(shaping.transpose(apart, 1, 2), x.shape)


# other sizes

_LINEAR: Final = {"linear": 1, "bilinear": 2, "trilinear": 3}


def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """(N, C, …) at another size: 'nearest', 'nearest-exact', 'linear', 'bilinear' or 'trilinear'."""
    x = tensor_of("interpolate", input)
    field = x.ndim - 2
    if field not in (1, 2, 3):
        raise ShapeError(f"interpolate takes (N, C, …) of three to five dimensions, not shape {x.shape}")
    if mode not in ("nearest", "nearest-exact", *_LINEAR):
        raise ValueError(
            f"interpolate: the mode is 'nearest', 'nearest-exact' or one of {sorted(_LINEAR)}, not {mode!r}"
        )
    if antialias:
        raise ValueError("interpolate: antialias is for modes that this one is none of")
    if mode in _LINEAR and _LINEAR[mode] != field:
        raise ShapeError(f"interpolate: mode {mode!r} is for {_LINEAR[mode]} dimensions, not for shape {x.shape}")
    if align_corners is not None and mode not in _LINEAR:
        raise ValueError("interpolate: align_corners is for the linear modes")
    sizes, scales = _sizes(x, field, size, scale_factor, bool(recompute_scale_factor))
    for axis, (out, scale) in enumerate(zip(sizes, scales, strict=True), start=2):
        if mode not in _LINEAR:
            x = _nearest(x, axis, out, scale, 0.5 if mode == "nearest-exact" else 0.0)
        elif out != x.shape[axis] or scale is not None:
            x = _between(x, axis, out, scale, bool(align_corners))
    return x


def _sizes(
    x: Tensor, field: int, size: Any, scale_factor: Any, recompute: bool
) -> tuple[list[int], list[float | None]]:
    """The new sizes, and the factors to look up with: None where the sizes say them."""
    if (size is None) is (scale_factor is None):
        raise ValueError("interpolate: give either size or scale_factor")
    asked = scale_factor if size is None else size
    listed = list(asked) if isinstance(asked, Sequence) else [asked] * field
    if len(listed) != field:
        raise ShapeError(f"interpolate: {asked} does not name {field} dimensions of shape {x.shape}")
    if size is not None:
        return [int(each) for each in listed], [None] * field
    sizes = [math.floor(old * float(factor)) for old, factor in zip(x.shape[2:], listed, strict=True)]
    return sizes, [None if recompute else float(factor) for factor in listed]


def _nearest(x: Tensor, axis: int, out: int, scale: float | None, shift: float) -> Tensor:
    """Places are counted in float32, as PyTorch does."""
    size = x.shape[axis]
    step = size / out if scale is None else 1 / scale
    places = arithmetic.floor(mul(add(creation.arange(out, dtype=float32), shift), step))
    return emission.apply("take", (x, cast(arithmetic.minimum(places, float(size - 1)), int64)), axis)


def _between(x: Tensor, axis: int, out: int, scale: float | None, corners: bool) -> Tensor:
    """Each new element on the line between two old ones."""
    size = x.shape[axis]
    wide: DType = float64 if x.dtype is float64 else float32
    steps = creation.arange(out, dtype=wide)
    if corners:
        at = mul(steps, (size - 1) / (out - 1) if out > 1 else 0.0)
    else:
        step = size / out if scale is None else 1 / scale
        at = arithmetic.maximum(sub(mul(add(steps, 0.5), step), 0.5), 0.0)
    low = arithmetic.minimum(arithmetic.floor(at), float(size - 1))
    part = shaping.reshape(cast(sub(at, low), x.dtype), (-1, *(1,) * (x.ndim - axis - 1)))
    first = cast(low, int64)
    second = arithmetic.minimum(add(first, 1), size - 1)
    a, b = (emission.apply("take", (x, places), axis) for places in (first, second))
    return add(mul(a, sub(1.0, part)), mul(b, part))


def upsample(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """`interpolate` by its older name."""
    return interpolate(input, size, scale_factor, mode, align_corners)
