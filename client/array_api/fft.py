"""The standard's Fourier transforms: `gt.array_api.fft`, GT's by the standard's names of arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.ops.spectral import fft as core
from gt.client.ops.spectral.fft import fftfreq, rfftfreq

from .promotion import Function

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip


def _along_one(function: Function) -> Function:
    def transform(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
        out: Tensor = function(x, n, axis, norm)
        return out

    transform.__name__, transform.__doc__ = function.__name__, function.__doc__
    return transform


def _along_several(function: Function) -> Function:
    def transform(x: Tensor, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Tensor:
        out: Tensor = function(x, s, axes, norm)
        return out

    transform.__name__, transform.__doc__ = function.__name__, function.__doc__
    return transform


def _shift(function: Function) -> Function:
    def shift(x: Tensor, /, *, axes: Any = None) -> Tensor:
        out: Tensor = function(x, axes)
        return out

    shift.__name__, shift.__doc__ = function.__name__, function.__doc__
    return shift


fft = _along_one(core.fft)
ifft = _along_one(core.ifft)
rfft = _along_one(core.rfft)
irfft = _along_one(core.irfft)
hfft = _along_one(core.hfft)
ihfft = _along_one(core.ihfft)
fftn = _along_several(core.fftn)
ifftn = _along_several(core.ifftn)
rfftn = _along_several(core.rfftn)
irfftn = _along_several(core.irfftn)
fftshift = _shift(core.fftshift)
ifftshift = _shift(core.ifftshift)
