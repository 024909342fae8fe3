"""A program while it is being drawn: what is known of each slot, and the choices that every kind of step makes.

A drawer knows shapes and dtypes, nothing else. Every choice is one call of `Draws.below`, so that hypothesis can shrink a
program and a plain seeded generator can make thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gt.ir.dtypes import as_dtype, result_type

from .programs import DTYPES, LARGEST, SIGNALS, Draws, Shape, Step, Varying


@dataclass(frozen=True)
class Slot:
    """What is known of a tensor: its shape and dtype, the memory that it shares, and whether gradients flow to it."""

    shape: Shape
    dtype: str
    group: int
    lasting: bool = False
    writable: bool = True
    param: bool = False
    grad: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def meet(slots: Sequence[Slot], scalars: Sequence[Any] = ()) -> str:
    """The dtype in which operands meet; that it is PyTorch's is proved elsewhere (`tests/ir/test_dtypes.py`)."""
    tensors = [(as_dtype(DTYPES[slot.dtype]), slot.ndim == 0) for slot in slots]
    met = result_type(tensors, list(scalars)).name
    return next(code for code, name in DTYPES.items() if name == met)


def is_real(slot: Slot) -> bool:
    """Whether a tensor holds integers or floating-point numbers."""
    return slot.dtype[0] in "if"


@dataclass
class Drawer:
    """A program being drawn."""

    draws: Draws
    slots: dict[int, Slot] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    signal: str | None = None
    backward: str | None = None
    lasting: bool = False
    parameters: list[int] = field(default_factory=list)
    slot_numbers: int = 0
    group_numbers: int = 0

    # choices

    def below(self, count: int) -> int:
        return self.draws.below(count)

    def chance(self, one_in: int) -> bool:
        """True once in `one_in` times; false is the simpler."""
        return self.draws.below(one_in) == one_in - 1

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.draws.below(len(options))]

    def axis(self, ndim: int) -> int:
        """An axis, in one of its two spellings."""
        return self.below(ndim) - (ndim if self.chance(4) else 0)

    def shape(self, ndim: int | None = None) -> Shape:
        if ndim is None:
            ndim = self.pick((2, 2, 1, 3, 2, 1, 0, 4))
        sizes = [self.pick(self.sizes) for _ in range(ndim)]
        while math.prod(sizes) > LARGEST:
            sizes[sizes.index(max(sizes))] = 2
        return tuple(sizes)

    def dtype(self) -> str:
        usual = ("f8", "f8", "f8", "f8", "f4", "i8", "b1", "f8", "f4", "i4")
        return self.pick(("c16", "c8", "f2b", "i2", "i1")) if self.chance(12) else self.pick(usual)

    def number(self, dtype: str) -> Any:
        """A Python scalar that a tensor of this dtype takes without changing its kind, sometimes one that varies."""
        if dtype[0] in "fc":
            value: Any = self.pick((0.5, 2.0, -1.25, 3, 0.1, 1.0, -2))
            return Varying(float(value), 0.25) if self.chance(4) else value
        return self.pick((2, -1, 3, 0)) if dtype[0] == "i" else True

    # slots

    def emit(self, op: str, ins: Sequence[int], *outs: Slot, no_grad: bool = False, **arguments: Any) -> list[int]:
        """Append a step; the numbers of its results."""
        numbers = list(range(self.slot_numbers, self.slot_numbers + len(outs)))
        self.slot_numbers += len(outs)
        self.slots.update(zip(numbers, outs, strict=True))
        self.steps.append(Step(op, tuple(numbers), tuple(ins), arguments, self.signal, self.backward, no_grad=no_grad))
        return numbers

    def fresh(self, shape: Shape, dtype: str, *ins: int) -> Slot:
        """A new tensor with memory of its own, computed from `ins`."""
        grad = dtype[0] in "fc" and any(self.slots[i].grad for i in ins)
        self.group_numbers += 1
        return Slot(tuple(shape), dtype, self.group_numbers, self.lasting, grad=grad)

    def view(self, of: int, shape: Shape, *, writable: bool = True) -> Slot:
        """A new handle on the memory of `of`."""
        base = self.slots[of]
        return replace(base, shape=tuple(shape), writable=base.writable and writable, param=False, lasting=self.lasting)

    def any(self, fits: Callable[[Slot], bool] = lambda slot: True) -> int | None:
        """A slot that fits; the latest are the likelier."""
        found = [number for number, slot in self.slots.items() if fits(slot)]
        if not found:
            return None
        recent = found[-4:]
        return self.pick(recent if self.below(3) else found)

    def tensor(self, fits: Callable[[Slot], bool] = lambda slot: True) -> int:
        """A slot that fits, or a new tensor that does."""
        found = self.any(fits)
        for _ in range(8):
            if found is not None:
                return found
            shape, dtype = self.shape(), self.dtype()
            if fits(Slot(shape, dtype, -1)):
                return self.create(shape, dtype)
        for dtype in ("f8", "b1", "i8"):
            for shape in ((4, 3), (5,), (2, 3, 4), ()):
                if fits(Slot(shape, dtype, -1)):
                    return self.create(shape, dtype)
        raise AssertionError("no tensor would fit")

    def like(self, shape: Shape, dtype: str) -> int:
        """A slot of this very shape and dtype, or a new one."""
        found = self.any(lambda slot: slot.shape == shape and slot.dtype == dtype) if not self.chance(3) else None
        return self.create(shape, dtype) if found is None else found

    def floating(self) -> int:
        return self.tensor(lambda slot: slot.dtype[0] == "f")

    def numeric(self) -> int:
        return self.tensor(is_real)

    def index(self, shape: Shape, high: int) -> int:
        """Integers in [0, high), drawn from the program's own generator."""
        slot = self.fresh(shape, "i8")
        return self.emit("randint", (), slot, low=0, high=high, shape=shape)[0]

    def create(self, shape: Shape, dtype: str) -> int:
        """A tensor from nothing."""
        slot = self.fresh(shape, dtype)
        if dtype in ("f8", "f4"):
            kind = self.below(8)
            if kind == 5:
                return self.emit("rand", (), slot, shape=shape, dtype=dtype)[0]
            if kind == 6:
                return self.emit("randn", (), slot, shape=shape, dtype=dtype)[0]
        if self.chance(8):
            value = {"b": True, "i": 3, "f": 0.75, "c": 0.75 - 0.5j}[dtype[0]]
            return self.emit("full", (), slot, shape=shape, value=value, dtype=dtype)[0]
        if len(shape) == 1 and dtype[0] in "if" and self.chance(4):
            step = self.pick((1, -2)) if dtype[0] == "i" else self.pick((0.5, -0.25))
            return self.emit("arange", (), slot, start=1, step=step, size=shape[0], dtype=dtype)[0]
        return self.emit("put", (), slot, seed=self.below(1000), shape=shape, dtype=dtype, grid=not self.chance(3))[0]

    # signals

    def maybe_signal(self) -> None:
        if self.chance(3):
            self.signal = self.pick((*SIGNALS, None))
            self.backward = self.pick((None, None, "c", "a")) if self.signal else None
