"""CPU lowerings of ops: the calls of NumPy's functions that a member of a chain becomes, which write where they are told to.

A chain's sources, its scratch memory and its results are *registers*, numbered places for arrays that are the same strip of
different values. Only ops have a lowering whose kernel asks its operands nothing, and cannot fail. Where and on what the calls
run is the business of `worker/fusion/cpu/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from gt.worker.base.backend import special
from gt.worker.base.kernel_call import KernelCall
from gt.worker.device.thread_pool import aligned
from gt.worker.kernels.elementwise import MIN_BITWISE_ELEMENTS
from gt.worker.kernels.reductions import UFUNCS

Registers = list[Any]
Function = Callable[..., Any]

UNARY: Final = -1
GENERAL: Final = -2


class UfuncCall(NamedTuple):
    """One call: `function(a, b, out)` on registers, which returns `out`; `function(a, out)` where `second` is `UNARY`, else
    `function(registers)`."""

    function: Function
    first: int
    second: int
    out: int


class Register(NamedTuple):
    """Memory for one strip of full values or of columns."""

    number: int
    column: bool
    dtype: np.dtype[Any]


@dataclass(slots=True)
class UfuncDraft:
    """The calls of a chain, as lowerings write them. Registers hold the chain's sources first; then scratch, outputs and zeros in
    any order. Of a `whole` chain, which is one strip, calls may put results of their own into registers."""

    axes: tuple[int, ...]
    whole: bool
    count: int
    calls: list[UfuncCall] = field(default_factory=list)
    scratch: list[Register] = field(default_factory=list)
    zeros: list[Register] = field(default_factory=list)
    free: dict[tuple[bool, np.dtype[Any]], list[int]] = field(default_factory=dict)
    kinds: dict[int, tuple[bool, np.dtype[Any]]] = field(default_factory=dict)
    """Of each scratch register."""
    column: bool = False
    """Whether the value is a column that is being made."""

    def call(self, function: Function, first: int, second: int, out: int) -> None:
        self.calls.append(UfuncCall(function, first, second, out))

    def new(self, where: list[Register], column: bool, dtype: np.dtype[Any]) -> int:
        where.append(Register(self.count, column, dtype))
        self.count += 1
        return self.count - 1

    def take(self, column: bool, dtype: np.dtype[Any]) -> int:
        """A scratch register that nothing else needs now."""
        free = self.free.get((column, dtype))
        if free:
            return free.pop()
        number = self.new(self.scratch, column, dtype)
        self.kinds[number] = column, dtype
        return number

    def give(self, number: int) -> None:
        """A register is needed no more; what is not scratch stays as it is."""
        kind = self.kinds.get(number)
        if kind is not None:
            self.free.setdefault(kind, []).append(number)

    def nbytes(self, elements: int, columns: int) -> int:
        """Bytes of scratch memory for a strip of so many elements in so many rows."""
        sizes = [(columns if each.column else elements) * each.dtype.itemsize for each in self.scratch]
        return sum(aligned(size) for size in sizes)


# what each op becomes

Lowering = Callable[[UfuncDraft, KernelCall, Sequence[int], int], None]
"""From a member's call, the registers of its operands and of its result, calls."""


def by_ufunc(function: Function) -> Lowering:
    def lower(draft: UfuncDraft, _: KernelCall, args: Sequence[int], out: int) -> None:
        draft.call(function, args[0], args[1] if len(args) > 1 else UNARY, out)

    return lower


def by_special_function(name: str) -> Lowering:
    return lambda draft, call, args, out: by_ufunc(getattr(special(np), name))(draft, call, args, out)


def maximum(a: Any, b: Any, out: Any) -> Any:
    return np.maximum(a, b, out=out)


def minimum(a: Any, b: Any, out: Any) -> Any:
    return np.minimum(a, b, out=out)


def _add_one(a: Any, out: Any) -> Any:
    return np.add(a, 1, out)


def convert(a: Any, out: Any) -> Any:
    np.copyto(out, a, "unsafe")
    return out


