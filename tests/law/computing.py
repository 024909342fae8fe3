"""Steps that compute, element by element, by products and over axes: each a function of the drawer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from .drawer import Drawer, Slot, is_real, meet
from .programs import LARGEST, Shape, at

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


def mask(d: Drawer, shape: Shape) -> int:
    found = d.any(lambda slot: slot.dtype == "b1" and broadcast(slot.shape, shape) == shape)
    if found is not None:
        return found
    return d.create(tuple(1 if d.chance(4) else size for size in shape), "b1")


def where(d: Drawer) -> None:
    x = d.numeric()
    dtype, shape = d.slots[x].dtype, d.slots[x].shape
    condition = mask(d, shape)
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
        d.emit("masked_fill", [x, mask(d, slot.shape)], d.fresh(slot.shape, slot.dtype, x), scalar=0.5)
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
