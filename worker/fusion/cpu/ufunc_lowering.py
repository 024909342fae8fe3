"""What the members of a chain become on a CPU: calls of NumPy's functions that write where they are told to.

A chain's sources, its scratch memory and its results are *registers*, numbered places for arrays that are the same strip of
different values. No op is in `LOWER` whose kernel asks its operands anything, or can fail. Where and on what calls run is
the business of `strips.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from gt.ir.dtypes import HALVES, DType
from gt.ir.spec import Spec
from gt.worker.base.backend import special
from gt.worker.base.kernel_call import Call
from gt.worker.device.thread_pool import aligned
from gt.worker.fusion.chains import Chain, Value
from gt.worker.kernels.elementwise import SELECTED
from gt.worker.kernels.reductions import UFUNCS

Registers = list[Any]
Function = Callable[..., Any]

UNARY: Final = -1
GENERAL: Final = -2


class Step(NamedTuple):
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
class Draft:
    """The calls of a chain. Registers hold its sources first; then scratch, outputs and zeros in any order. Of a `whole`
    chain, which is one strip, calls may put results of their own into registers."""

    axes: tuple[int, ...]
    whole: bool
    count: int
    steps: list[Step] = field(default_factory=list)
    scratch: list[Register] = field(default_factory=list)
    outputs: list[tuple[Register, Value]] = field(default_factory=list)
    zeros: list[Register] = field(default_factory=list)
    free: dict[tuple[bool, np.dtype[Any]], list[int]] = field(default_factory=dict)
    kinds: dict[int, tuple[bool, np.dtype[Any]]] = field(default_factory=dict)
    """Of each scratch register."""
    column: bool = False
    """Whether the value is a column that is being made."""

    def call(self, function: Function, first: int, second: int, out: int) -> None:
        self.steps.append(Step(function, first, second, out))

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

Lowering = Callable[[Draft, Call, Sequence[int], int], None]
"""From a member's call, the registers of its operands and of its result, calls."""


def _ufunc(function: Function) -> Lowering:
    def lower(draft: Draft, _: Call, args: Sequence[int], out: int) -> None:
        draft.call(function, args[0], args[1] if len(args) > 1 else UNARY, out)

    return lower


def _special(name: str) -> Lowering:
    return lambda draft, call, args, out: _ufunc(getattr(special(np), name))(draft, call, args, out)


def _maximum(a: Any, b: Any, out: Any) -> Any:
    return np.maximum(a, b, out=out)


def _minimum(a: Any, b: Any, out: Any) -> Any:
    return np.minimum(a, b, out=out)


def _add_one(a: Any, out: Any) -> Any:
    return np.add(a, 1, out)


def _cast(a: Any, out: Any) -> Any:
    np.copyto(out, a, "unsafe")
    return out


def _relu(draft: Draft, call: Call, args: Sequence[int], out: int) -> None:
    # of two arrays the larger is found three times as fast as of a number and an array
    draft.call(_maximum, draft.new(draft.zeros, draft.column, call.result.dtype.numpy), args[0], out)


def _sigmoid(draft: Draft, _: Call, args: Sequence[int], out: int) -> None:
    draft.call(np.negative, args[0], UNARY, out)
    draft.call(np.exp, out, UNARY, out)
    draft.call(_add_one, out, UNARY, out)
    draft.call(np.reciprocal, out, UNARY, out)


def _rsqrt(draft: Draft, _: Call, args: Sequence[int], out: int) -> None:
    draft.call(np.sqrt, args[0], UNARY, out)
    draft.call(np.reciprocal, out, UNARY, out)


def _sign(draft: Draft, _: Call, args: Sequence[int], out: int) -> None:
    draft.call(np.sign, args[0], UNARY, out)
    draft.call(_without_nan, out, UNARY, out)


def _without_nan(x: Any, out: Any) -> Any:
    np.copyto(out, 0, where=x != x)
    return out


def _reduction(function: np.ufunc, dtype: np.dtype[Any] | None, axes: tuple[int, ...]) -> Function:
    reduce: Function = function.reduce
    return lambda x, out: reduce(x, axes, dtype, out, True)


def _reduce(draft: Draft, call: Call, args: Sequence[int], out: int) -> None:
    dtype = call.result.dtype.numpy if call.op in ("sum", "prod") else None
    draft.call(_reduction(UFUNCS[call.op], dtype, draft.axes), args[0], UNARY, out)


def _softmax(draft: Draft, call: Call, args: Sequence[int], out: int) -> None:
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


def _where(draft: Draft, call: Call, args: Sequence[int], out: int) -> None:
    """As `elementwise.where`: by bits, b ^ ((a ^ b) & −c), where there are many."""
    c, a, b = args
    dtype = call.result.dtype.numpy
    first, second = (isinstance(operand, str) for operand in call.operands[1:])
    number = dtype.type
    if draft.whole and (call.result.size < SELECTED or dtype.itemsize > 8):

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


