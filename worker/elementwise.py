"""Factories of kernels that work element by element. What a bare ufunc does needs no factory but `ufunc`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

from gt.dtypes import DType, float16, float32

from .backend import special
from .call import Call, Kernel, KernelFactory


def ufunc(name: str) -> KernelFactory:
    """The array module's own function of that name, with nothing between."""
    return lambda call: getattr(call.xp, name)


def special_function(name: str) -> KernelFactory:
    """SciPy's (or CuPy's) special function of that name, which knows no dtype narrower than float32."""

    def factory(call: Call) -> Kernel:
        function, dtype = getattr(special(call.xp), name), call.result.dtype
        work = wide(dtype)
        if work is dtype:
            return function  # type: ignore[no-any-return]  # of SciPy nothing is typed
        widen, narrow = methodcaller("astype", work.numpy), methodcaller("astype", dtype.numpy)
        tensors = [not isinstance(operand, str) for operand in call.operands]
        return lambda *operands: narrow(
            function(*[widen(x) if t else x for x, t in zip(operands, tensors, strict=True)])
        )

    return factory


def same(call: Call) -> Kernel:
    """The first operand as it is."""
    return (lambda x: x) if len(call.operands) == 1 else (lambda x, _like: x)


def wide(dtype: DType) -> DType:
    """The dtype to compute in: float16 has too few bits for what comes between."""
    return float32 if dtype is float16 else dtype


def cast(call: Call) -> Kernel:
    if call.tensor(0).dtype is call.result.dtype:
        return same(call)
    return methodcaller("astype", call.result.dtype.numpy)


def rsqrt(call: Call) -> Kernel:
    sqrt, reciprocal, dtype = call.xp.sqrt, call.xp.reciprocal, call.result.dtype
    if dtype is float16:
        return lambda x: reciprocal(sqrt(x.astype(float32.numpy))).astype(dtype.numpy)
    return lambda x: reciprocal(sqrt(x))


def sigmoid(call: Call) -> Kernel:
    """1 / (1 + e⁻ˣ): where e⁻ˣ overflows, the result is 0, as it should be."""
    xp, shape, dtype = call.xp, call.result.shape, call.result.dtype
    work = wide(dtype).numpy

    def kernel(x: Any) -> Any:
        out = xp.empty(shape, work)
        xp.negative(x, out)
        xp.exp(out, out)
        xp.add(out, 1, out)
        xp.reciprocal(out, out)
        return out if dtype is not float16 else out.astype(dtype.numpy)

    return kernel


def relu(call: Call) -> Kernel:
    # An array of no dimensions meets an array faster than a Python number does.
    return partial(call.xp.maximum, call.xp.zeros((), call.result.dtype.numpy))


def where(call: Call) -> Kernel:
    choose, number = call.xp.where, call.result.dtype.numpy.type
    first, second = (isinstance(operand, str) for operand in call.operands[1:])
    if first:
        return lambda condition, a, b: choose(condition, number(a), b)
    if second:
        return lambda condition, a, b: choose(condition, a, number(b))
    return choose  # type: ignore[no-any-return]  # xp is Any


def _holds_somewhere(call: Call) -> Callable[[Any], bool]:
    """Whether a comparison of the second operand, a run-time scalar or a tensor, is true for any element."""
    return bool if isinstance(call.operands[1], str) else lambda found: bool(found.any())


def power(call: Call) -> Kernel:
    """Integers to a negative power have no integer result: a `ValueError` on every backend."""
    function = call.xp.power
    if call.result.dtype.kind == "f":
        return function  # type: ignore[no-any-return]  # xp is Any
    holds = _holds_somewhere(call)

    def kernel(a: Any, b: Any) -> Any:
        if holds(b < 0):
            raise ValueError(f"{call.op}: an integer to a negative power; cast to a floating-point dtype first")
        return function(a, b)

    return kernel


def divide_integers(name: str) -> KernelFactory:
    """Integer division by zero raises `ZeroDivisionError` on every backend; hardware would make up a number."""

    def factory(call: Call) -> Kernel:
        function = getattr(call.xp, name)
        if call.result.dtype.kind == "f":
            return function  # type: ignore[no-any-return]  # xp is Any
        holds = _holds_somewhere(call)

        def kernel(a: Any, b: Any) -> Any:
            if holds(b == 0):
                raise ZeroDivisionError(f"{call.op}: integer division by zero")
            return function(a, b)

        return kernel

    return factory
