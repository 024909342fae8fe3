"""Programs as data, and how they are drawn: straight lists of steps over numbered slots, run several times over.

A drawer knows shapes and dtypes, nothing else: values are the interpreters' business. Every choice is one call of
`Draws.below`, so that hypothesis can shrink a program and a plain seeded generator can make thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

from gt.dtypes import as_dtype, result_type

SIGNALS: Final = ("a", "b", "c", "a/b", "b/c", "c/a", "d")
"""Signals that programs name; `d` has never a rule."""
DTYPES: Final = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "f2": "float16", "f2b": "bfloat16",
    "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128",
}  # fmt: skip
"""Dtypes as programs write them, their kind first, and as GT does."""
LARGEST: Final = 12_000
"""Elements of the largest tensor."""

Shape = tuple[int, ...]


class Draws(Protocol):
    """Where choices come from: 0 is the simplest."""

    def below(self, count: int) -> int:
        """An integer from 0 up to but without `count`."""


class Varying(NamedTuple):
    """A number that changes from one repetition to the next: a run-time scalar."""

    base: Any
    by: Any

    def at(self, repetition: int) -> Any:
        """The number in a repetition."""
        return self.base + self.by * repetition


class Moving(NamedTuple):
    """A slice of fixed size at a start that moves from one repetition to the next."""

    size: int
    by: int
    room: int

    def at(self, repetition: int) -> slice:
        """The slice in a repetition."""
        start = self.by * repetition % (self.room + 1)
        return slice(start, start + self.size)


def at(value: Any, repetition: int) -> Any:
    """An argument of a step as it is in a repetition."""
    if isinstance(value, (Varying, Moving)):
        return value.at(repetition)
    return tuple(at(item, repetition) for item in value) if type(value) is tuple else value


@dataclass(frozen=True)
class Step:
    """One statement. `signal` is the path that it runs in, `backward` what that path's gradients are called."""

    op: str
    outs: tuple[int, ...]
    ins: tuple[int, ...]
    arguments: dict[str, Any]
    signal: str | None = None
    backward: str | None = None
    no_grad: bool = False

    def __str__(self) -> str:
        given = [f"t{i}" for i in self.ins] + [f"{key}={value!r}" for key, value in self.arguments.items()]
        outs = ", ".join(f"t{i}" for i in self.outs)
        where = f"  # in {self.signal}" if self.signal else ""
        where += f", backward {self.backward}" if self.backward else ""
        where += "  # no_grad" if self.no_grad else ""
        return f"{outs}{' = ' if outs else ''}{self.op}({', '.join(given)}){where}"


@dataclass(frozen=True)
class Program:
    """`setup` once, then `body` `repeats` times. Slots of the setup are there in every repetition."""

    seed: int
    setup: tuple[Step, ...]
    body: tuple[Step, ...]
    repeats: int

    def __str__(self) -> str:
        lines = [f"manual_seed({self.seed})", *map(str, self.setup), f"repeat {self.repeats} times:"]
        return "\n".join([*lines, *(f"    {step}" for step in self.body)])


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
    """The dtype in which operands meet; that it is PyTorch's is proved elsewhere (`tests/test_dtypes.py`)."""
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


# kinds of steps, each a function of the drawer

_UNARY: Final = ("neg", "relu", "abs", "square", "sign", "clone")
_ROUNDING: Final = ("floor", "ceil", "round")
_SMOOTH: Final = (
    "tanh", "sin", "sigmoid", "cos", "exp_sin", "expm1_tanh", "log1p_square", "sqrt_square", "rsqrt_square",
    "reciprocal", "power", "gelu", "silu", "cube",
)  # fmt: skip
_BINARY: Final = ("add", "mul", "sub", "maximum", "minimum")
_COMPARE: Final = ("lt", "ge", "gt", "le", "eq", "ne")


def unary(d: Drawer) -> None:
    x = d.numeric()
    slot = d.slots[x]
    op = d.pick((*_UNARY, *(_ROUNDING if slot.dtype[0] == "f" else ())))
    d.emit(op, [x], d.fresh(slot.shape, slot.dtype, x))


