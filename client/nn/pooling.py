"""Modules that pool windows, and that lay back what was pooled. Arguments, names and shapes are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from gt.client.functional import pooling, unpooling
from gt.client.functional.convolution import Sizes, each_of
from gt.client.tensor.tensor import Tensor

from .module import Module


class _MaxPool(Module):
    function: ClassVar[Callable[..., Any]]

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Any:
        return type(self).function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """`max_pool1d` of (N, C, L)."""

    function = staticmethod(pooling.max_pool1d)


class MaxPool2d(_MaxPool):
    """`max_pool2d` of (N, C, H, W)."""

    function = staticmethod(pooling.max_pool2d)


class MaxPool3d(_MaxPool):
    """`max_pool3d` of (N, C, D, H, W)."""

    function = staticmethod(pooling.max_pool3d)


class _AvgPool(Module):
    function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        more = () if self.divisor_override is None else (self.divisor_override,)
        return type(self).function(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, *more
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPool):
    """`avg_pool1d` of (N, C, L)."""

    function = staticmethod(pooling.avg_pool1d)

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.kernel_size, self.stride, self.padding = (
            each_of("AvgPool1d", "size", value, 1, 0) for value in (self.kernel_size, self.stride, self.padding)
        )


class AvgPool2d(_AvgPool):
    """`avg_pool2d` of (N, C, H, W)."""

    function = staticmethod(pooling.avg_pool2d)


class AvgPool3d(_AvgPool):
    """`avg_pool3d` of (N, C, D, H, W)."""

    function = staticmethod(pooling.avg_pool3d)


class _Adaptive(Module):
    function: ClassVar[Callable[..., Any]]

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Any:
        return type(self).function(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """`adaptive_avg_pool1d` of (N, C, L)."""

    function = staticmethod(pooling.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_Adaptive):
    """`adaptive_avg_pool2d` of (N, C, H, W)."""

    function = staticmethod(pooling.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_Adaptive):
    """`adaptive_avg_pool3d` of (N, C, D, H, W)."""

    function = staticmethod(pooling.adaptive_avg_pool3d)


class _AdaptiveMax(_Adaptive):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        return type(self).function(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMax):
    """`adaptive_max_pool1d` of (N, C, L)."""

    function = staticmethod(pooling.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMax):
    """`adaptive_max_pool2d` of (N, C, H, W)."""

    function = staticmethod(pooling.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMax):
    """`adaptive_max_pool3d` of (N, C, D, H, W)."""

    function = staticmethod(pooling.adaptive_max_pool3d)


class _LPPool(Module):
    function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class LPPool1d(_LPPool):
    """`lp_pool1d` of (N, C, L)."""

    function = staticmethod(unpooling.lp_pool1d)


class LPPool2d(_LPPool):
    """`lp_pool2d` of (N, C, H, W)."""

    function = staticmethod(unpooling.lp_pool2d)


class LPPool3d(_LPPool):
    """`lp_pool3d` of (N, C, D, H, W)."""

    function = staticmethod(unpooling.lp_pool3d)


class _MaxUnpool(Module):
    function: ClassVar[Callable[..., Tensor]]
    count: ClassVar[int]

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        super().__init__()
        name = type(self).__name__
        self.kernel_size = each_of(name, "kernel_size", kernel_size, self.count)
        self.stride = self.kernel_size if stride is None else each_of(name, "stride", stride, self.count)
        self.padding = each_of(name, "padding", padding, self.count, 0)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return type(self).function(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """`max_unpool1d` of what `MaxPool1d` left, (N, C, L)."""

    count = 1
    function = staticmethod(unpooling.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """`max_unpool2d` of what `MaxPool2d` left, (N, C, H, W)."""

    count = 2
    function = staticmethod(unpooling.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """`max_unpool3d` of what `MaxPool3d` left, (N, C, D, H, W)."""

    count = 3
    function = staticmethod(unpooling.max_unpool3d)
