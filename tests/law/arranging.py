"""Steps that make, cut, turn and join tensors and look up places in them: each a function of the drawer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .drawer import Drawer, Slot
from .programs import LARGEST, Moving, Shape


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


def index_into(d: Drawer, shape: Shape) -> tuple[tuple[Any, ...], Shape]:
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
    index, shape = index_into(d, d.slots[x].shape)
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