def smooth(d: Drawer) -> None:
    x = d.numeric()
    op = d.pick(_SMOOTH)
    slot = d.slots[x]
    composed = op in ("log1p_square", "sqrt_square", "rsqrt_square", "reciprocal", "power", "gelu", "silu", "cube")
    if slot.dtype[0] != "f" and composed:
        op = "tanh"
    d.emit(op, [x], d.fresh(slot.shape, slot.dtype if slot.dtype[0] == "f" else "f4", x))


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """The common shape, if there is one that is not too large."""
    ndim = max(len(a), len(b))
    pairs = zip((1,) * (ndim - len(a)) + a, (1,) * (ndim - len(b)) + b, strict=True)
    out = []
    for x, y in pairs:
        if x != y and 1 not in (x, y):
            return None
        out.append(y if x == 1 else x)
    return tuple(out) if math.prod(out) <= max(LARGEST, math.prod(a), math.prod(b)) else None


def _partner(d: Drawer, x: int, fits: Callable[[Slot], bool]) -> int:
    """Another operand that broadcasts with `x`: one that there is, or a new one."""
    shape = d.slots[x].shape
    found = d.any(lambda slot: fits(slot) and broadcast(shape, slot.shape) is not None)
    if found is not None and not d.chance(4):
        return found
    new = tuple(1 if d.chance(3) else size for size in shape[d.below(len(shape) + 1) :])
    return d.create(new, d.slots[x].dtype)


def binary(d: Drawer, ops: Sequence[str] = _BINARY, result: str | None = None) -> None:
    x = d.numeric()
    op = d.pick(ops)
    if d.chance(3):
        number = d.number(d.slots[x].dtype)
        dtype = meet([d.slots[x]], [at(number, 0)])
        side = d.pick(("right", "left"))
        d.emit(op, [x], d.fresh(d.slots[x].shape, result or dtype, x), dtype=dtype, **{side: number})
        return
    y = _partner(d, x, is_real)
    dtype = meet([d.slots[x], d.slots[y]])
    shape = broadcast(d.slots[x].shape, d.slots[y].shape)
    assert shape is not None
    operands = [y, x] if d.chance(2) else [x, y]
    d.emit(op, operands, d.fresh(shape, result or dtype, x, y), dtype=dtype)


def compare(d: Drawer) -> None:
    binary(d, _COMPARE, "b1")


def divide(d: Drawer) -> None:
    x = d.floating()
    dtype = d.slots[x].dtype
    y = _partner(d, x, lambda slot: slot.dtype == dtype)
    shape = broadcast(d.slots[x].shape, d.slots[y].shape)
    assert shape is not None
    d.emit(d.pick(("div", "power_of")), [x, y], d.fresh(shape, dtype, x, y))


def whole_division(d: Drawer) -> None:
    x = d.numeric()
    dtype = d.slots[x].dtype
    scalar = d.pick((2, 3, -2)) if dtype[0] == "i" else d.pick((0.5, 2.0, -1.5))
    d.emit(d.pick(("remainder", "floor_divide")), [x], d.fresh(d.slots[x].shape, dtype, x), scalar=scalar)


def logic(d: Drawer) -> None:
    x = d.tensor(lambda slot: slot.dtype == "b1")
    if d.chance(3):
        d.emit("not", [x], d.fresh(d.slots[x].shape, "b1"))
        return
    y = _partner(d, x, lambda slot: slot.dtype == "b1")
    shape = broadcast(d.slots[x].shape, d.slots[y].shape)
    assert shape is not None
    d.emit(d.pick(("and", "or", "xor")), [x, y], d.fresh(shape, "b1"))


def _mask(d: Drawer, shape: Shape) -> int:
    found = d.any(lambda slot: slot.dtype == "b1" and broadcast(slot.shape, shape) == shape)
    if found is not None:
        return found
    return d.create(tuple(1 if d.chance(4) else size for size in shape), "b1")


