"""Fourier transforms: PyTorch's `fft` in names, arguments and results.

Three instructions transform along one axis, without a factor: complex numbers in either direction, real numbers to the first
half of their spectrum, and such a half back. Several dimensions are one after the other; the factor comes last. An axis
that is transformed is whole, every other may stay cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from gt.client.ops import arithmetic, complex_numbers, creation, join_and_pad, shape_ops
from gt.client.tensor import emission
from gt.client.tensor.operands import cast, tensor_of
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import HALF_DTYPES, float32, get_default_dtype

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

_LAST_TWO: Final = (-2, -1)
_TURNED: Final = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}
"""What a norm is called from the other direction."""


# operands, sizes, factors


def _operand(name: str, input: Any) -> Tensor:
    """Floating-point or complex numbers, at least of single precision."""
    x = tensor_of(name, input)
    if x.dtype.kind in "bi":
        return cast(x, get_default_dtype())
    return cast(x, float32) if x.dtype in HALF_DTYPES else x


def _complex(name: str, input: Any) -> Tensor:
    x = _operand(name, input)
    return cast(x, x.dtype.to_complex())


def _real(name: str, input: Any) -> Tensor:
    x = _operand(name, input)
    if x.dtype.kind == "c":
        raise DTypeError(f"{name} takes real numbers, not {x.dtype}: see {name.replace('ih', '').replace('r', '')}")
    return x


def _sized(name: str, x: Tensor, axis: int, size: int) -> Tensor:
    """`x` cut, or filled up with zeros, to a size along an axis."""
    have = x.shape[axis]
    if size < 1:
        raise ShapeError(f"{name}: {size} points along dimension {axis} of shape {x.shape}: it takes at least one")
    if size < have:
        return emission.emit("slice", (x, 0), (axis,), (size,), (1,))
    if size > have:
        nothing = emission.emit("full", (0.0,), (*x.shape[:axis], size - have, *x.shape[axis + 1 :]), x.dtype)
        return emission.emit("cat", (x, nothing), axis)
    return x


def _scaled(name: str, x: Tensor, count: int, norm: str | None, *, inverse: bool) -> Tensor:
    """A result times the factor that `norm` puts on this direction."""
    if norm not in _TURNED:
        raise ValueError(f"{name}: norm is 'backward', 'ortho' or 'forward', not {norm!r}")
    if norm == "ortho":
        return arithmetic.mul(x, 1 / math.sqrt(count))
    return arithmetic.mul(x, 1 / count) if inverse == (norm != "forward") else x


def _dimensions(name: str, x: Tensor, s: Any, dim: Any) -> tuple[list[int], list[int | None]]:
    """The axes that are transformed and the size asked for along each; None is the size that it has."""
    given = None if s is None else [s] if isinstance(s, int) else list(s)
    if dim is None:
        axes = list(range(x.ndim if given is None else len(given)))
        dim = [axis - len(axes) for axis in axes]
    axes = [shape_ops.axis_of(name, axis, x.shape) for axis in ([dim] if isinstance(dim, int) else dim)]
    if len(set(axes)) != len(axes) or (given is not None and len(given) != len(axes)):
        raise ShapeError(
            f"{name}: sizes {given} along dimensions {axes} of shape {x.shape}: one for each, each but once"
        )
    asked = [-1] * len(axes) if given is None else given
    return axes, [None if size == -1 else size for size in asked]


# along one axis, without a factor


def _turn(name: str, x: Tensor, axis: int, size: int | None, *, inverse: bool) -> Tensor:
    return emission.emit("fft", (_sized(name, x, axis, x.shape[axis] if size is None else size),), axis, inverse)


def _half(name: str, x: Tensor, axis: int, size: int | None) -> Tensor:
    return emission.emit("rfft", (_sized(name, x, axis, x.shape[axis] if size is None else size),), axis)


def _whole(name: str, x: Tensor, axis: int, size: int) -> Tensor:
    if size < 1:
        raise ShapeError(f"{name}: {size} points along dimension {axis} of shape {x.shape}: it takes at least one")
    return emission.emit("irfft", (_sized(name, x, axis, size // 2 + 1),), axis, size)


def _points(x: Tensor, axes: Sequence[int]) -> int:
    return math.prod(x.shape[axis] for axis in axes)


# several dimensions


def _fftn(name: str, input: Any, s: Any, dim: Any, norm: str | None, *, inverse: bool) -> Tensor:
    x = _complex(name, input)
    axes, sizes = _dimensions(name, x, s, dim)
    for axis, size in zip(reversed(axes), reversed(sizes), strict=True):
        x = _turn(name, x, axis, size, inverse=inverse)
    return _scaled(name, x, _points(x, axes), norm, inverse=inverse)


def _halved(name: str, input: Any, s: Any, dim: Any, norm: str | None, *, inverse: bool) -> Tensor:
    """Real numbers to half a spectrum, the last dimension first; `inverse` as the spectrum of what turns the other way."""
    x = _real(name, input)
    axes, sizes = _dimensions(name, x, s, dim)
    if not axes:
        raise ShapeError(f"{name}: no dimension to transform of shape {x.shape}")
    last = x.shape[axes[-1]] if sizes[-1] is None else sizes[-1]
    x = _half(name, x, axes[-1], last)
    x = complex_numbers.conj_physical(x) if inverse else x
    for axis, size in zip(axes[-2::-1], sizes[-2::-1], strict=True):
        x = _turn(name, x, axis, size, inverse=inverse)
    return _scaled(name, x, _points(x, axes[:-1]) * last, norm, inverse=inverse)


def _restored(name: str, input: Any, s: Any, dim: Any, norm: str | None, *, inverse: bool) -> Tensor:
    """Half a spectrum to real numbers, the last dimension last."""
    x = _complex(name, input)
    axes, sizes = _dimensions(name, x, s, dim)
    if not axes:
        raise ShapeError(f"{name}: no dimension to transform of shape {x.shape}")
    last = 2 * (x.shape[axes[-1]] - 1) if sizes[-1] is None else sizes[-1]
    for axis, size in zip(axes[:-1], sizes[:-1], strict=True):
        x = _turn(name, x, axis, size, inverse=inverse)
    x = _whole(name, x if inverse else complex_numbers.conj_physical(x), axes[-1], last)
    return _scaled(name, x, _points(x, axes), norm, inverse=inverse)


def fft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The Fourier transform along one dimension, cut or filled up with zeros to `n` first.

    `norm`: 'backward' (1/n on the inverse, the default), 'ortho' (1/√n on both) or 'forward' (1/n here).
    """
    return _fftn("fft", input, n, dim, norm, inverse=False)


