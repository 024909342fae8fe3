"""Element-wise functions beyond arithmetic: PyTorch's mathematical and bitwise functions, and what is composed of them.

A function of one operand that is one instruction is a line of a table. How operands meet is in `arithmetic.py`, activations
are in `gt.client.functional.activations`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gt.client.tensor import emission, operands
from gt.client.tensor.operands import (
    binary,
    cast,
    clone,
    convert,
    dtype_of,
    floating,
    meet,
    meet_float,
    of_kinds,
    tensor_of,
)
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError
from gt.ir.dtype_limits import finfo
from gt.ir.dtypes import HALF_DTYPES, complex128, float32, float64, get_default_dtype, int32
from gt.ir.ops import OPS

from . import arithmetic, creation
from .arithmetic import add, div, eq, in_single, isnan, logical_and, logical_or, mul, sub, where

__all__ = [
    "acos", "acosh", "addcdiv", "addcmul", "angle", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2",
    "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_left_shift", "bitwise_right_shift", "clamp_max",
    "clamp_min", "copysign", "cosh", "deg2rad", "digamma", "erf", "erfc", "erfinv", "exp2", "fix", "float_power",
    "fmax", "fmin", "fmod", "frac", "frexp", "gcd", "heaviside", "hypot", "isneginf", "isposinf", "isreal", "lcm",
    "ldexp", "lerp", "lgamma", "log_sigmoid", "logaddexp", "logaddexp2", "logit", "mvlgamma", "nan_to_num",
    "nextafter", "polygamma", "rad2deg", "sgn", "signbit", "sinc", "sinh", "xlog1py", "xlogy",
]  # fmt: skip


# one operand, one instruction

Function = Callable[[Any], "Tensor"]


def _unary(op: str) -> Function:
    """The function that is this instruction; integers are cast to the default floating dtype first."""

    def function(input: Any) -> Tensor:
        x = tensor_of(op, input)
        return emission.emit_unary(op, x if x._value.spec.dtype.kind in "fc" else cast(x, get_default_dtype()))

    function.__name__ = function.__qualname__ = op
    function.__doc__ = OPS[op].doc
    return function


exp2: Function = _unary("exp2")
asin: Function = _unary("asin")
arcsin: Function = asin
acos: Function = _unary("acos")
arccos: Function = acos
atan: Function = _unary("atan")
arctan: Function = atan
sinh: Function = _unary("sinh")
cosh: Function = _unary("cosh")
asinh: Function = _unary("asinh")
arcsinh: Function = asinh
acosh: Function = _unary("acosh")
arccosh: Function = acosh
atanh: Function = _unary("atanh")
arctanh: Function = atanh
erf: Function = _unary("erf")
erfc: Function = _unary("erfc")
erfinv: Function = _unary("erfinv")
lgamma: Function = _unary("lgamma")
digamma: Function = _unary("digamma")


def signbit(input: Any) -> Tensor:
    """Whether `input` has a minus sign, element by element; −0.0 has one."""
    x = tensor_of("signbit", input)
    return emission.emit("signbit", (x,)) if x.dtype.kind == "f" else arithmetic.lt(x, 0)


# one operand, composed


def frac(input: Any) -> Tensor:
    """The fractional part of `input`, with its sign."""
    x = tensor_of("frac", input)
    if x.dtype.kind != "f":
        raise DTypeError(f"frac takes floating-point numbers, not {x.dtype}")
    return sub(x, arithmetic.trunc(x))


def deg2rad(input: Any) -> Tensor:
    """Degrees in radians."""
    return mul(tensor_of("deg2rad", input), math.pi / 180)


def rad2deg(input: Any) -> Tensor:
    """Radians in degrees."""
    return mul(tensor_of("rad2deg", input), 180 / math.pi)


def sinc(input: Any) -> Tensor:
    """`sin(πx) / (πx)`, and 1 at 0."""
    x = mul(tensor_of("sinc", input), math.pi)
    zero = eq(x, 0)
    safe = where(zero, 1.0, x)
    return where(zero, 1.0, div(arithmetic.sin(safe), safe))


def logit(input: Any, eps: float | None = None) -> Tensor:
    """`log(x / (1 − x))`, the inverse of the sigmoid; `eps` keeps `x` that far from 0 and 1."""
    x = floating("logit", input)
    if eps is not None:
        x = arithmetic.clamp(x, eps, 1 - eps)
    return arithmetic.log(div(x, sub(1, x)))


MAX_FACTORIAL: Final = 170
"""The largest number whose factorial is a float64."""


def polygamma(n: int, input: Any) -> Tensor:
    """The n-th derivative of `digamma`."""
    x = floating("polygamma", input)
    if n < 0:
        raise ValueError(f"polygamma: a derivative is the 0th or a later one, not the {n}th")
    if n == 0:
        return digamma(x)
    if n == 1:  # reflected: the series holds for x > 0 alone
        low = arithmetic.lt(x, 0.5)
        tail = emission.emit("zeta", (2.0, where(low, sub(1, x), x)))
        turned = sub(arithmetic.square(div(math.pi, arithmetic.sin(mul(where(low, x, 0.5), math.pi)))), tail)
        return where(low, turned, tail)
    factor = (float(math.factorial(n)) if n <= MAX_FACTORIAL else math.inf) * (1.0 if n % 2 else -1.0)
    return mul(emission.emit("zeta", (float(n + 1), x)), factor)


def mvlgamma(input: Any, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension `p`."""
    x = floating("mvlgamma", input)
    if p < 1:
        raise ValueError(f"mvlgamma: a dimension of at least 1, not {p}")
    operands.unrolled("mvlgamma", p)
    total = lgamma(x)
    for j in range(1, p):
        total = add(total, lgamma(sub(x, j / 2)))
    return add(total, p * (p - 1) / 4 * math.log(math.pi))


