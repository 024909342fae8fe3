"""Factories of kernels that work element by element. What a bare ufunc does needs no factory but `ufunc`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import HALF_DTYPES, DType, bfloat16, bool_, float32, uint64
from gt.worker.base.kernel_call import Kernel, KernelCall, KernelFactory, OperandCheck

MIN_BITWISE_ELEMENTS: Final = 4096
"""Elements from which a choice between two values is made by bits."""
MIN_ROW_OF_ZEROS: Final = 64
"""Elements of the last dimension, at least, for which a relu has a row of zeros."""
MAX_ROW_OF_ZEROS: Final = 16384
"""The same at most: what a kernel keeps for each such call stays small."""


def ufunc(name: str) -> KernelFactory:
    """The array module's own function of that name, with nothing between; of half precision, in float32."""
    return lambda call: in_float32(call, getattr(call.xp, name))


def exact(name: str) -> KernelFactory:
    """The array module's own function of that name, in the tensors' own dtype whatever it is."""

    def factory(call: KernelCall) -> Kernel:
        function, number = getattr(call.xp, name), call.result.dtype.numpy.type
        steps = [number if isinstance(operand, str) else None for operand in call.operands]
        if not any(steps):
            return function  # type: ignore[no-any-return]  # xp is Any
        return lambda *operands: function(*[step(x) if step else x for step, x in zip(steps, operands, strict=True)])

    return factory


def sign(call: KernelCall) -> Kernel:
    """−1, 0 or 1, and 0 for NaN, as PyTorch has it; array modules say NaN, or 0."""
    xp = call.xp
    if call.result.dtype.kind != "f":
        return ufunc("sign")(call)
    return in_float32(call, lambda x: xp.where(x != x, x.dtype.type(0), xp.sign(x)))


def nextafter(call: KernelCall) -> Kernel:
    """The array module's own; of bfloat16 on a GPU by bits, which are in the order of the numbers but for the sign."""
    own = exact("nextafter")(call)
    if call.xp is np or call.result.dtype is not bfloat16:
        return own
    xp, number, choose = call.xp, bfloat16.numpy.type, chooser(call.xp, bfloat16)

    def kernel(a: Any, b: Any) -> Any:
        a, b = xp.broadcast_arrays(*(xp.asarray(x if isinstance(x, xp.ndarray) else number(x)) for x in (a, b)))
        x, y = a.astype(np.float32), b.astype(np.float32)
        bits = xp.ascontiguousarray(a).reshape(a.shape).view(np.int16)  # which has a dimension at least
        away = xp.where((y > x) == (x > 0), bits + 1, bits - 1)
        away = xp.where(x == 0, xp.where(y > 0, np.int16(1), np.int16(-32767)), away).astype(np.int16)
        out = xp.where(x == y, xp.ascontiguousarray(b).reshape(b.shape).view(np.int16), away).view(bfloat16.numpy)
        return choose(xp.isnan(x), a, choose(xp.isnan(y), b, out))

    return kernel


def in_float32(call: KernelCall, function: Kernel) -> Kernel:
    """`function`, computed in float32 and rounded once where it would compute in half precision, as PyTorch does.

    So numbers of the program are not rounded to the few digits of a tensor's dtype before they meet it; only where numbers
    are compared they are, for 0.1 equals itself. CuPy computes so by itself in float16, if no number of the program is there:
    that it rounds.
    """
    dtype = _dtype(call)
    if call.xp is not np and dtype is not bfloat16 and not (_same(call) and str in map(type, call.operands)):
        return function
    return widened(call, function) if dtype in HALF_DTYPES else function


def widened(call: KernelCall, function: Kernel) -> Kernel:
    """`function` of operands of half precision, computed in float32 and rounded once, if need be."""
    widen, number = methodcaller("astype", float32.numpy), _dtype(call).numpy.type
    rounded = (lambda value: value) if _same(call) else (lambda value: float(number(value)))
    steps = [rounded if isinstance(operand, str) else widen for operand in call.operands]
    if not _same(call):
        return lambda *operands: function(*[step(operand) for step, operand in zip(steps, operands, strict=True)])
    narrow = methodcaller("astype", _dtype(call).numpy)
    if len(steps) == 1:
        return lambda x: narrow(function(widen(x)))
    return lambda *operands: narrow(function(*[step(operand) for step, operand in zip(steps, operands, strict=True)]))