def ifft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `fft`."""
    return _fftn("ifft", input, n, dim, norm, inverse=True)


def rfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Of real numbers the first n // 2 + 1 of the values of `fft`, which say the others."""
    return _halved("rfft", input, n, dim, norm, inverse=False)


def irfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `rfft`, real; `n` points, by default 2 · (size − 1)."""
    return _restored("irfft", input, n, dim, norm, inverse=True)


def hfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The real transform of a Hermitian signal, of which `input` is the first half."""
    return _restored("hfft", input, n, dim, norm, inverse=False)


def ihfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `hfft`: the first half of a Hermitian signal."""
    return _halved("ihfft", input, n, dim, norm, inverse=True)


def fftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """`fft` along several dimensions: `dim`, or the last ones that `s` gives sizes for, or all."""
    return _fftn("fftn", input, s, dim, norm, inverse=False)


def ifftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of `fftn`."""
    return _fftn("ifftn", input, s, dim, norm, inverse=True)


def rfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """`rfft` along the last of several dimensions and `fft` along the others."""
    return _halved("rfftn", input, s, dim, norm, inverse=False)


def irfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of `rfftn`."""
    return _restored("irfftn", input, s, dim, norm, inverse=True)


def hfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """`hfft` along the last of several dimensions and `fft` along the others."""
    return _restored("hfftn", input, s, dim, norm, inverse=False)


def ihfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of `hfftn`."""
    return _halved("ihfftn", input, s, dim, norm, inverse=True)


def fft2(input: Any, s: Any = None, dim: Any = _LAST_TWO, norm: str | None = None) -> Tensor:
    """`fftn` along the last two dimensions."""
    return _fftn("fft2", input, s, dim, norm, inverse=False)


def ifft2(input: Any, s: Any = None, dim: Any = _LAST_TWO, norm: str | None = None) -> Tensor:
    """`ifftn` along the last two dimensions."""
    return _fftn("ifft2", input, s, dim, norm, inverse=True)


def rfft2(input: Any, s: Any = None, dim: Any = _LAST_TWO, norm: str | None = None) -> Tensor:
    """`rfftn` along the last two dimensions."""
    return _halved("rfft2", input, s, dim, norm, inverse=False)


def irfft2(input: Any, s: Any = None, dim: Any = _LAST_TWO, norm: str | None = None) -> Tensor:
    """`irfftn` along the last two dimensions."""
    return _restored("irfft2", input, s, dim, norm, inverse=True)


def hfft2(input: Any, s: Any = None, dim: Any = _LAST_TWO, norm: str | None = None) -> Tensor:
    """`hfftn` along the last two dimensions."""
    return _restored("hfft2", input, s, dim, norm, inverse=False)


def ihfft2(input: Any, s: Any = None, dim: Any = _LAST_TWO, norm: str | None = None) -> Tensor:
    """`ihfftn` along the last two dimensions."""
    return _halved("ihfft2", input, s, dim, norm, inverse=True)


# frequencies


def _shifted(name: str, input: Any, dim: Any, shift: Callable[[int], int]) -> Tensor:
    x = tensor_of(name, input)
    listed = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = tuple(shape_ops.axis_of(name, axis, x.shape) for axis in listed)
    return join_and_pad.roll(x, tuple(shift(x.shape[axis]) for axis in axes), axes) if axes else x


def fftshift(input: Any, dim: Any = None) -> Tensor:
    """The frequencies in order, 0 in the middle, along `dim` or all dimensions."""
    return _shifted("fftshift", input, dim, lambda size: size // 2)


def ifftshift(input: Any, dim: Any = None) -> Tensor:
    """The inverse of `fftshift`."""
    return _shifted("ifftshift", input, dim, lambda size: -(size // 2))


def fftfreq(
    n: int, d: float = 1.0, *, dtype: Any = None, requires_grad: bool = False, device: Any = None, pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:  # fmt: skip
    """The frequencies of `fft` of `n` points `d` apart: 0, 1, …, then the negative ones, over n · d."""
    above, below = creation.arange((n + 1) // 2), creation.arange(-(n // 2), 0)
    return _frequencies(join_and_pad.cat([above, below]), n * d, dtype, requires_grad)


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: Any = None, requires_grad: bool = False, device: Any = None, pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:  # fmt: skip
    """The frequencies of `rfft` of `n` points `d` apart: 0, 1, …, n // 2, over n · d."""
    return _frequencies(creation.arange(n // 2 + 1), n * d, dtype, requires_grad)


def _frequencies(places: Tensor, length: float, dtype: Any, requires_grad: bool) -> Tensor:
    if not length:
        raise ValueError("frequencies of points: neither their number nor their distance is 0")
    found = cast(places, get_default_dtype() if dtype is None else dtype)
    return creation.finished(arithmetic.mul(found, 1 / length), requires_grad)