def log_sigmoid(input: Any) -> Tensor:
    """`log(1 / (1 + e⁻ˣ))`, without overflow."""
    x = floating("log_sigmoid", input)
    x = arithmetic.minimum(x, 800.0)  # from where on it is 0; of an infinity the difference below is no number
    size = arithmetic.abs(x)
    below = sub(mul(x, 0.5), mul(size, 0.5))  # the smaller of x and 0, with the slope ½ between them
    return sub(below, arithmetic.log1p(arithmetic.exp(arithmetic.neg(size))))


def sgn(input: Any) -> Tensor:
    """−1, 0 or 1, 0 for NaN; of complex numbers `z / |z|`, and 0 at 0."""
    x = tensor_of("sgn", input)
    if x.dtype.kind != "c":
        return arithmetic.sign(x)
    size = arithmetic.abs(x)
    return where(eq(size, 0), 0.0, div(x, where(eq(size, 0), 1.0, size)))


def angle(input: Any) -> Tensor:
    """The angle of complex numbers, from −π to π; of real ones 0, or π below 0; NaN stays NaN."""
    x = tensor_of("angle", input)
    if x.dtype.kind == "c":
        return emission.emit("atan2", (emission.emit("imag", (x,)), emission.emit("real", (x,))))
    x = x if x.dtype.kind == "f" else cast(x, get_default_dtype())
    return where(arithmetic.lt(x, 0), math.pi, where(isnan(x), x, 0.0))


def isposinf(input: Any) -> Tensor:
    """Where `input` is +∞."""
    x = of_kinds("isposinf", input, "bif")
    return eq(x, math.inf) if x.dtype.kind == "f" else creation.full(x.shape, False)


def isneginf(input: Any) -> Tensor:
    """Where `input` is −∞."""
    x = of_kinds("isneginf", input, "bif")
    return eq(x, -math.inf) if x.dtype.kind == "f" else creation.full(x.shape, False)


def isreal(input: Any) -> Tensor:
    """Where the imaginary part of `input` is 0: everywhere, for what is not complex."""
    x = tensor_of("isreal", input)
    return eq(emission.emit("imag", (x,)), 0) if x.dtype.kind == "c" else creation.full(x.shape, True)