def _dtype(call: KernelCall) -> DType:
    return next(operand.dtype for operand in call.operands if not isinstance(operand, str))


def _same(call: KernelCall) -> bool:
    """Whether the result has the dtype of the operands."""
    return call.result.dtype is _dtype(call)


def same(call: KernelCall) -> Kernel:
    """The first operand as it is."""
    return (lambda x: x) if len(call.operands) == 1 else (lambda x, _like: x)


def wide(dtype: DType) -> DType:
    """The dtype to compute in: half precision has too few bits for what comes between."""
    return float32 if dtype in HALF_DTYPES else dtype


def nothing_of(dtype: DType) -> Any:
    """The number that leaves every number as it is when it is added to it: the negative zero of the dtype."""
    return dtype.numpy.type(complex(-0.0, -0.0) if dtype.kind == "c" else -0.0)


def cast(call: KernelCall) -> Kernel:
    """The same values in another dtype; of complex numbers the real parts (as booleans: whether they are not 0)."""
    source, target = call.tensor(0).dtype, call.result.dtype
    if source is target:
        return same(call)
    convert: Kernel = methodcaller("astype", target.numpy)
    if call.xp is not np and source.kind in "fc" and target.kind == "i" and not target.is_signed:
        convert = _to_unsigned(call.xp, target)
    return (lambda x: convert(x.real)) if source.kind == "c" and target.kind in "if" else convert


def bitcast(call: KernelCall) -> Kernel:
    """The same bytes as elements of another dtype, in memory of their own. As booleans: whether a byte is not 0, because a
    boolean with other bits would be neither true nor false."""
    target = call.result.dtype
    view: Kernel = methodcaller("view", target.numpy)
    if target is bool_:
        return lambda x: x.copy("C").view(np.uint8) != 0
    return lambda x: view(x.copy("C"))


def _to_unsigned(xp: Any, target: DType) -> Kernel:
    """Floating-point numbers as unsigned integers on a GPU. C++ leaves negative ones undefined, and CUDA makes them 0: by way of
    signed integers they are what NumPy makes of them, numbers modulo 2ⁿ."""
    signed = np.int32 if target.itemsize < 4 else np.int64
    unsigned = target.numpy
    if target is not uint64:
        return lambda x: x.astype(signed).astype(unsigned)

    def kernel(x: Any) -> Any:
        negative = xp.signbit(x.astype(np.float32))
        return xp.where(negative, x.astype(signed).astype(unsigned), x.astype(unsigned))

    return kernel


def part(name: str) -> KernelFactory:
    """The real or the imaginary part of complex numbers: a view."""
    return lambda _call: attrgetter(name)


def complex_(call: KernelCall) -> Kernel:
    empty, shape, dtype = call.xp.empty, call.result.shape, call.result.dtype.numpy

    def kernel(a: Any, b: Any) -> Any:
        out = empty(shape, dtype)
        out.real = a
        out.imag = b
        return out

    return kernel


def expm1(call: KernelCall) -> Kernel:
    """The array module's own; of complex numbers by parts, for NumPy's cancels and knows no infinities (Kahan, 1987)."""
    xp = call.xp
    if call.result.dtype.kind != "c":
        return in_float32(call, xp.expm1)

    def kernel(z: Any) -> Any:
        out = xp.asarray(xp.exp(z))
        near = xp.expm1(z.real) * xp.cos(z.imag) - 2 * xp.square(xp.sin(z.imag / 2))
        out.real = xp.where(xp.isfinite(z), near, out.real - 1) + 0.0  # of −0, too, 0
        return out

    return kernel


def log2(call: KernelCall) -> Kernel:
    """The array module's own; of complex numbers on a GPU by parts: CuPy divides by a complex one, and infinity becomes NaN."""
    xp, own = call.xp, ufunc("log2")(call)
    if xp is np or call.result.dtype.kind != "c":
        return own

    def kernel(z: Any) -> Any:
        out = xp.log(z)
        out.real, out.imag = out.real / math.log(2), out.imag / math.log(2)
        return out

    return kernel


def rsqrt(call: KernelCall) -> Kernel:
    sqrt, reciprocal = call.xp.sqrt, call.xp.reciprocal
    if call.result.dtype in HALF_DTYPES and call.xp is not np:  # two functions, each of which would round
        widen, narrow = methodcaller("astype", float32.numpy), methodcaller("astype", call.result.dtype.numpy)
        return lambda x: narrow(reciprocal(sqrt(widen(x))))
    return in_float32(call, lambda x: reciprocal(sqrt(x)))


