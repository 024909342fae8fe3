"""The standard's element-wise functions: GT's own, but that two tensors meet as the standard says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, complex_numbers, creation
from gt.client.ops import elementwise as core
from gt.client.ops.arithmetic import (
    abs,
    ceil,
    cos,
    exp,
    expm1,
    floor,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    logical_not,
    negative,
    positive,
    reciprocal,
    sin,
    sqrt,
    square,
    tan,
    tanh,
    trunc,
)
from gt.client.ops.arithmetic import bitwise_not as bitwise_invert
from gt.client.ops.complex_numbers import conj, imag, real
from gt.client.ops.elementwise import acos, acosh, asin, asinh, atan, atanh, cosh, signbit, sinh
from gt.client.tensor import tensor as tensors
from gt.client.tensor.operands import cast, clone

from .promotion import both, common

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_invert",
    "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clip", "conj", "copysign", "cos",
    "cosh", "divide", "equal", "exp", "expm1", "floor", "floor_divide", "greater", "greater_equal", "hypot", "imag",
    "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative", "nextafter", "not_equal",
    "positive", "pow", "real", "reciprocal", "remainder", "round", "sign", "signbit", "sin", "sinh", "sqrt", "square",
    "subtract", "tan", "tanh", "trunc",
]  # fmt: skip

add = both(arithmetic.add)
atan2 = both(core.atan2)
bitwise_and = both(arithmetic.bitwise_and)
bitwise_left_shift = both(core.bitwise_left_shift)
bitwise_or = both(arithmetic.bitwise_or)
bitwise_right_shift = both(core.bitwise_right_shift)
bitwise_xor = both(arithmetic.bitwise_xor)
copysign = both(core.copysign)
divide = both(arithmetic.divide)
equal = both(arithmetic.eq)
greater = both(arithmetic.greater)
greater_equal = both(arithmetic.greater_equal)
hypot = both(core.hypot)
less = both(arithmetic.less)
less_equal = both(arithmetic.less_equal)
logical_and = both(arithmetic.logical_and)
logical_or = both(arithmetic.logical_or)
logical_xor = both(arithmetic.logical_xor)
maximum = both(arithmetic.maximum)
minimum = both(arithmetic.minimum)
multiply = both(arithmetic.multiply)
nextafter = both(core.nextafter)
not_equal = both(arithmetic.not_equal)
pow = both(arithmetic.pow)
remainder = both(arithmetic.remainder)
subtract = both(arithmetic.subtract)


def logaddexp(x1: Any, x2: Any, /) -> Tensor:
    """`log(eᵃ + eᵇ)`, without overflow."""
    operands = common("logaddexp", x1, x2)
    dtype = next(operand.dtype for operand in operands if isinstance(operand, tensors.Tensor))
    return core.logaddexp(
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
    found = core.sgn(x)
    return arithmetic.where(arithmetic.isnan(x), x, found) if x.dtype.kind == "f" else found
