"""Element-wise functions: PyTorch's names, PyTorch's promotion, one instruction each wherever one exists.

Operands meet here and leave with one dtype: tensors are cast, Python scalars take the kind of the result. Whatever
reduces, moves or joins elements is elsewhere.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from typing import Any, Final, overload

from gt.client.tensor import emission
from gt.client.tensor.operands import (
    binary,
    cast,
    clone,
    convert,
    dtype_of,
    float_unary,
    meet,
    meet_float,
    of_kinds,
    plain,
    tensor_of,
)
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import (
    HALF_DTYPES,
    DType,
    bool_,
    float32,
    get_conventions,
    int64,
    result_type,
    scalar_dtype,
)

from . import creation
from .nonzero_indices import nonzero_columns

__all__ = [
    "abs", "absolute", "add", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp",
    "clip", "cos", "div", "divide", "eq", "exp", "expm1", "floor", "floor_divide", "ge", "greater",
    "greater_equal", "gt", "isclose", "isfinite", "isinf", "isnan", "le", "less", "less_equal", "log", "log10",
    "log1p", "log2", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "masked_fill", "maximum",
    "minimum", "mul", "multiply", "ne", "neg", "negative", "not_equal", "positive", "pow", "reciprocal", "relu",
    "remainder", "round", "rsqrt", "rsub", "sigmoid", "sign", "sin", "sqrt", "square", "sub", "subtract", "tan",
    "tanh", "true_divide", "trunc", "where",
]  # fmt: skip


def in_single(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that computes half precision in float32 and rounds its result: what it meets on the way (squares, sums,
    exponentials) may be beyond what float16 holds."""

    @functools.wraps(function)
    def wide(*args: Any, **options: Any) -> Tensor:
        tensors = [x for x in (*args, *options.values()) if isinstance(x, Tensor)]
        if not builtins.any(x._value.spec.dtype in HALF_DTYPES for x in tensors):
            return function(*args, **options)
        dtype = result_type([(x._value.spec.dtype, x.ndim == 0) for x in tensors], [])
        args = tuple([_widened(x) for x in args])
        return cast(function(*args, **{name: _widened(x) for name, x in options.items()}), dtype)

    return wide


def _widened(operand: Any) -> Any:
    half = isinstance(operand, Tensor) and operand._value.spec.dtype in HALF_DTYPES
    return cast(operand, float32) if half else operand


# two operands


def _first(input: Any, other: Any) -> Any:
    """The first of two operands; as a tensor where both are numbers, which PyTorch takes for addition, multiplication and
    division alone."""
    if isinstance(input, Tensor) or isinstance(other, Tensor) or not (_is_number(input) and _is_number(other)):
        return input
    return creation.scalar_tensor(input, dtype=scalar_dtype(input))


def _is_number(operand: Any) -> bool:
    return isinstance(operand, (bool, int, float, complex))