def lower_relu(draft: UfuncDraft, call: KernelCall, args: Sequence[int], out: int) -> None:
    # of two arrays the larger is found three times as fast as of a number and an array
    draft.call(maximum, draft.new(draft.zeros, draft.column, call.result.dtype.numpy), args[0], out)


def lower_sigmoid(draft: UfuncDraft, _: KernelCall, args: Sequence[int], out: int) -> None:
    draft.call(np.negative, args[0], UNARY, out)
    draft.call(np.exp, out, UNARY, out)
    draft.call(_add_one, out, UNARY, out)
    draft.call(np.reciprocal, out, UNARY, out)


def lower_rsqrt(draft: UfuncDraft, _: KernelCall, args: Sequence[int], out: int) -> None:
    draft.call(np.sqrt, args[0], UNARY, out)
    draft.call(np.reciprocal, out, UNARY, out)


def lower_sign(draft: UfuncDraft, _: KernelCall, args: Sequence[int], out: int) -> None:
    draft.call(np.sign, args[0], UNARY, out)
    draft.call(_without_nan, out, UNARY, out)


def _without_nan(x: Any, out: Any) -> Any:
    np.copyto(out, 0, where=x != x)
    return out


def _reduction(function: np.ufunc, dtype: np.dtype[Any] | None, axes: tuple[int, ...]) -> Function:
    reduce: Function = function.reduce
    return lambda x, out: reduce(x, axes, dtype, out, True)


def lower_reduction(draft: UfuncDraft, call: KernelCall, args: Sequence[int], out: int) -> None:
    dtype = call.result.dtype.numpy if call.op in ("sum", "prod") else None
    draft.call(_reduction(UFUNCS[call.op], dtype, draft.axes), args[0], UNARY, out)


def lower_softmax(draft: UfuncDraft, call: KernelCall, args: Sequence[int], out: int) -> None:
    dtype = call.result.dtype.numpy
    column = draft.take(True, dtype)
    largest, total = _reduction(np.maximum, None, draft.axes), _reduction(np.add, None, draft.axes)
    draft.call(largest, args[0], UNARY, column)
    draft.call(np.subtract, args[0], column, out)
    if call.op == "softmax":
        draft.call(np.exp, out, UNARY, out)
        draft.call(total, out, UNARY, column)
        draft.call(np.divide, out, column, out)
    else:
        work = draft.take(False, dtype)
        draft.call(np.exp, out, UNARY, work)
        draft.call(total, work, UNARY, column)
        draft.call(np.log, column, UNARY, column)
        draft.call(np.subtract, out, column, out)
        draft.give(work)
    draft.give(column)


def lower_where(draft: UfuncDraft, call: KernelCall, args: Sequence[int], out: int) -> None:
    """As `elementwise.where`: by bits, b ^ ((a ^ b) & −c), where there are many."""
    c, a, b = args
    dtype = call.result.dtype.numpy
    first, second = (isinstance(operand, str) for operand in call.operands[1:])
    number = dtype.type
    if draft.whole and (call.result.size < MIN_BITWISE_ELEMENTS or dtype.itemsize > 8):

        def choose(r: Registers) -> None:
            r[out] = np.where(r[c], number(r[a]) if first else r[a], number(r[b]) if second else r[b])

        draft.call(choose, 0, GENERAL, out)
        return
    word = np.dtype(f"i{min(dtype.itemsize, 8)}")
    mask = draft.take(draft.column, word)

    def select(r: Registers) -> None:
        x = np.array(r[a], dtype) if first else r[a]
        y = np.array(r[b], dtype) if second else r[b]
        to = r[out]
        if to.itemsize > 8:
            np.copyto(to, y)
            np.copyto(to, x, where=r[c])
            return
        m, to, x, y = r[mask], to.view(word), x.view(word), y.view(word)
        if first and not x:
            np.copyto(to, r[c])
            np.subtract(to, 1, to)
            np.bitwise_and(to, y, to)
            return
        np.copyto(m, r[c])
        np.negative(m, m)
        np.bitwise_xor(x, y, to)
        np.bitwise_and(to, m, to)
        np.bitwise_xor(to, y, to)

    draft.call(select, 0, GENERAL, out)
    draft.give(mask)