def where(d: Drawer) -> None:
    x = d.numeric()
    dtype, shape = d.slots[x].dtype, d.slots[x].shape
    condition = _mask(d, shape)
    if d.chance(3):
        number = d.number(dtype)
        met = meet([d.slots[x]], [at(number, 0)])
        side = d.pick(("right", "left"))
        d.emit("where", [condition, x], d.fresh(shape, met, x), dtype=met, **{side: number})
        return
    y = _partner(d, x, is_real)
    both = broadcast(shape, d.slots[y].shape)
    assert both is not None
    dtype = meet([d.slots[x], d.slots[y]])
    d.emit("where", [condition, x, y], d.fresh(both, dtype, x, y), dtype=dtype)


def clamp(d: Drawer) -> None:
    x = d.floating()
    slot = d.slots[x]
    if d.chance(3):
        d.emit("masked_fill", [x, _mask(d, slot.shape)], d.fresh(slot.shape, slot.dtype, x), scalar=0.5)
    else:
        d.emit("clamp", [x], d.fresh(slot.shape, slot.dtype, x), low=-1.0, high=1.5)


def cast(d: Drawer) -> None:
    x = d.tensor(lambda slot: slot.dtype[0] != "c")
    slot = d.slots[x]
    wanted = ("f8", "f4", "i8", "i4", "b1", "f8", "f2", "f2b", "c16")
    wanted = d.pick([dtype for dtype in wanted if dtype != slot.dtype])
    d.emit("cast", [x], d.fresh(slot.shape, wanted, x), dtype=wanted)


def complex_numbers(d: Drawer) -> None:
    """Arithmetic of complex numbers, what makes them, and their parts."""
    x = d.any(lambda slot: slot.dtype[0] == "c")
    if x is None or d.chance(5):
        parts = d.floating()
        dtype = {"f8": "c16"}.get(d.slots[parts].dtype, "c8")
        other = d.like(d.slots[parts].shape, d.slots[parts].dtype)
        d.emit("complex", [parts, other], d.fresh(d.slots[parts].shape, dtype, parts, other))
        return
    slot = d.slots[x]
    kind = d.below(4)
    if kind == 0:
        whole = d.pick(("neg", "conj", "square_c", "exp_sin_c", "reciprocal_c", "tanh_c"))
        d.emit(whole, [x], d.fresh(slot.shape, slot.dtype, x))
    elif kind == 1:
        parts_dtype = {"c8": "f4", "c16": "f8"}[slot.dtype]
        op = d.pick(("real", "imag", "size_c", "view_as_real"))
        shape = (*slot.shape, 2) if op == "view_as_real" else slot.shape
        if op in ("real", "imag"):
            d.emit(op, [x], replace(d.view(x, shape), dtype=parts_dtype))
        elif len(shape) <= 5:
            d.emit(op, [x], d.fresh(shape, parts_dtype, x))
    elif kind == 2 and d.chance(2):
        axis, keepdims = _some_axes(d, slot.ndim), d.chance(3)
        d.emit("sum", [x], d.fresh(_without(slot.shape, axis, keepdims), slot.dtype, x), axis=axis, keepdims=keepdims)
    else:
        y = _partner(d, x, lambda other: other.dtype != "b1")
        dtype = meet([slot, d.slots[y]])
        shape = broadcast(slot.shape, d.slots[y].shape)
        assert shape is not None
        d.emit(d.pick(("add", "mul_c", "sub")), [x, y], d.fresh(shape, dtype, x, y), dtype=dtype)


def matmul(d: Drawer) -> None:
    x = d.tensor(lambda slot: slot.ndim >= 1 and slot.dtype != "b1")
    a = d.slots[x]
    inner = a.shape[-1]
    y = None
    if not d.chance(3):
        y = d.any(lambda b: b.dtype == a.dtype and b.ndim >= 1 and _product(a.shape, b.shape) is not None)
    if y is None:
        form = d.below(4)
        columns = d.pick(d.sizes)
        batch = a.shape[:-2] if form == 3 else ()
        batch = tuple(1 if d.chance(3) else size for size in batch)
        wanted = (inner,) if form == 2 else (*batch, inner, columns)
        if _product(a.shape, wanted) is None:
            wanted = (inner,)
        y = d.create(wanted, a.dtype)
    shape = _product(a.shape, d.slots[y].shape)
    if shape is not None:
        d.emit("matmul", [x, y], d.fresh(shape, a.dtype, x, y))