def add(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """`input + alpha · other`."""
    return binary("add", _first(input, other), other if alpha == 1 else other * alpha)


def sub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """`input − alpha · other`; not for booleans."""
    return binary("sub", _first(input, other), other if alpha == 1 else other * alpha)


def rsub(input: Any, other: Any, alpha: float = 1) -> Tensor:
    """`other − alpha · input`."""
    x = tensor_of("rsub", input)
    return binary("sub", other, x if alpha == 1 else mul(x, alpha))


def mul(input: Any, other: Any) -> Tensor:
    """`input · other`."""
    return binary("mul", _first(input, other), other)


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """`input / other`. Integers give the default float dtype, unless `rounding_mode` is 'floor' or 'trunc'."""
    input = _first(input, other)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode == "trunc":
        a, b = meet("div", input, other)
        if (a if isinstance(a, Tensor) else b).dtype.kind == "f":
            return trunc(emission.emit("div", (a, b)))
        below = floor_divide(a, b)
        return add(below, logical_and(lt(below, 0), ne(mul(below, b), a)))
    if rounding_mode is not None:
        raise ValueError(f"div: rounding_mode is None, 'floor' or 'trunc', not {rounding_mode!r}")
    if isinstance(input, Tensor) and input._value.spec.dtype.kind in "fc":
        return binary("div", input, other)
    return emission.emit("div", meet_float("div", input, other))


def floor_divide(input: Any, other: Any) -> Tensor:
    """`⌊input / other⌋`, in the promoted dtype. For infinities the result is that of Python's `//`, unless
    `gt.set_conventions("array_api")` selects `floor(input / other)`.
    """
    if get_conventions() == "array_api":
        return floor_of_quotient(input, other)
    return binary("floor_divide", _first(input, other), other)


def floor_of_quotient(input: Any, other: Any) -> Tensor:
    """`floor(input / other)`, in the dtype in which they meet: the Array API's floor division."""
    a, b = meet("floor_divide", input, other)
    if (a if isinstance(a, Tensor) else b).dtype.kind != "f":
        return emission.emit("floor_divide", (a, b))
    return emission.emit("floor", (emission.emit("div", (a, b)),))


def remainder(input: Any, other: Any) -> Tensor:
    """`input − other · ⌊input / other⌋`: has the sign of `other`, like Python's `%`."""
    return binary("remainder", input, other)


def maximum(input: Any, other: Any) -> Tensor:
    """The larger of each pair; NaN if either is NaN."""
    return binary("maximum", input, other)


def minimum(input: Any, other: Any) -> Tensor:
    """The smaller of each pair; NaN if either is NaN."""
    return binary("minimum", input, other)


def pow(input: Any, exponent: Any) -> Tensor:
    """`input` to the power `exponent`. The literals 0, ±0.5, ±1, ±2 and 3 become instructions of their own."""
    exponent = plain("pow", exponent)
    if isinstance(exponent, Tensor) or not isinstance(input, Tensor):
        return binary("pow", input, exponent)
    dtype = dtype_of("pow", (input, exponent))
    if dtype.kind == "i" and exponent < 0:
        raise DTypeError(f"pow: integers to the negative power {exponent}: cast to a floating-point dtype first")
    x = cast(input, dtype)
    if dtype.kind != "b" and exponent in _POWERS:
        return _POWERS[exponent](x)
    return binary("pow", x, exponent)


_POWERS: Final[dict[float, Callable[[Tensor], Tensor]]] = {
    0: lambda x: creation.ones_like(x) if x._edge is None else emission.emit("pow", (x, 0.0)),
    1: lambda x: clone(x),
    2: lambda x: emission.emit_unary("square", x),
    3: lambda x: emission.emit("mul", (emission.emit_unary("square", x), x)),
    0.5: lambda x: emission.emit("sqrt", (x,)),
    -1: lambda x: emission.emit("reciprocal", (x,)),
    -2: lambda x: emission.emit("reciprocal", (emission.emit_unary("square", x),)),
    -0.5: lambda x: emission.emit("rsqrt", (x,)),
}


def eq(input: Any, other: Any) -> Tensor:
    """Whether `input = other`, element by element."""
    return binary("eq", input, other)


def ne(input: Any, other: Any) -> Tensor:
    """Whether `input ≠ other`, element by element."""
    return binary("ne", input, other)


def lt(input: Any, other: Any) -> Tensor:
    """Whether `input < other`, element by element."""
    return binary("lt", input, other)


def le(input: Any, other: Any) -> Tensor:
    """Whether `input ≤ other`, element by element."""
    return binary("le", input, other)


def gt(input: Any, other: Any) -> Tensor:
    """Whether `input > other`, element by element."""
    return binary("gt", input, other)


def ge(input: Any, other: Any) -> Tensor:
    """Whether `input ≥ other`, element by element."""
    return binary("ge", input, other)


def _truth(op: str, x: Any) -> Any:
    x = plain(op, x)
    return cast(x, bool_) if isinstance(x, Tensor) else bool(x)


def logical_and(input: Any, other: Any) -> Tensor:
    """Whether both are non-zero, element by element."""
    return binary("logical_and", _truth("logical_and", input), _truth("logical_and", other))


def logical_or(input: Any, other: Any) -> Tensor:
    """Whether at least one is non-zero, element by element."""
    return binary("logical_or", _truth("logical_or", input), _truth("logical_or", other))


def logical_xor(input: Any, other: Any) -> Tensor:
    """Whether exactly one is non-zero, element by element."""
    return binary("logical_xor", _truth("logical_xor", input), _truth("logical_xor", other))


def logical_not(input: Any) -> Tensor:
    """Whether `input` is zero, element by element."""
    return emission.emit_unary("logical_not", cast(input, bool_))


def _bitwise(name: str, input: Any, other: Any) -> Tensor:
    a, b = meet(f"bitwise_{name}", input, other)
    dtype = (a if isinstance(a, Tensor) else b).dtype
    if dtype.kind not in "bi":
        raise DTypeError(f"bitwise_{name} takes booleans or integers, not {dtype}")
    return emission.emit(f"logical_{name}" if dtype is bool_ else f"bitwise_{name}", (a, b))


def bitwise_and(input: Any, other: Any) -> Tensor:
    """`input & other`, for booleans and integers."""
    return _bitwise("and", input, other)


def bitwise_or(input: Any, other: Any) -> Tensor:
    """`input | other`, for booleans and integers."""
    return _bitwise("or", input, other)


def bitwise_xor(input: Any, other: Any) -> Tensor:
    """`input ^ other`, for booleans and integers."""
    return _bitwise("xor", input, other)


def bitwise_not(input: Any) -> Tensor:
    """`~input`, for booleans and integers."""
    x = tensor_of("bitwise_not", input)
    if x.dtype.kind in "fc":
        raise DTypeError(f"bitwise_not takes booleans or integers, not {x.dtype}")
    return emission.emit_unary("logical_not" if x.dtype is bool_ else "bitwise_not", x)


# three operands


@overload
def where(condition: Any) -> tuple[Tensor, ...]: ...
@overload
def where(condition: Any, input: Any, other: Any) -> Tensor: ...
def where(condition: Any, input: Any = None, other: Any = None) -> Any:
    """`input` where the boolean `condition` is true, else `other`. Without them: the indices of true elements, one
    vector per dimension; fetches their number.
    """
    condition = tensor_of("where", condition)
    if input is None and other is None:
        return nonzero_columns(condition)
    a, b = plain("where", input), plain("where", other)
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        a, b = meet("where", a, b)
    else:
        dtype = result_type([], [a, b])
        a, b = creation.full((), a, dtype=dtype), convert("where", b, dtype)
    return emission.emit("where", (condition, a, b))


def clamp(input: Any, min: Any = None, max: Any = None) -> Tensor:
    """`input` limited to the range from `min` to `max`, which are numbers, tensors or None. If `min` exceeds `max`:
    `max`.
    """
    if min is None and max is None:
        raise ValueError("clamp: at least one of min and max is needed")
    out = tensor_of("clamp", input)
    if min is not None:
        out = _bounded(out, min, "maximum", lt)
    if max is not None:
        out = _bounded(out, max, "minimum", gt)
    if out.dtype is bool_:
        raise DTypeError("clamp takes numbers, not bool: cast the input or a bound first")
    return out


def _bounded(x: Tensor, bound: Any, extreme: str, beyond: Any) -> Tensor:
    """An extreme, but the gradient of what equals a tensor of bounds is that of `x` alone."""
    if not isinstance(bound, Tensor) or (x._edge is None and bound._edge is None):
        return binary(extreme, x, bound)
    a, b = meet("clamp", x, bound)
    return where(logical_or(beyond(a, b), isnan(b)), b, a)


def masked_fill(input: Any, mask: Any, value: Any) -> Tensor:
    """`value` where the boolean `mask` is true, else `input`; keeps the dtype of `input`."""
    x = tensor_of("masked_fill", input)
    if isinstance(value, Tensor):
        if value.ndim:
            raise ShapeError(
                f"masked_fill: the value is a number, or a tensor without dimensions, not of shape {value.shape}"
            )
        if value.dtype.kind == "c" != x.dtype.kind:
            raise DTypeError(f"masked_fill: a value of {value.dtype} cannot be written to a tensor of {x.dtype}")
    return where(mask, cast(value, x.dtype) if isinstance(value, Tensor) else convert("masked_fill", value, x.dtype), x)


# one operand


def neg(input: Any) -> Tensor:
    """`−input`; not for booleans."""
    return emission.emit_unary("neg", tensor_of("neg", input))


def positive(input: Any) -> Tensor:
    """`input` itself."""
    return tensor_of("positive", input)


def abs(input: Any) -> Tensor:
    """`|input|`."""
    return emission.emit_unary("abs", tensor_of("abs", input))


def sign(input: Any) -> Tensor:
    """−1, 0 or 1; 0 for NaN. Booleans are their own signs."""
    x = tensor_of("sign", input)
    return clone(x) if x.dtype is bool_ else emission.emit_unary("sign", x)


def relu(input: Any, inplace: bool = False) -> Tensor:
    """`max(input, 0)`; `inplace` writes it to `input`."""
    x = tensor_of("relu", input)
    out = emission.emit_unary("relu", x)
    return x._write("relu", out) if inplace else out


def square(input: Any) -> Tensor:
    """`input²`; of booleans int64."""
    x = tensor_of("square", input)
    return emission.emit_unary("square", cast(x, int64) if x.dtype is bool_ else x)


def exp(input: Any) -> Tensor:
    """`eˣ`."""
    return float_unary("exp", input)


def expm1(input: Any) -> Tensor:
    """`eˣ − 1`, accurate near 0."""
    return float_unary("expm1", input)


def log(input: Any) -> Tensor:
    """The natural logarithm."""
    return float_unary("log", input)


def log1p(input: Any) -> Tensor:
    """`log(1 + x)`, accurate near 0."""
    return float_unary("log1p", input)


def log2(input: Any) -> Tensor:
    """The logarithm to base 2."""
    return float_unary("log2", input)


def log10(input: Any) -> Tensor:
    """The logarithm to base 10."""
    return float_unary("log10", input)


def sqrt(input: Any) -> Tensor:
    """The square root."""
    return float_unary("sqrt", input)


def rsqrt(input: Any) -> Tensor:
    """`1 / √x`."""
    return float_unary("rsqrt", input)


def reciprocal(input: Any) -> Tensor:
    """`1 / x`."""
    return float_unary("reciprocal", input)


def sin(input: Any) -> Tensor:
    """The sine."""
    return float_unary("sin", input)


def cos(input: Any) -> Tensor:
    """The cosine."""
    return float_unary("cos", input)


def tan(input: Any) -> Tensor:
    """The tangent."""
    return float_unary("tan", input)


def tanh(input: Any) -> Tensor:
    """The hyperbolic tangent."""
    return float_unary("tanh", input)


def sigmoid(input: Any) -> Tensor:
    """`1 / (1 + e⁻ˣ)`."""
    return float_unary("sigmoid", input)


def _rounding(op: str, input: Any) -> Tensor:
    x = tensor_of(op, input)
    return clone(x) if x.dtype.kind == "i" else emission.emit(op, (x,))


def floor(input: Any) -> Tensor:
    """Rounded down to the nearest integers."""
    return _rounding("floor", input)


def ceil(input: Any) -> Tensor:
    """Rounded up to the nearest integers."""
    return _rounding("ceil", input)


def round(input: Any, *, decimals: int = 0) -> Tensor:
    """Rounded to the nearest integers, halves to even; or to multiples of 10 to the power −`decimals`."""
    if not decimals:
        return _rounding("round", input)
    x = of_kinds("round", input, "bif")
    if x.dtype.kind != "f":
        if decimals > 0:
            return clone(x)
        raise DTypeError(f"round: {x.dtype} has no places beyond the point: cast first, or decimals is not negative")
    scale = 10.0 ** builtins.abs(decimals)
    if decimals > 0:
        return div(_rounding("round", mul(x, scale)), scale)
    return mul(_rounding("round", div(x, scale)), scale)


def trunc(input: Any) -> Tensor:
    """Rounded towards 0."""
    return _rounding("trunc", input)


def isnan(input: Any) -> Tensor:
    """Where `input` is NaN."""
    x = tensor_of("isnan", input)
    return emission.emit("isnan", (x,)) if x.dtype.kind in "fc" else creation.full(x.shape, False)


def isfinite(input: Any) -> Tensor:
    """Where `input` is neither infinite nor NaN."""
    x = tensor_of("isfinite", input)
    return emission.emit("isfinite", (x,)) if x.dtype.kind in "fc" else creation.full(x.shape, True)


def isinf(input: Any) -> Tensor:
    """Where `input` is infinite."""
    x = tensor_of("isinf", input)
    return eq(abs(x), math.inf) if x.dtype.kind in "fc" else creation.full(x.shape, False)


def _tensor_beside(value: Any, other: Any) -> Tensor:
    """A tensor, or a number as one, in the dtype of the other operand where that can hold it."""
    if not isinstance(value, (bool, int, float, complex)):
        return tensor_of("isclose", value)
    made = creation.full((), value)
    other_dtype = getattr(other, "dtype", None)
    if isinstance(other_dtype, DType) and "bifc".index(other_dtype.kind) >= "bifc".index(made.dtype.kind):
        return cast(made, other_dtype)
    return made


def isclose(input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Where `|input − other| ≤ atol + rtol · |other|`, or the two are equal. Either may be a number."""
    a, b = meet("isclose", _tensor_beside(input, other), _tensor_beside(other, input))
    if rtol < 0 or atol < 0:
        raise ValueError(f"isclose: tolerances are not negative: rtol is {rtol}, atol {atol}")
    if a.dtype is bool_:
        return eq(a, b)
    close = logical_or(eq(a, b), logical_and(le(abs(sub(a, b)), add(mul(abs(b), rtol), atol)), isfinite(b)))
    return logical_or(close, logical_and(isnan(a), isnan(b))) if equal_nan else close


subtract = sub
multiply = mul
divide = true_divide = div
greater = gt
greater_equal = ge
less = lt
less_equal = le
not_equal = ne
absolute = abs
negative = neg
clip = clamp
