"""Piecewise chains: element-wise members of float32 and booleans in loops of machine code over pieces of 2,048 elements.

A piece's values stay in a core's nearest cache from one member to the next, and no member costs a call of NumPy's, so chains of
two pay, and so does a choice by itself. Members are NumPy's own inner loops, on whole stretches of memory: bits are those of the
members' kernels. Only where `make native` built the loops. Where tensors lie in memory in different orders, or not in one
stretch, the steps run one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import bool_, float32
from gt.ir.spec import Spec
from gt.worker.base.kernel_call import KernelCall
from gt.worker.device.exclusive_array import take_exclusive
from gt.worker.fusion.chains import Chain

from .reusable_memory import reusable_sources

piecewise: ModuleType | None
try:
    from gt.worker.element_loops import piecewise
except ImportError:
    piecewise = None

MAX_ELEMENTS: Final = 1 << 18
"""Elements of the largest chain: of more, threads share the strips."""
MIN_ROW: Final = 64
"""Elements of a row from which a piece that ends with it costs little."""
FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "maximum": np.maximum,
    "minimum": np.minimum, "neg": np.negative, "abs": np.absolute, "square": np.square, "sqrt": np.sqrt,
    "reciprocal": np.reciprocal, "exp": np.exp, "log": np.log, "tanh": np.tanh, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "logical_not": np.logical_not,
    "logical_and": np.logical_and, "logical_or": np.logical_or,
}  # fmt: skip
"""The function whose inner loop a member is; `relu` and `where` have forms of their own."""

Slots = list[Any]


def able(call: KernelCall) -> bool:
    """Whether a piecewise chain can have this call."""
    if call.op not in FUNCTIONS and call.op not in ("relu", "where"):
        return False
    condition = call.op == "where"
    if condition and not _is(call.operands[0], bool_):
        return False
    values = [call.result, *call.operands[condition:]]
    if any(isinstance(each, Spec) and each.dtype not in (float32, bool_) for each in values):
        return False
    if call.op.startswith("logical_"):
        return all(_is(each, bool_) for each in values)
    inputs = values[1:]
    return any(isinstance(each, Spec) for each in inputs) and all(
        each in ("b", "i", "f") if isinstance(each, str) else each.dtype is float32 for each in inputs
    )


def _is(operand: Spec | str, dtype: object) -> bool:
    return isinstance(operand, Spec) and operand.dtype is dtype


def row_of(chain: Chain) -> int | None:
    """The elements of the row that all sources which are one repeat, or of the whole where there is none; None where a source is
    anything else than a tensor of the chain's shape, a row of it, or a number."""
    whole, rows = math.prod(chain.shape), set()
    for source in chain.sources:
        kind = kind_of(source.spec, chain.shape)
        if kind is None:
            return None
        if kind == b"r":
            assert isinstance(source.spec, Spec), "a row is a tensor"
            rows.add(source.spec.size)
    if not rows:
        return whole
    row = rows.pop()
    return row if not rows and row >= MIN_ROW else None


def kind_of(known: Spec | str, shape: tuple[int, ...]) -> bytes | None:
    """What a source is to a chain of this shape, as `Pieces` calls it; None of what that has no word for."""
    if isinstance(known, str):
        return b"n"
    if known.shape == shape:
        return b"t"
    if known.size == 1:
        return b"n" if known.dtype is float32 else None
    at = len(shape) - known.ndim
    sizes = (1,) * at + known.shape
    first = next(number for number, size in enumerate(sizes) if size > 1)
    return b"r" if sizes[first:] == shape[first:] else None


def worth(chain: Chain) -> bool:
    """Whether loops are there for the chain, and pay."""
    if piecewise is None or chain.joined or not chain.outputs or not 0 < math.prod(chain.shape) <= MAX_ELEMENTS:
        return False
    if len(chain.values) < 2 and chain.values[0].call.op != "where":
        return False
    return all(able(value.call) for value in chain.values) and row_of(chain) is not None


def compile_piecewise(
    chain: Chain, dead: tuple[int, ...], by_steps: Callable[[Slots], None]
) -> Callable[[Slots], None]:
    """The action of a chain that is `worth` it. `by_steps` does the same one by one, for when tensors lie otherwise."""
    assert piecewise is not None, "only what is built is worth it"
    row, total, count = row_of(chain), math.prod(chain.shape), len(chain.sources)
    kinds = [kind_of(source.spec, chain.shape) or b"n" for source in chain.sources]
    kinds += [b"t" if at in chain.outputs else b"s" for at in range(len(chain.values))]
    specs: list[Spec | str] = [source.spec for source in chain.sources]
    specs += [value.call.result for value in chain.values]
    calls: list[tuple[Callable[..., Any] | None, tuple[int, ...]]] = []
    for at, value in enumerate(chain.values):
        registers = (*value.operands, count + at)
        if value.call.op == "relu":  # of two arrays the larger is found faster than of a number and an array
            registers = (len(kinds), *registers)
            kinds.append(b"z")
        function = None if value.call.op == "where" else FUNCTIONS.get(value.call.op, np.maximum)
        calls.append((function, registers))
    booleans = {number for number, each in enumerate(specs) if _is(each, bool_)}
    pieces = piecewise.Pieces(calls, b"".join(kinds), booleans)
    slots_of = [source.slot for source in chain.sources]
    results = [
        (count + number, chain.values[number].slot, chain.values[number].call.result.dtype.numpy, memory)
        for number, memory in zip(chain.outputs, reusable_sources(chain, dead), strict=True)
    ]
    rest: list[Any] = [None] * len(chain.values)
    shape = chain.shape

    def action(slots: Slots) -> None:
        operands = [slots[slot] for slot in slots_of]
        order = pieces.order(operands)
        if not order:
            operands.clear()
            by_steps(slots)
            return
        operands += rest
        made = []
        for number, slot, dtype, memory in results:
            array = _inherited(slots, memory, operands, slots_of) if memory and order == 1 else None
            if array is None:
                array = np.empty(shape, dtype, "C" if order == 1 else "F")
            operands[number] = array
            made.append((slot, array))
        pieces.run(operands, total, row)
        for slot, array in made:
            slots[slot] = array
        for slot in dead:
            slots[slot] = None

    return action


def _inherited(slots: Slots, memory: tuple[int, ...], operands: list[Any], slots_of: Sequence[int]) -> Any:
    """The array of one of these slots, which nobody else holds; None if there is none."""
    for slot in memory:
        if slots[slot] is None:
            continue  # another result has taken it
        at = slots_of.index(slot)
        operands[at] = None  # it counts as one who holds it
        array = take_exclusive(slots, slot)
        if array is not None:
            operands[at] = array
            return array
        operands[at] = slots[slot]
    return None