def _product(a: Shape, b: Shape) -> Shape | None:
    if a[-1] != (b[-2] if len(b) > 1 else b[0]):
        return None
    batch = broadcast(a[:-2], b[:-2])
    if batch is None:
        return None
    shape = (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))
    return shape if math.prod(shape) <= LARGEST else None


def linear(d: Drawer) -> None:
    """A layer of the setup, where one fits, on a batch."""
    layers = [
        (w, b) for w, b in zip(d.parameters, d.parameters[1:], strict=False) if d.slots[b].shape == d.slots[w].shape[:1]
    ]
    layers = [(w, b) for w, b in layers if d.slots[w].ndim == 2 and d.slots[w].dtype == d.slots[b].dtype]
    if not layers:
        return matmul(d)
    w, b = d.pick(layers)
    out, inner = d.slots[w].shape
    dtype = d.slots[w].dtype
    x = d.any(lambda slot: slot.dtype == dtype and slot.ndim >= 1 and slot.shape[-1] == inner)
    if x is None:
        x = d.create((*d.shape(d.pick((1, 1, 2)))[:2], inner), dtype)
    shape = (*d.slots[x].shape[:-1], out)
    if math.prod(shape) <= 4 * LARGEST:
        d.emit("linear", [x, w, b], d.fresh(shape, dtype, x, w, b))
    return None


def _some_axes(d: Drawer, ndim: int) -> Any:
    """None, one axis, or a list of several."""
    kind = d.below(4)
    if ndim == 0 or kind == 3:
        return None
    if kind == 2 and ndim >= 2:
        first = d.below(ndim)
        rest = [axis for axis in range(ndim) if axis != first and d.chance(2)]
        return [first, *rest]
    return d.axis(ndim)


def _without(shape: Shape, axis: Any, keepdims: bool) -> Shape:
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, list) else [axis]
    gone = {a % len(shape) for a in axes} if shape else set()
    return tuple(1 if i in gone else size for i, size in enumerate(shape) if keepdims or i not in gone)


def reduction(d: Drawer) -> None:
    x = d.tensor(lambda slot: slot.dtype[0] != "c")
    slot = d.slots[x]
    axis, keepdims = _some_axes(d, slot.ndim), d.chance(3)
    shape = _without(slot.shape, axis, keepdims)
    ops = ["sum"]
    if slot.dtype != "b1" and (slot.size or (math.prod(shape) == 0 and _present(slot.shape, axis))):
        ops += ["amax", "amin"]
    if slot.dtype[0] == "f":
        ops += ["mean", "mean", "var"] if slot.size else []
    else:
        ops += ["any", "all"]
    if slot.dtype[0] != "b" and slot.size <= 8:
        ops += ["prod"]
    op = d.pick(ops)
    dtype = slot.dtype
    if op in ("sum", "prod") and dtype[0] != "f":
        dtype = "i8"
    if op in ("any", "all"):
        dtype = "b1"
    d.emit(op, [x], d.fresh(shape, dtype, x), axis=axis, keepdims=keepdims)


def _present(shape: Shape, axis: Any) -> bool:
    """Whether there is something to choose from along the axes."""
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, list) else [axis]
    return all(shape[a] for a in axes)


def choice(d: Drawer) -> None:
    """argmax, argmin, and max with its indices."""
    x = d.tensor(lambda slot: is_real(slot) and slot.ndim >= 1 and slot.size > 0)
    slot = d.slots[x]
    if d.chance(4):
        d.emit("argmax", [x], d.fresh((), "i8"), axis=None)
        return
    axis = d.axis(slot.ndim)
    shape = _without(slot.shape, axis, False)
    op = d.pick(("argmax", "max", "argmin"))
    if op == "max":
        d.emit(op, [x], d.fresh(shape, slot.dtype, x), d.fresh(shape, "i8"), axis=axis)
    else:
        d.emit(op, [x], d.fresh(shape, "i8"), axis=axis)