def sigmoid(call: KernelCall) -> Kernel:
    """1 / (1 + e⁻ˣ): where e⁻ˣ overflows, the result is 0, as it should be."""
    xp, shape, dtype = call.xp, call.result.shape, call.result.dtype
    work = wide(dtype).numpy

    def kernel(x: Any) -> Any:
        if dtype is bfloat16:
            x = x.astype(work)
        out = xp.empty(shape, work)
        xp.negative(x, out)
        xp.exp(out, out)
        xp.add(out, 1, out)
        xp.reciprocal(out, out)
        return out.astype(dtype.numpy) if dtype in HALF_DTYPES else out

    return kernel


def relu(call: KernelCall) -> Kernel:
    """The larger of each element and 0. NumPy takes less than half the time where it meets a row of zeros and not one number; a
    row says nothing of how the result should lie in memory."""
    result = call.result
    work = float32 if result.dtype is bfloat16 else result.dtype
    row = result.shape[-1:] if call.xp is np and result.dtype not in HALF_DTYPES else ()
    shape = row if row and MIN_ROW_OF_ZEROS <= row[0] <= MAX_ROW_OF_ZEROS else ()
    return in_float32(call, partial(call.xp.maximum, call.xp.zeros(shape, work.numpy)))


def chooser(xp: Any, dtype: DType) -> Kernel:
    """`where` of two operands of a dtype. Of bfloat16 CuPy's would give float32, so there bits are chosen."""
    if xp is np or dtype is not bfloat16:
        return xp.where  # type: ignore[no-any-return]  # xp is Any
    bits = methodcaller("view", np.int16)
    return lambda condition, a, b: xp.where(condition, bits(a), bits(b)).view(bfloat16.numpy)


def where(call: KernelCall) -> Kernel:
    """The second operand where the condition holds, else the third."""
    xp, result = call.xp, call.result
    first, second = (isinstance(operand, str) for operand in call.operands[1:])
    number = result.dtype.numpy.type
    if xp is np and result.size >= MIN_BITWISE_ELEMENTS and result.dtype.itemsize <= 8:
        return _by_bits(call)
    choose = chooser(xp, result.dtype)
    if first:
        return lambda condition, a, b: choose(condition, number(a), b)
    if second:
        return lambda condition, a, b: choose(condition, a, number(b))
    return choose


def _by_bits(call: KernelCall) -> Kernel:
    """`where` by bits: `np.where` branches at each element, and guesses wrong at half of them; bits can be chosen without: b ^
    ((a ^ b) & −c).

    The result lies as NumPy would lay it: row by row as soon as one operand of its shape does, the condition too.
    """
    shape, dtype = call.result.shape, call.result.dtype.numpy
    word = np.dtype(f"i{dtype.itemsize}")
    condition, *others = (() if isinstance(operand, str) else operand.shape for operand in call.operands)
    whole = shape in others  # else `a ^ b` is smaller than the result, and no memory for it
    first, second = (isinstance(operand, str) for operand in call.operands[1:])

    def kernel(c: Any, a: Any, b: Any) -> Any:
        a = (np.array(a, dtype) if first else a).view(word)
        b = (np.array(b, dtype) if second else b).view(word)
        mask = np.asarray(c).astype(
            word
        )  # without dimensions it may be one of NumPy's scalars, which nothing is written to
        if first and not a and condition == shape:  # zeros, as in the gradient of a relu
            np.subtract(mask, 1, mask)
            alike = mask.strides == b.strides or b.shape != shape
            return np.bitwise_and(mask, b, mask if alike else None).view(dtype)
        np.negative(mask, mask)
        out = np.bitwise_xor(a, b)
        alike = whole and (mask.strides == out.strides or mask.shape != shape)
        out = np.bitwise_and(out, mask, out if alike else None)
        return np.bitwise_xor(out, b, out).view(dtype)

    return kernel


