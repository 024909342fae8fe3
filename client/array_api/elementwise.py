"""The standard's element-wise functions that differ from GT's by more than how two tensors meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, complex_numbers, creation, elementwise
from gt.client.ops.complex_numbers import imag, real
from gt.client.tensor import tensor as tensors
from gt.client.tensor.operands import cast, clone

from .promotion import common

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["clip", "floor_divide", "logaddexp", "round", "sign"]


def logaddexp(x1: Any, x2: Any, /) -> Tensor:
    """`log(eᵃ + eᵇ)`, without overflow."""
    operands = common("logaddexp", x1, x2)
    dtype = next(operand.dtype for operand in operands if isinstance(operand, tensors.Tensor))
    return elementwise.logaddexp(
        *(x if isinstance(x, tensors.Tensor) else creation.full((), x, dtype=dtype) for x in operands)
    )


def floor_divide(x1: Any, x2: Any, /) -> Tensor:
    """`floor(x1 / x2)`: the standard prefers it to Python's `//`, which differs where infinities are."""
    return arithmetic.floor_of_quotient(*common("floor_divide", x1, x2))


def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:
    """`x` kept within bounds, in the dtype of `x`."""
    if min is None and max is None:
        return clone(x)
    bounds = [cast(bound, x.dtype) if isinstance(bound, tensors.Tensor) else bound for bound in (min, max)]
    return arithmetic.clamp(x, *bounds)


def round(x: Tensor, /) -> Tensor:
    """The nearest integers, halves to even; of complex numbers both parts."""
    if x.dtype.kind == "c":
        return complex_numbers.complex(arithmetic.round(real(x)), arithmetic.round(imag(x)))
    return arithmetic.round(x)


def sign(x: Tensor, /) -> Tensor:
    """−1, 0 or 1, and NaN for NaN, where PyTorch has 0; of complex numbers `z / |z|`, and 0 at 0."""
    found = elementwise.sgn(x)
    return arithmetic.where(arithmetic.isnan(x), x, found) if x.dtype.kind == "f" else found
