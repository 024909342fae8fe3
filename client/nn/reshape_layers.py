"""Modules that rearrange elements: shapes, padding, pixels, sizes. None has parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gt.client.functional import functional
from gt.client.ops import shape_ops
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError

from .module import Module


class Flatten(Module):
    """Dimensions from `start_dim` to `end_dim` as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Tensor) -> Tensor:
        return shape_ops.flatten(input, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One dimension as several, one of whose sizes may be −1."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(dim, int):
            raise TypeError(f"Unflatten: dim is an integer (dimensions have no names), not {dim!r}")
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        return shape_ops.unflatten(input, self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class PixelShuffle(Module):
    """(…, C·r², H, W) as (…, C, H·r, W·r)."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return functional.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """What `PixelShuffle` does, undone."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return functional.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Channels dealt out: one of each group in turn."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return functional.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Upsample(Module):
    """(N, C, …) at another size: see `functional.interpolate`."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size = size
        self.scale_factor = tuple(map(float, scale_factor)) if isinstance(scale_factor, Sequence) else scale_factor
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        return functional.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        what = f"size={self.size!r}" if self.scale_factor is None else f"scale_factor={self.scale_factor!r}"
        return f"{what}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """(N, C, H, W) at another size, each element the nearest one."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """(N, C, H, W) at another size, between elements, corners on corners."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)


# padding


class _Pad(Module):
    """More elements around the last `_field` dimensions of (N, C, …) or (C, …)."""

    _field: ClassVar[int]
    _mode: ClassVar[str]

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        self.padding = (padding,) * (2 * self._field) if isinstance(padding, int) else tuple(padding)

    def forward(self, input: Tensor) -> Tensor:
        if self._mode != "constant" and input.ndim not in (self._field + 1, self._field + 2):
            raise ShapeError(
                f"{type(self).__name__} takes {self._field + 1} or {self._field + 2} dimensions, not shape {input.shape}"
            )
        return functional.pad(input, self.padding, self._mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    """A constant around the last dimensions."""

    _mode = "constant"

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return functional.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_ConstantPad):
    """Zeros around the last dimensions."""

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ConstantPad1d(_ConstantPad):
    """A constant around the last dimension."""

    _field = 1


class ConstantPad2d(_ConstantPad):
    """A constant around the last two dimensions."""

    _field = 2


class ConstantPad3d(_ConstantPad):
    """A constant around the last three dimensions."""

    _field = 3


class ZeroPad1d(_ZeroPad):
    """Zeros around the last dimension."""

    _field = 1


class ZeroPad2d(_ZeroPad):
    """Zeros around the last two dimensions."""

    _field = 2


class ZeroPad3d(_ZeroPad):
    """Zeros around the last three dimensions."""

    _field = 3


class ReflectionPad1d(_Pad):
    """The last dimension mirrored at its ends, which are not repeated."""

    _field, _mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """The last two dimensions mirrored at their ends, which are not repeated."""

    _field, _mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """The last three dimensions mirrored at their ends, which are not repeated."""

    _field, _mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """The ends of the last dimension repeated."""

    _field, _mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """The ends of the last two dimensions repeated."""

    _field, _mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """The ends of the last three dimensions repeated."""

    _field, _mode = 3, "replicate"


class CircularPad1d(_Pad):
    """The last dimension goes round."""

    _field, _mode = 1, "circular"


class CircularPad2d(_Pad):
    """The last two dimensions go round."""

    _field, _mode = 2, "circular"


class CircularPad3d(_Pad):
    """The last three dimensions go round."""

    _field, _mode = 3, "circular"