def _refusal(call: KernelCall, error: Callable[[], Exception]) -> Callable[[Any], None]:
    """A function that raises where a comparison of an operand, a run-time scalar or a tensor, is true for any element; or has
    that looked at later."""
    later = call.later

    def refuse(found: Any) -> None:
        if later is not None and not isinstance(found, bool):
            later(OperandCheck(call, found.any().astype(np.int64), lambda _: error()))
        elif found if isinstance(found, bool) else found.any():
            raise error()

    return refuse


def power(call: KernelCall) -> Kernel:
    """Powers; integers to a negative power have no integer result: a `ValueError` on every backend."""
    function = call.xp.power
    if call.result.dtype.kind in "fc":
        return in_float32(call, function)
    refuse = _refusal(
        call, lambda: ValueError(f"{call.op}: an integer to a negative power; cast to a floating-point dtype first")
    )

    def kernel(a: Any, b: Any) -> Any:
        refuse(b < 0)
        return function(a, b)

    return kernel


def weight(call: KernelCall) -> Kernel:
    """The operand itself; a `ValueError` if an element is below 0."""
    refuse = _refusal(
        call,
        lambda: ValueError(
            "a weight, rate, deviation or probability is out of range: negative, not finite, above 1, or 0 like all of its row"
        ),
    )

    half = call.result.dtype in HALF_DTYPES

    def kernel(x: Any) -> Any:
        refuse((x.astype(np.float32) if half else x) < 0)
        return x

    return kernel


def divide_integers(name: str) -> KernelFactory:
    """Divisions; integer division by zero raises `ZeroDivisionError` on every backend; hardware would make up a number."""

    def factory(call: KernelCall) -> Kernel:
        function = getattr(call.xp, name)
        if call.result.dtype.kind == "f":
            if call.xp is np or name not in _DIVIDED:
                return in_float32(call, function)
            function = partial(_DIVIDED[name], call.xp, call.xp.zeros((), wide(call.result.dtype).numpy))
            return widened(call, function) if call.result.dtype in HALF_DTYPES else function
        refuse = _refusal(call, lambda: ZeroDivisionError(f"{call.op}: integer division by zero"))

        def kernel(a: Any, b: Any) -> Any:
            refuse(b == 0)
            return function(a, b)

        return kernel

    return factory


def _remainder(xp: Any, zero: Any, a: Any, b: Any) -> Any:
    """As NumPy's, with the divisor's sign; CuPy's own, a − ⌊a / b⌋ b, is NaN of an infinite divisor, and inexact."""
    left = xp.fmod(a, b)
    left = xp.where((left != 0) & ((left < 0) ^ (b < 0)), left + b, left)
    return xp.where((left == 0) & (b != 0), xp.copysign(zero, b), left)


def _floor_divide(xp: Any, zero: Any, a: Any, b: Any) -> Any:
    """As NumPy's, which takes the remainder away first; CuPy's own, ⌊a / b⌋, differs where that rounds, and at infinities."""
    left, divided = xp.fmod(a, b), xp.divide(a, b)
    quotient = (a - left) / b
    quotient = xp.where((left != 0) & ((left < 0) ^ (b < 0)), quotient - 1, quotient)
    whole = xp.floor(quotient)
    whole = xp.where(quotient - whole > 0.5, whole + 1, whole)
    whole = xp.where(quotient == 0, xp.copysign(zero, divided), whole)
    return xp.where((b == 0) & xp.isnan(left), divided, whole)


_DIVIDED: Final = {"remainder": _remainder, "floor_divide": _floor_divide}
"""What floating-point numbers have on a GPU in place of CuPy's own, as `worker/fusion/cuda/cuda_types.py` has it."""


def shift(name: str) -> KernelFactory:
    """The array module's own shift, but that more bits than there are leave nothing on a GPU too, as NumPy has it."""

    def factory(call: KernelCall) -> Kernel:
        xp, function = call.xp, getattr(call.xp, name)
        if xp is np:
            return function  # type: ignore[no-any-return]  # xp is Any
        number, bits = call.result.dtype.numpy.type, 8 * call.result.dtype.itemsize
        negative = name == "right_shift" and np.dtype(number).kind == "i"

        def kernel(a: Any, b: Any) -> Any:
            a, b = (x if isinstance(x, xp.ndarray) else xp.full((), x, number) for x in (a, b))
            inside = (b >= 0) & (b < bits)
            lost = xp.where(a < 0, number(-1), number(0)) if negative else number(0)
            return xp.where(inside, function(a, xp.where(inside, b, number(0))), lost)

        return kernel

    return factory