LOWER: Final[dict[str, Lowering]] = {
    "neg": _ufunc(np.negative),
    "abs": _ufunc(np.absolute),
    "sign": _sign,
    "exp": _ufunc(np.exp),
    "exp2": _ufunc(np.exp2),
    "expm1": _ufunc(np.expm1),
    "log": _ufunc(np.log),
    "log2": _ufunc(np.log2),
    "log10": _ufunc(np.log10),
    "log1p": _ufunc(np.log1p),
    "sqrt": _ufunc(np.sqrt),
    "rsqrt": _rsqrt,
    "square": _ufunc(np.square),
    "reciprocal": _ufunc(np.reciprocal),
    "sin": _ufunc(np.sin),
    "cos": _ufunc(np.cos),
    "tan": _ufunc(np.tan),
    "asin": _ufunc(np.arcsin),
    "acos": _ufunc(np.arccos),
    "atan": _ufunc(np.arctan),
    "sinh": _ufunc(np.sinh),
    "cosh": _ufunc(np.cosh),
    "tanh": _ufunc(np.tanh),
    "asinh": _ufunc(np.arcsinh),
    "acosh": _ufunc(np.arccosh),
    "atanh": _ufunc(np.arctanh),
    "erf": _special("erf"),
    "erfc": _special("erfc"),
    "erfinv": _special("erfinv"),
    "lgamma": _special("gammaln"),
    "digamma": _special("digamma"),
    "sigmoid": _sigmoid,
    "relu": _relu,
    "floor": _ufunc(np.floor),
    "ceil": _ufunc(np.ceil),
    "round": _ufunc(np.rint),
    "trunc": _ufunc(np.trunc),
    "isnan": _ufunc(np.isnan),
    "isfinite": _ufunc(np.isfinite),
    "signbit": _ufunc(np.signbit),
    "conj": _ufunc(np.conjugate),
    "logical_not": _ufunc(np.logical_not),
    "bitwise_not": _ufunc(np.invert),
    "cast": _ufunc(_cast),
    "add": _ufunc(np.add),
    "sub": _ufunc(np.subtract),
    "mul": _ufunc(np.multiply),
    "div": _ufunc(np.true_divide),
    "pow": _ufunc(np.power),
    "maximum": _ufunc(_maximum),
    "minimum": _ufunc(_minimum),
    "floor_divide": _ufunc(np.floor_divide),
    "remainder": _ufunc(np.remainder),
    "fmod": _ufunc(np.fmod),
    "atan2": _ufunc(np.arctan2),
    "hypot": _ufunc(np.hypot),
    "copysign": _ufunc(np.copysign),
    "eq": _ufunc(np.equal),
    "ne": _ufunc(np.not_equal),
    "lt": _ufunc(np.less),
    "le": _ufunc(np.less_equal),
    "gt": _ufunc(np.greater),
    "ge": _ufunc(np.greater_equal),
    "logical_and": _ufunc(np.logical_and),
    "logical_or": _ufunc(np.logical_or),
    "logical_xor": _ufunc(np.logical_xor),
    "bitwise_and": _ufunc(np.bitwise_and),
    "bitwise_or": _ufunc(np.bitwise_or),
    "bitwise_xor": _ufunc(np.bitwise_xor),
    "left_shift": _ufunc(np.left_shift),
    "right_shift": _ufunc(np.right_shift),
    "where": _where,
    **dict.fromkeys(UFUNCS, _reduce),
    "softmax": _softmax,
    "log_softmax": _softmax,
}
CHECKED: Final = frozenset(("pow", "floor_divide", "remainder", "fmod"))
"""Of integers these look at their operands, and may refuse them."""
ALONG: Final = frozenset((*UFUNCS, "softmax", "log_softmax"))
KEEPS: Final = frozenset(("where",))
"""Ops that write their result while they still read an operand."""


def able(call: Call) -> bool:
    """Whether a chain can have this call."""
    if call.op not in LOWER or call.result.size == 0 or (call.blocks and call.op in ALONG):
        return False
    specs = [call.result, *(each for each in call.operands if isinstance(each, Spec))]
    if any(each.dtype in HALVES for each in specs):
        return False
    if call.op == "cast":
        return _casts_alike(call.tensor(0).dtype, call.result.dtype)
    return call.op not in CHECKED or call.result.dtype.kind == "f"


def _casts_alike(source: DType, target: DType) -> bool:
    """Whether a cast makes something, and has a value for everything: a float that is no integer may become any."""
    return source is not target and (source.kind in "biu" or target.kind == "b" or source.kind == target.kind)


def draft_of(chain: Chain, joined: int, *, whole: bool) -> Draft:
    """The calls of a chain whose columns are joined along so many of the last dimensions."""
    draft = Draft(tuple(range(-joined, 0)), whole, len(chain.sources))
    first = len(chain.sources)
    uses = {operand: at for at, value in enumerate(chain.values) for operand in value.operands}
    registers = list(range(first))
    for at, value in enumerate(chain.values):
        args = [registers[operand] for operand in value.operands]
        spent = {
            registers[n] for n in value.operands if n >= first and uses[n] == at and n - first not in chain.outputs
        }
        keeps = value.call.op in KEEPS
        if not keeps:
            for number in spent:
                draft.give(number)
        dtype = value.call.result.dtype.numpy
        if at in chain.outputs:
            out = draft.count
            draft.outputs.append((Register(out, value.column, dtype), value))
            draft.count += 1
        else:
            out = draft.take(value.column, dtype)
        registers.append(out)
        draft.column = value.column
        LOWER[value.call.op](draft, value.call, args, out)
        if keeps:
            for number in spent:
                draft.give(number)
        if first + at not in uses and at not in chain.outputs:
            draft.give(out)
    return draft