def softmax(d: Drawer) -> None:
    x = d.tensor(lambda slot: slot.dtype in ("f8", "f4") and slot.ndim >= 1)
    slot = d.slots[x]
    axis = d.axis(slot.ndim)
    op = d.pick(("softmax", "log_softmax", "logsumexp"))
    if op == "logsumexp":
        if not slot.size:
            return
        d.emit(op, [x], d.fresh(_without(slot.shape, axis, False), slot.dtype, x), axis=axis)
    else:
        d.emit(op, [x], d.fresh(slot.shape, slot.dtype, x), axis=axis)


def loss(d: Drawer) -> None:
    x = d.tensor(lambda slot: slot.dtype in ("f8", "f4") and slot.ndim == 2 and slot.size > 0)
    slot = d.slots[x]
    if d.chance(3):
        target = d.like(slot.shape, slot.dtype)
        d.emit("mse_loss", [x, target], d.fresh((), slot.dtype, x, target))
    else:
        target = d.index(slot.shape[:1], slot.shape[1])
        d.emit("cross_entropy", [x, target], d.fresh((), slot.dtype, x))


def reshape(d: Drawer) -> None:
    x = d.tensor()
    slot = d.slots[x]
    shape: list[int] = list(slot.shape)
    for _ in range(1 + d.below(2)):
        kind = d.below(3)
        if kind == 0 and len(shape) >= 2:
            first = d.below(len(shape) - 1)
            shape[first : first + 2] = [shape[first] * shape[first + 1]]
        elif kind == 1 and shape:
            place = d.below(len(shape))
            factors = [n for n in range(1, shape[place] + 1) if shape[place] % n == 0]
            factor = d.pick(factors[::-1]) if factors else 3
            shape[place : place + 1] = [factor, shape[place] // factor]
        else:
            shape = [slot.size]
    if len(shape) <= 5:
        d.emit("reshape", [x], d.view(x, tuple(shape)), shape=tuple(shape))


def turn(d: Drawer) -> None:
    x = d.tensor(lambda slot: slot.ndim >= 2)
    slot = d.slots[x]
    rest, axes = list(range(slot.ndim)), []
    while rest:
        axes.append(rest.pop(-1 - d.below(len(rest))))
    d.emit("permute", [x], d.view(x, tuple(slot.shape[axis] for axis in axes)), axes=tuple(axes))


def dimensions(d: Drawer) -> None:
    """unsqueeze, squeeze, expand, detach."""
    x = d.tensor(lambda slot: slot.ndim <= 4)
    slot = d.slots[x]
    kind = d.below(4)
    ones = [axis for axis, size in enumerate(slot.shape) if size == 1]
    if kind == 1 and ones:
        axis = d.pick(ones)
        d.emit("squeeze", [x], d.view(x, slot.shape[:axis] + slot.shape[axis + 1 :]), axis=axis)
    elif kind == 2:
        grown = tuple(d.pick(d.sizes) if size == 1 else size for size in slot.shape)
        shape = (d.pick(d.sizes), *grown) if d.chance(2) else grown
        if math.prod(shape) <= LARGEST:
            d.emit("expand", [x], d.view(x, shape, writable=False), shape=shape)
    elif kind == 3:
        d.emit("detach", [x], replace(d.view(x, slot.shape), grad=False))
    else:
        axis = d.below(slot.ndim + 1)
        d.emit("unsqueeze", [x], d.view(x, (*slot.shape[:axis], 1, *slot.shape[axis:])), axis=axis)


def _subscript(d: Drawer, shape: Shape) -> tuple[tuple[Any, ...], Shape]:
    """A subscript, and the shape of what it selects."""
    index: list[Any] = []
    out: list[int] = []
    for size in shape:
        kind = d.below(6)
        if kind == 0 or (size == 0 and kind != 5):
            index.append(slice(None))
            out.append(size)
        elif kind == 1:
            start = d.below(size)
            count = 1 + d.below(size - start)
            index.append(slice(start, start + count))
            out.append(count)
        elif kind == 2:
            count = 1 + d.below(size)
            index.append(Moving(count, 1 + d.below(3), size - count))
            out.append(count)
        elif kind == 3:
            index.append(d.below(size) - (size if d.chance(3) else 0))
        elif kind == 4:
            step = d.pick((-1, 2, -2, 3))
            index.append(slice(None, None, step))
            out.append(len(range(size)[::step]))
        else:
            index.append(slice(1, None) if size else slice(None))
            out.append(max(size - 1, 0))
    if d.chance(6):
        place = d.below(len(index) + 1)
        before = sum(not isinstance(item, int) for item in index[:place])
        index.insert(place, None)
        out.insert(before, 1)
    if index[:1] == [slice(None)] and d.chance(4):
        index[0] = ...
    while len(index) > 1 and index[-1] == slice(None) and index[0] is not ... and d.chance(2):
        index.pop()
    return tuple(index), tuple(out)


def subscript(d: Drawer) -> None:
    x = d.tensor(lambda slot: slot.ndim >= 1)
    index, shape = _subscript(d, d.slots[x].shape)
    d.emit("index", [x], d.view(x, shape), index=index)


def split(d: Drawer) -> None:
    x = d.tensor(lambda slot: slot.ndim >= 1)
    slot = d.slots[x]
    axis = d.below(slot.ndim)
    first = d.below(slot.shape[axis] + 1)
    parts = [first, slot.shape[axis] - first]
    views = [d.view(x, (*slot.shape[:axis], part, *slot.shape[axis + 1 :])) for part in parts]
    d.emit("split", [x], *views, parts=parts, axis=axis)


def join(d: Drawer) -> None:
    x = d.tensor(lambda slot: slot.ndim >= 1)
    slot = d.slots[x]
    if d.chance(3):
        y = d.like(slot.shape, slot.dtype)
        axis = d.below(slot.ndim + 1)
        shape = (*slot.shape[:axis], 3, *slot.shape[axis:])
        if math.prod(shape) <= LARGEST and len(shape) <= 5:
            d.emit("stack", [x, y, x], d.fresh(shape, slot.dtype, x, y), axis=axis)
        return
    axis = d.below(slot.ndim)

    def fits(other: Slot) -> bool:
        sides = other.shape[:axis] == slot.shape[:axis] and other.shape[axis + 1 :] == slot.shape[axis + 1 :]
        return other.dtype == slot.dtype and other.ndim == slot.ndim and sides

    found = d.any(fits)
    other = (*slot.shape[:axis], d.pick(d.sizes), *slot.shape[axis + 1 :])
    y = found if found is not None and not d.chance(3) else d.create(other, slot.dtype)
    total = slot.shape[axis] + d.slots[y].shape[axis]
    shape = (*slot.shape[:axis], total, *slot.shape[axis + 1 :])
    if math.prod(shape) <= 2 * LARGEST:
        d.emit("cat", [x, y], d.fresh(shape, slot.dtype, x, y), axis=axis)


def triangle(d: Drawer) -> None:
    """repeat, tril."""
    x = d.tensor(lambda slot: slot.ndim >= 2 and slot.dtype != "b1")
    slot = d.slots[x]
    if d.chance(2):
        d.emit("tril", [x], d.fresh(slot.shape, slot.dtype, x), diagonal=d.below(3) - 1)
        return
    times = tuple(1 + d.below(2) for _ in slot.shape)
    shape = tuple(a * b for a, b in zip(times, slot.shape, strict=True))
    if math.prod(shape) <= LARGEST:
        d.emit("repeat", [x], d.fresh(shape, slot.dtype, x), times=times)


def places(d: Drawer) -> None:
    """gather, index_select, scatter_add, one_hot."""
    x = d.tensor(lambda slot: slot.ndim >= 1 and slot.size > 0 and slot.dtype in ("f8", "f4", "i8"))
    slot = d.slots[x]
    kind = d.below(4)
    axis = d.below(slot.ndim)
    size = slot.shape[axis]
    if kind == 3 and size <= 40:
        labels = d.index(slot.shape, 4)
        d.emit("one_hot", [labels], d.fresh((*slot.shape, 4), "i8"), num_classes=4)
        return
    count = d.pick(d.sizes)
    shape = (*slot.shape[:axis], count, *slot.shape[axis + 1 :])
    if math.prod(shape) > LARGEST:
        return
    if kind == 1:
        i = d.index((count,), size)
        d.emit("index_select", [x, i], d.fresh(shape, slot.dtype, x), axis=axis)
        return
    if d.chance(2):  # an index may be smaller than what it reads, beside the axis too
        shape = tuple(n if a == axis else n - d.below(min(n, 3)) for a, n in enumerate(shape))
    i = d.index(shape, size)
    if kind == 2:
        v = d.like(shape, slot.dtype)
        d.emit("scatter_add", [x, i, v], d.fresh(slot.shape, slot.dtype, x, v), axis=axis)
    else:
        d.emit("gather", [x, i], d.fresh(shape, slot.dtype, x), axis=axis)


def chance(d: Drawer) -> None:
    """Random numbers, dropout."""
    if d.chance(2):
        d.create(d.shape(), d.pick(("f8", "f4")))
        return
    x = d.tensor(lambda slot: slot.dtype in ("f8", "f4"))
    d.emit("dropout", [x], d.fresh(d.slots[x].shape, d.slots[x].dtype, x), p=d.pick((0.5, 0.25)))


def constant(d: Drawer) -> None:
    x = d.numeric()
    slot = d.slots[x]
    d.emit("like", [x], d.fresh(slot.shape, slot.dtype), fill_value=d.pick((0, 1, 2)))


def tag(d: Drawer) -> None:
    x = d.tensor()
    slot = d.slots[x]
    d.emit("tag", [x], d.fresh(slot.shape, slot.dtype, x), name=d.pick(SIGNALS))


def in_place(d: Drawer) -> None:
    """A write: to a tensor, or through a view of it, which all that shares its memory sees."""
    x = d.any(lambda slot: slot.writable)
    if x is None:
        return
    slot = d.slots[x]
    group = [number for number, other in d.slots.items() if other.group == slot.group]
    learnt = any(d.slots[number].param for number in group)
    kept = any(d.slots[number].lasting for number in group)
    quiet = learnt or (kept and slot.grad) or d.chance(8)

    def fits(other: Slot) -> bool:
        return other.dtype == slot.dtype and (quiet or not kept or not other.grad)

    op = d.pick(("set", "add_", "copy_", "mul_", "clamp_", "zero_", "tanh_", "masked_fill_", "set"))
    ins: list[int] = [x]
    arguments: dict[str, Any] = {}
    if op == "set":
        arguments["index"], window = _subscript(d, slot.shape)
        value = d.any(lambda other: fits(other) and broadcast(other.shape, window) == window)
        if value is None or d.chance(4):
            arguments["scalar"] = d.number(slot.dtype)
        else:
            ins.append(value)
    elif op in ("add_", "copy_", "mul_"):
        if slot.dtype == "b1":
            op = "copy_"
        value = d.any(lambda other: fits(other) and broadcast(other.shape, slot.shape) == slot.shape)
        ins.append(d.create(slot.shape, slot.dtype) if value is None else value)
    elif slot.dtype[0] != "f" and op != "zero_":
        op = "zero_"
    elif op == "masked_fill_":
        ins.append(_mask(d, slot.shape))
        arguments["scalar"] = 0.5
    elif op == "clamp_":
        arguments.update(low=-2.0, high=1.0)
    if (
        op == "set"
        and "scalar" in arguments
        and slot.dtype[0] != "f"
        and not isinstance(arguments["scalar"], (int, bool))
    ):
        arguments["scalar"] = 1
    d.emit(op, ins, no_grad=quiet, **arguments)
    if not quiet and any(d.slots[i].grad for i in ins):
        for number in group:
            d.slots[number] = replace(d.slots[number], grad=True)


def backward(d: Drawer) -> None:
    """A loss of some tensor that was computed from parameters, and what follows from it."""
    x = d.any(lambda slot: slot.grad and not slot.param and slot.dtype[0] == "f")
    if x is None:
        x = d.any(lambda slot: slot.grad and slot.dtype[0] == "f")
    if x is None:
        return
    kind = d.pick(("sum", "square", "weights"))
    ins = [x]
    if kind == "weights":
        ins.append(d.like(d.slots[x].shape, d.slots[x].dtype))
        if d.slots[ins[1]].grad:
            ins = [x, d.create(d.slots[x].shape, d.slots[x].dtype)]
    step = d.pick((False, True, True))
    after = {"step": step, "zero": d.pick((True, False)), "look": d.chance(2)}
    d.emit("backward", ins, kind=kind, lr=d.pick((0.0625, 0.01)), **after)
    for number in [n for n, slot in d.slots.items() if slot.grad and not slot.param]:
        forget(d, number)


def forget(d: Drawer, number: int) -> None:
    """The program's handle dies."""
    d.emit("delete", [number])
    del d.slots[number]


def delete(d: Drawer) -> None:
    found = d.any(lambda slot: not slot.lasting)
    if found is not None:
        forget(d, found)


def fetch(d: Drawer) -> None:
    """The program looks at some tensors, now or later."""
    numbers = sorted({found for _ in range(1 + d.below(2)) if (found := d.any()) is not None})
    if numbers:
        d.emit("fetch", numbers, later=d.chance(2))


def flush(d: Drawer) -> None:
    d.emit("flush", [])


KINDS: Final = (
    *(matmul, binary, reduction) * 4, *(linear, reshape, subscript, smooth, backward, in_place, turn, unary) * 2,
    fetch, softmax, join, dimensions, where, places, divide, compare, cast, tag, loss, split, chance, delete, choice,
    triangle, logic, whole_division, clamp, constant, flush, complex_numbers, complex_numbers,
)  # fmt: skip


def _set_up(d: Drawer) -> None:
    """Tensors, parameters and an optimizer that last through all repetitions."""
    d.lasting = True
    for _ in range(1 + d.below(4)):
        d.maybe_signal()
        d.create(d.shape(), d.dtype())
    for _ in range(d.below(4)):
        d.maybe_signal()
        _parameters(d)
    if d.parameters:
        names = ("SGD", "Adam", "momentum", "AdamW")
        d.emit("optimizer", list(d.parameters), name=d.pick(names))
    if d.chance(2):
        d.maybe_signal()
        subscript(d) if d.chance(2) else reshape(d)
        for number, slot in list(d.slots.items()):
            if slot.grad and not slot.param:  # a view that remembers a graph that the first backward frees
                forget(d, number)
    d.lasting = False


def _parameters(d: Drawer) -> None:
    dtype = d.pick(("f8", "f8", "f8", "f4"))
    if not d.chance(3):
        inner, out = d.pick(d.sizes), d.pick(d.sizes)
        if inner * out > LARGEST:
            out = 3
        weight, bias = (replace(d.fresh(shape, dtype), param=True, grad=True) for shape in ((out, inner), (out,)))
        d.parameters += d.emit("Linear", (), weight, bias, inner=inner, out=out, dtype=dtype)
    else:
        shape = d.shape(d.pick((2, 1, 3)))
        source = d.create(shape, dtype)
        d.parameters += d.emit("Parameter", [source], replace(d.fresh(shape, dtype), param=True, grad=True))


def draw_program(draws: Draws) -> Program:
    """One program."""
    d = Drawer(draws)
    palette = (4, 3, 8, 5, 7, 2, 6, 1, 9, 0, 16, 12)
    d.sizes = [d.pick(palette) for _ in range(d.pick((2, 3, 1)))]
    if d.chance(6):
        d.sizes.append(d.pick((70, 101, 130)))
    seed = d.below(1 << 16)
    _set_up(d)
    setup, d.steps = d.steps, []
    for _ in range(3 + d.below(16)):
        d.maybe_signal()
        d.pick(KINDS)(d)
    d.signal = d.backward = None
    return Program(seed, tuple(setup), tuple(d.steps), 1 + d.below(3))