def nan_to_num(
    input: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """`nan` (0) in place of NaN, and in place of ±∞ the numbers given, or the largest that the dtype has."""
    x = tensor_of("nan_to_num", input)
    if x.dtype.kind in "bi":
        return clone(x)
    if x.dtype.kind == "c":
        parts = [nan_to_num(emission.emit(part, (x,)), nan, posinf, neginf) for part in ("real", "imag")]
        return emission.emit("complex", tuple(parts))
    largest = finfo(x.dtype).max
    out = where(isnan(x), 0.0 if nan is None else float(nan), x)
    out = where(eq(out, math.inf), largest if posinf is None else float(posinf), out)
    return where(eq(out, -math.inf), -largest if neginf is None else float(neginf), out)


class Frexp(NamedTuple):
    """The result of `frexp`."""

    mantissa: Tensor
    exponent: Tensor


def frexp(input: Any) -> Frexp:
    """A mantissa, from ½ up to 1 in size, and the power of two, int32, with which it makes `input`."""
    given = x = tensor_of("frexp", input)
    if x.dtype.kind != "f":
        raise DTypeError(f"frexp takes floating-point numbers, not {x.dtype}")
    x = cast(x, float32) if x.dtype in HALF_DTYPES else x
    size = arithmetic.abs(x.detach())
    plain = logical_and(arithmetic.isfinite(size), arithmetic.ne(size, 0))
    power = arithmetic.floor(arithmetic.log2(where(plain, size, 0.5)))  # perhaps one off, next to a power of two
    half = arithmetic.floor(mul(power, 0.5))  # twice half of it, which does not overflow
    scaled = div(div(size, exp2(half)), exp2(sub(power, half)))
    power = add(power, where(arithmetic.ge(scaled, 2.0), 2.0, where(arithmetic.lt(scaled, 1.0), 0.0, 1.0)))
    power = where(plain, power, 0.0)
    half = arithmetic.floor(mul(power, 0.5))
    return Frexp(cast(div(div(x, exp2(half)), exp2(sub(power, half))), given.dtype), cast(power, int32))


# two operands


def _floating_pair(op: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands that meet in a floating dtype."""
    first, second = meet_float(op, a, b)
    return first, second


def atan2(input: Any, other: Any) -> Tensor:
    """The angle of the point (`other`, `input`), from −π to π."""
    return emission.emit("atan2", _floating_pair("atan2", input, other))


def hypot(input: Any, other: Any) -> Tensor:
    """`√(input² + other²)`, without overflow on the way."""
    return emission.emit("hypot", _floating_pair("hypot", input, other))


def copysign(input: Any, other: Any) -> Tensor:
    """`|input|` with the sign of `other`."""
    return emission.emit("copysign", _floating_pair("copysign", input, other))


def nextafter(input: Any, other: Any) -> Tensor:
    """The number next to `input` on the way to `other`."""
    return binary("nextafter", input, other)


def fmod(input: Any, other: Any) -> Tensor:
    """The remainder of `input / other`, with the sign of `input`, as C's fmod."""
    return binary("fmod", input, other)


def gcd(input: Any, other: Any) -> Tensor:
    """The greatest common divisor of integers, at least 0."""
    return binary("gcd", tensor_of("gcd", input), tensor_of("gcd", other))


def lcm(input: Any, other: Any) -> Tensor:
    """The least common multiple of integers, at least 0."""
    input, other = tensor_of("lcm", input), tensor_of("lcm", other)
    common = gcd(input, other)
    part = arithmetic.floor_divide(input, where(eq(common, 0), 1, common))
    return arithmetic.abs(mul(part, other))


def _chosen(op: str, input: Any, other: Any) -> Tensor:
    a, b = meet(op, tensor_of(op, input), tensor_of(op, other))
    if a.dtype.kind != "f":
        return binary({"fmax": "maximum", "fmin": "minimum"}[op], a, b)
    first = logical_or(arithmetic.ge(a, b) if op == "fmax" else arithmetic.le(a, b), isnan(b))
    return where(first, a, b)


def fmax(input: Any, other: Any) -> Tensor:
    """The larger of each pair; a number wins against NaN."""
    return _chosen("fmax", input, other)


def fmin(input: Any, other: Any) -> Tensor:
    """The smaller of each pair; a number wins against NaN."""
    return _chosen("fmin", input, other)


def _log_sum(op: str, input: Any, other: Any, power: Any, log: Any) -> Tensor:
    a, b = _floating_pair(op, tensor_of(op, input), tensor_of(op, other))
    if a.dtype.kind == "c":  # the one with the larger real part comes out of the sum
        first = arithmetic.ge(emission.emit("real", (a.detach(),)), emission.emit("real", (b.detach(),)))
        top, low = where(first, a, b), where(first, b, a)
        return add(top, log(power(sub(low, top))))
    same = logical_and(eq(a, b), arithmetic.isinf(a))  # of equal infinities the difference is no number
    apart = sub(where(same, 0.0, a), where(same, 0.0, b))
    return add(arithmetic.maximum(a, b), log(power(arithmetic.neg(arithmetic.abs(apart)))))


def logaddexp(input: Any, other: Any) -> Tensor:
    """`log(eᵃ + eᵇ)`, without overflow."""
    return _log_sum("logaddexp", input, other, arithmetic.exp, arithmetic.log1p)


def logaddexp2(input: Any, other: Any) -> Tensor:
    """`log₂(2ᵃ + 2ᵇ)`, without overflow."""
    return _log_sum("logaddexp2", input, other, exp2, lambda x: div(arithmetic.log1p(x), math.log(2)))


def _times_log(op: str, input: Any, other: Any, log: Any, one: float) -> Tensor:
    """`input · log(other)`, and 0 where `input` is 0 and `log(other)` no number to multiply; log(one) is 0."""
    pair = _floating_pair(op, input, other)
    dtype = next(x.dtype for x in pair if isinstance(x, Tensor))
    a, b = (x if isinstance(x, Tensor) else creation.full((), x, dtype=dtype) for x in pair)
    nothing = logical_and(eq(a, 0), logical_or(arithmetic.le(b, one - 1), eq(b, math.inf)))
    return mul(a, log(where(nothing, one, b)))


def xlogy(input: Any, other: Any) -> Tensor:
    """`input · log(other)`, and 0 where `input` is 0."""
    return _times_log("xlogy", input, other, arithmetic.log, 1.0)


def xlog1py(input: Any, other: Any) -> Tensor:
    """`input · log(1 + other)`, and 0 where `input` is 0."""
    return _times_log("xlog1py", input, other, arithmetic.log1p, 0.0)


def heaviside(input: Any, values: Any) -> Tensor:
    """0 below 0, 1 above, and `values` at 0."""
    x, at = tensor_of("heaviside", input), tensor_of("heaviside", values)
    if x.dtype is not at.dtype:
        raise DTypeError(f"heaviside: {x.dtype} and {at.dtype} are not one dtype: cast first")
    return where(eq(x, 0), at, cast(arithmetic.gt(x, 0), x.dtype))


def ldexp(input: Any, other: Any) -> Tensor:
    """`input · 2^other`."""
    return mul(tensor_of("ldexp", input), arithmetic.pow(2.0, tensor_of("ldexp", other)))


def float_power(input: Any, exponent: Any) -> Tensor:
    """`input` to the power `exponent`, in float64, or in complex128 where one of them is complex."""
    known = [operands.plain("float_power", x) for x in (input, exponent)]
    wide = complex128 if dtype_of("float_power", known).kind == "c" else float64
    a, b = (convert("float_power", x, wide) for x in known)
    return arithmetic.pow(a, b)


def _shifted(op: str, input: Any, other: Any) -> Tensor:
    a, b = meet(op, input, other)
    dtype = (a if isinstance(a, Tensor) else b).dtype
    if dtype.kind != "i":
        raise DTypeError(f"bitwise_{op} takes integers, not {dtype}")
    return emission.emit(op, (a, b))


def bitwise_left_shift(input: Any, other: Any) -> Tensor:
    """`input << other`, for integers."""
    return _shifted("left_shift", input, other)


def bitwise_right_shift(input: Any, other: Any) -> Tensor:
    """`input >> other`, for integers: the sign stays."""
    return _shifted("right_shift", input, other)


# three operands


def lerp(input: Any, end: Any, weight: Any) -> Tensor:
    """From `input` (weight 0) on the straight line to `end` (weight 1); exact at both."""
    a, b = meet("lerp", of_kinds("lerp", input, "fc"), of_kinds("lerp", end, "fc"))
    way = sub(b, a)
    if not isinstance(weight, Tensor):
        near = abs(weight) < 0.5
        return add(a, mul(way, weight)) if near else sub(b, mul(way, 1 - weight))
    near = arithmetic.lt(arithmetic.abs(weight.detach()), 0.5)
    return where(near, add(a, mul(way, weight)), sub(b, mul(way, sub(1, weight))))


@in_single
def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Tensor:
    """`input + value · tensor1 · tensor2`."""
    product = mul(tensor_of("addcmul", tensor1), tensor_of("addcmul", tensor2))
    if product.dtype.kind == "b":
        raise DTypeError("addcmul takes numbers, not bool: cast them first")
    return add(tensor_of("addcmul", input), product if value == 1 else mul(product, value))


@in_single
def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Tensor:
    """`input + value · tensor1 / tensor2`."""
    quotient = div(tensor_of("addcdiv", tensor1), tensor_of("addcdiv", tensor2))
    return add(tensor_of("addcdiv", input), quotient if value == 1 else mul(quotient, value))


def clamp_min(input: Any, min: Any) -> Tensor:
    """`input`, and `min` where it is below."""
    return arithmetic.clamp(input, min)


def clamp_max(input: Any, max: Any) -> Tensor:
    """`input`, and `max` where it is above."""
    return arithmetic.clamp(input, None, max)


fix: Function = arithmetic.trunc
arctan2: Callable[[Any, Any], Tensor] = atan2
