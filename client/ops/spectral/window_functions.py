"""Windows for spectra: PyTorch's `signal.windows`, symmetric unless `sym=False` leaves out the last place."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, creation, special
from gt.errors import DTypeError
from gt.ir.dtypes import HALF_DTYPES, as_dtype, get_default_dtype

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming", "hann",
    "kaiser", "nuttall",
]  # fmt: skip


def _places(name: str, M: int, sym: bool, dtype: Any) -> tuple[Tensor, int]:
    """The numbers from 0 to M − 1, and how far the last place would be."""
    chosen = get_default_dtype() if dtype is None else as_dtype(dtype)
    if chosen.kind != "f" or chosen in HALF_DTYPES:
        raise DTypeError(f"{name}: a window is of float32 or float64, not {chosen}")
    if M < 0:
        raise ValueError(f"{name}: a window has at least 0 places, not {M}")
    return creation.arange(M, dtype=chosen), max(M - 1 if sym else M, 1)


def _finished(window: Tensor, M: int, requires_grad: bool) -> Tensor:
    """A single place is 1."""
    out = creation.ones_like(window) if M == 1 else window
    return out.detach().requires_grad_() if requires_grad else out


def general_cosine(
    M: int, *, a: Iterable[float], sym: bool = True, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """The sum of cosines with these weights, of alternating signs."""
    weights = list(a)
    if not weights:
        raise ValueError("general_cosine: at least one weight")
    k, last = _places("general_cosine", M, sym, dtype)
    angle = arithmetic.mul(k, 2 * math.pi / last)
    total = creation.full(k.shape, weights[0], dtype=k.dtype)
    for number, weight in enumerate(weights[1:], start=1):
        wave = arithmetic.cos(arithmetic.mul(angle, float(number)))
        total = arithmetic.add(total, arithmetic.mul(wave, (-1) ** number * weight))
    return _finished(total, M, requires_grad)


def general_hamming(M: int, *, alpha: float = 0.54, sym: bool = True, **options: Any) -> Tensor:
    """α − (1 − α) cos."""
    return general_cosine(M, a=[alpha, 1.0 - alpha], sym=sym, **options)


def hamming(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Hamming's window: 0.54 − 0.46 cos."""
    return general_hamming(M, sym=sym, **options)


def hann(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Hann's window: ½ − ½ cos."""
    return general_hamming(M, alpha=0.5, sym=sym, **options)


def blackman(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Blackman's window, of three cosines."""
    return general_cosine(M, a=[0.42, 0.5, 0.08], sym=sym, **options)


def nuttall(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Nuttall's window, of four cosines."""
    return general_cosine(M, a=[0.3635819, 0.4891775, 0.1365995, 0.0106411], sym=sym, **options)


def bartlett(
    M: int, *, sym: bool = True, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A triangle, 0 at both ends."""
    k, last = _places("bartlett", M, sym, dtype)
    side = arithmetic.abs(arithmetic.sub(arithmetic.mul(k, 2 / last), 1.0))
    return _finished(arithmetic.sub(1.0, side), M, requires_grad)


def cosine(
    M: int, *, sym: bool = True, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Half a wave of the sine."""
    k, last = _places("cosine", M, sym, dtype)
    return _finished(arithmetic.sin(arithmetic.mul(arithmetic.add(k, 0.5), math.pi / (last + 1))), M, requires_grad)


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, dtype: Any = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """It falls by e over `tau` places to both sides of the centre."""
    if tau <= 0:
        raise ValueError(f"exponential: tau is greater than 0, not {tau}")
    if sym and center is not None:
        raise ValueError("exponential: a symmetric window has its centre in the middle: leave center")
    k, last = _places("exponential", M, sym, dtype)
    middle = last / 2 if center is None else float(center)
    return _finished(
        arithmetic.exp(arithmetic.mul(arithmetic.abs(arithmetic.sub(k, middle)), -1 / tau)), M, requires_grad
    )


def gaussian(
    M: int, *, std: float = 1.0, sym: bool = True, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A normal density, 1 in the middle."""
    if std <= 0:
        raise ValueError(f"gaussian: std is greater than 0, not {std}")
    k, last = _places("gaussian", M, sym, dtype)
    apart = arithmetic.mul(arithmetic.sub(k, last / 2), 1 / (std * math.sqrt(2)))
    return _finished(arithmetic.exp(arithmetic.neg(arithmetic.square(apart))), M, requires_grad)


def kaiser(
    M: int, *, beta: float = 12.0, sym: bool = True, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Kaiser's window, of Bessel functions."""
    if beta < 0:
        raise ValueError(f"kaiser: beta is at least 0, not {beta}")
    k, last = _places("kaiser", M, sym, dtype)
    side = arithmetic.sub(arithmetic.mul(k, 2 / last), 1.0)
    depth = arithmetic.sqrt(arithmetic.clamp(arithmetic.sub(1.0, arithmetic.square(side)), min=0.0))
    top = special.i0(creation.full((), float(beta), dtype=k.dtype))
    return _finished(arithmetic.div(special.i0(arithmetic.mul(depth, float(beta))), top), M, requires_grad)
