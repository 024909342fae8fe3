"""Modules over sliding windows: convolutions and their transposes. Arguments, names and shapes are PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from gt.client.functional import convolution, functional
from gt.client.functional.convolution import Sizes, each_of
from gt.client.ops import creation
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError

from . import init
from .module import Module
from .parameter import Parameter


class _Conv(Module):
    """What all convolutions have: a weight and a bias, uniform in ±1/√(elements of a weight that an output reads)."""

    count: ClassVar[int]
    transposed: ClassVar[bool] = False

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Any = 0,
        dilation: Sizes = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name, count = type(self).__name__, self.count
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ShapeError(f"{name}: {in_channels} channels in and {out_channels} out do not make {groups} groups")
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(
                f"{name}: padding_mode is 'zeros', 'reflect', 'replicate' or 'circular', not {padding_mode!r}"
            )
        if self.transposed and padding_mode != "zeros":
            raise ValueError(f"{name}: padding_mode is 'zeros', not {padding_mode!r}")
        if isinstance(padding, str) and (
            padding not in ("same", "valid") or (padding == "same" and stride not in (1, (1,) * count))
        ):
            raise ValueError(f"{name}: padding is numbers, 'valid' or (with stride 1) 'same', not {padding!r}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = each_of(name, "kernel_size", kernel_size, count)
        self.stride = each_of(name, "stride", stride, count)
        self.padding = padding if isinstance(padding, str) else each_of(name, "padding", padding, count, 0)
        self.dilation = each_of(name, "dilation", dilation, count)
        self.output_padding: tuple[int, ...] = (0,) * count
        self.groups = groups
        self.padding_mode = padding_mode
        pair = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(creation.empty(*pair, *self.kernel_size, dtype=dtype))
        self.register_parameter("bias", Parameter(creation.empty(out_channels, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both anew."""
        read = math.prod(self.weight.shape[1:])
        bound = 1 / math.sqrt(read) if read else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        said = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        if self.padding != (0,) * self.count:
            said.append(f"padding={self.padding}")
        if self.dilation != (1,) * self.count:
            said.append(f"dilation={self.dilation}")
        if self.output_padding != (0,) * self.count:
            said.append(f"output_padding={self.output_padding}")
        if self.groups != 1:
            said.append(f"groups={self.groups}")
        if self.bias is None:
            said.append("bias=False")
        if self.padding_mode != "zeros":
            said.append(f"padding_mode={self.padding_mode}")
        return ", ".join(said)


class _Straight(_Conv):
    function: ClassVar[Callable[..., Tensor]]

    def forward(self, input: Tensor) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = functional.pad(input, self._ends(), mode=self.padding_mode), 0
        return type(self).function(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _ends(self) -> list[int]:
        """What is put before and after, from the last dimension on, as `pad` takes it."""
        ends: list[int] = []
        for at in reversed(range(self.count)):
            if isinstance(self.padding, str):
                total = self.dilation[at] * (self.kernel_size[at] - 1) if self.padding == "same" else 0
                ends += [total // 2, total - total // 2]
            else:
                ends += [self.padding[at]] * 2
        return ends


class Conv1d(_Straight):
    """`conv1d` of (N, C, L) with a weight (out, in / groups, k)."""

    count = 1
    function = staticmethod(convolution.conv1d)


class Conv2d(_Straight):
    """`conv2d` of (N, C, H, W) with a weight (out, in / groups, h, w)."""

    count = 2
    function = staticmethod(convolution.conv2d)


class Conv3d(_Straight):
    """`conv3d` of (N, C, D, H, W) with a weight (out, in / groups, d, h, w)."""

    count = 3
    function = staticmethod(convolution.conv3d)


class _Transposed(_Conv):
    function: ClassVar[Callable[..., Tensor]]
    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes = 0,
        output_padding: Sizes = 0, groups: int = 1, bias: bool = True, dilation: Sizes = 1, padding_mode: str = "zeros",
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype
        )
        self.output_padding = each_of(type(self).__name__, "output_padding", output_padding, self.count, 0)

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        more = self.output_padding if output_size is None else self._more(input, tuple(output_size)[-self.count :])
        return type(self).function(
            input, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation
        )

    def _more(self, input: Tensor, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """The output padding that makes an output of the wanted size."""
        found = []
        for at, size in enumerate(input.shape[-self.count :]):
            least = (size - 1) * self.stride[at] - 2 * int(self.padding[at])
            least += self.dilation[at] * (self.kernel_size[at] - 1) + 1
            if not least <= wanted[at] < least + max(self.stride[at], self.dilation[at]):
                most = least + max(self.stride[at], self.dilation[at]) - 1
                raise ShapeError(f"{type(self).__name__}: an output of {wanted[at]} where {least} to {most} may be")
            found.append(wanted[at] - least)
        return tuple(found)


class ConvTranspose1d(_Transposed):
    """`conv_transpose1d` of (N, C, L) with a weight (in, out / groups, k)."""

    count = 1
    function = staticmethod(convolution.conv_transpose1d)


class ConvTranspose2d(_Transposed):
    """`conv_transpose2d` of (N, C, H, W) with a weight (in, out / groups, h, w)."""

    count = 2
    function = staticmethod(convolution.conv_transpose2d)


class ConvTranspose3d(_Transposed):
    """`conv_transpose3d` of (N, C, D, H, W) with a weight (in, out / groups, d, h, w)."""

    count = 3
    function = staticmethod(convolution.conv_transpose3d)


class Unfold(Module):
    """`unfold` of (N, C, H, W) into columns."""

    def __init__(self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return convolution.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Unfold):
    """`fold` of columns into (N, C, H, W)."""

    def __init__(
        self, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return convolution.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"
