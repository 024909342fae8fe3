"""Short-time Fourier transforms and the windows that they take: PyTorch's names, arguments and results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, complex_numbers, creation, join_and_pad, shape_ops, special
from gt.client.tensor import emission
from gt.client.tensor.operands import cast, clone, tensor_of
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import as_dtype, float64, get_default_dtype

from . import fft

if TYPE_CHECKING:
    from collections.abc import Callable

    from gt.client.tensor.tensor import Tensor

__all__ = [
    "bartlett_window", "blackman_window", "hamming_window", "hann_window", "istft", "kaiser_window", "stft",
]  # fmt: skip


# windows


def _window(
    name: str, size: int, periodic: bool, dtype: Any, requires_grad: bool, shape: Callable[[Tensor], Tensor]
) -> Tensor:
    """What `shape` makes of the way through the window, from 0 to 1; a periodic one is the longer one without its end."""
    chosen = get_default_dtype() if dtype is None else as_dtype(dtype)
    if size < 0 or chosen.kind != "f":
        raise ValueError(f"{name}: {size} points of {chosen}: it takes a size from 0, and floating-point numbers")
    if size == 1:
        return creation.ones(1, dtype=chosen, requires_grad=requires_grad)
    last = max(size if periodic else size - 1, 1)
    way = arithmetic.div(creation.arange(size, dtype=float64), float(last))
    return creation.finished(cast(shape(way), chosen), requires_grad)


def _cosines(*parts: float) -> Callable[[Tensor], Tensor]:
    """a₀ − a₁ cos 2πt + a₂ cos 4πt − …"""

    def shape(way: Tensor) -> Tensor:
        total = arithmetic.add(arithmetic.mul(way, 0.0), parts[0])
        for k, part in enumerate(parts[1:], 1):
            wave = arithmetic.cos(arithmetic.mul(way, 2 * math.pi * k))
            total = arithmetic.add(total, arithmetic.mul(wave, part if k % 2 == 0 else -part))
        return total

    return shape


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """½ − ½ cos 2πt."""
    return _window("hann_window", window_length, periodic, dtype, requires_grad, _cosines(0.5, 0.5))


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: Any = None,
    layout: Any = None, device: Any = None, pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """α − β cos 2πt."""
    return _window("hamming_window", window_length, periodic, dtype, requires_grad, _cosines(alpha, beta))


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """0.42 − 0.5 cos 2πt + 0.08 cos 4πt, at least 0."""
    return _window(
        "blackman_window", window_length, periodic, dtype, requires_grad,
        lambda way: arithmetic.clamp(_cosines(0.42, 0.5, 0.08)(way), 0.0),
    )  # fmt: skip


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """1 − |2t − 1|, a triangle."""
    return _window(
        "bartlett_window", window_length, periodic, dtype, requires_grad,
        lambda way: arithmetic.sub(1.0, arithmetic.abs(arithmetic.sub(arithmetic.mul(way, 2.0), 1.0))),
    )  # fmt: skip


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: Any = None, layout: Any = None,
    device: Any = None, pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """I₀(β √(1 − (2t − 1)²)) / I₀(β)."""

    def shape(way: Tensor) -> Tensor:
        off = arithmetic.square(arithmetic.sub(arithmetic.mul(way, 2.0), 1.0))
        inner = arithmetic.mul(arithmetic.sqrt(arithmetic.clamp(arithmetic.sub(1.0, off), 0.0)), float(beta))
        return arithmetic.div(special.i0(inner), special.i0(creation.full((), float(beta), dtype=float64)))

    return _window("kaiser_window", window_length, periodic, dtype, requires_grad, shape)


# transforms


def _looking(name: str, window: Any, n_fft: int, win_length: int | None, dtype: Any) -> Tensor:
    """The window, in the middle of as many points as are transformed."""
    size = n_fft if win_length is None else win_length
    if not 0 < size <= n_fft:
        raise ShapeError(f"{name}: a window of 1 to {n_fft} points, not {size}")
    shown = creation.ones(size, dtype=dtype) if window is None else tensor_of(name, window)
    if shown.shape != (size,):
        raise ShapeError(f"{name}: a window of shape ({size},), not {shown.shape}")
    before = (n_fft - size) // 2
    return shown if size == n_fft else join_and_pad.pad(shown, (before, n_fft - size - before))


def stft(
    input: Any, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Any = None,
    center: bool = True, pad_mode: str = "reflect", normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None, align_to_window: bool | None = None,
) -> Tensor:  # fmt: skip
    """The spectra of overlapping stretches of signals (L) or (N, L): (…, frequencies, frames), complex.

    With `center` frames are around the places that they are for. `return_complex=False`: both parts in a last dimension.
    """
    x = tensor_of("stft", input)
    if x.ndim not in (1, 2) or x.dtype.kind not in "fc":
        raise DTypeError(f"stft takes (L) or (N, L) of floating-point or complex numbers, not {x.dtype} of {x.shape}")
    looking = _looking("stft", window, n_fft, win_length, x.dtype)
    real = x.dtype.kind != "c" and looking.dtype.kind != "c"
    if return_complex is None and real:
        raise ValueError("stft: say return_complex=True (or False, for both parts in a last dimension)")
    hop = n_fft // 4 if hop_length is None else hop_length
    single = x.ndim == 1
    x = shape_ops.unsqueeze(x, 0) if single else x
    if center:
        ends = shape_ops.unsqueeze(x, 0)  # PyTorch pads signals as channels
        x = shape_ops.squeeze(join_and_pad.pad(ends, (n_fft // 2, n_fft // 2), mode=pad_mode), 0)
    if hop < 1 or not 0 < n_fft <= x.shape[1]:
        raise ShapeError(f"stft: frames of {n_fft} points, {hop} apart, of a signal of {x.shape[1]} points")
    frames = arithmetic.mul(shape_ops.unfold(x, 1, n_fft, hop), looking)
    half = real if onesided is None else onesided
    if half and not real:
        raise ValueError("stft: of complex numbers all frequencies count: onesided is False")
    norm = "ortho" if normalized else "backward"
    spectra = fft.rfft(frames, norm=norm) if half else fft.fft(frames, norm=norm)
    out = shape_ops.transpose(spectra, 1, 2)
    out = shape_ops.squeeze(out, 0) if single else out
    return complex_numbers.view_as_real(out) if return_complex is False else out


def istft(
    input: Any, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Any = None,
    center: bool = True, normalized: bool = False, onesided: bool | None = None, length: int | None = None,
    return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """The signals of which `stft` gave these spectra: of overlapping stretches the weighted mean (Griffin and Lim, 1984)."""
    x = tensor_of("istft", input)
    if x.ndim not in (2, 3) or x.dtype.kind != "c":
        raise DTypeError(f"istft takes complex (…, frequencies, frames), not {x.dtype} of shape {x.shape}")
    single = x.ndim == 2
    x = shape_ops.unsqueeze(x, 0) if single else x
    half = x.shape[1] != n_fft if onesided is None else onesided
    if half and return_complex:
        raise ValueError("istft: half of the frequencies are those of real signals: return_complex is False")
    if x.shape[1] != (n_fft // 2 + 1 if half else n_fft):
        raise ShapeError(f"istft: {x.shape[1]} frequencies of frames of {n_fft} points")
    hop = n_fft // 4 if hop_length is None else hop_length
    looking = _looking("istft", window, n_fft, win_length, x.dtype.to_real())
    norm, spectra = "ortho" if normalized else "backward", shape_ops.transpose(x, 1, 2)
    if return_complex:
        frames = fft.ifft(spectra, norm=norm)
    else:  # of real signals half of the frequencies say all
        frames = fft.irfft(spectra[..., : n_fft // 2 + 1], n_fft, norm=norm)
    count = frames.shape[1]
    whole = n_fft + hop * (count - 1)
    laid = ((1,), (whole,), (hop,), (1,))
    signal = emission.emit("overlap_add", (arithmetic.mul(frames, looking),), *laid)
    squares = shape_ops.expand(arithmetic.square(looking), (1, count, n_fft))
    weight = emission.emit("overlap_add", (clone(squares),), *laid)
    start = n_fft // 2 if center else 0
    stop = whole - (n_fft // 2 if center else 0) if length is None else start + length
    kept = min(stop, whole)
    out = arithmetic.div(signal[:, start:kept], weight[:, start:kept])
    if stop > whole:
        out = join_and_pad.pad(out, (0, stop - whole))
    return shape_ops.squeeze(out, 0) if single else out
