"""Steps that change what is there: tags, writes in place, backward passes, deletions, fetches, flushes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .arranging import index_into
from .computing import broadcast, mask
from .drawer import Drawer, Slot
from .programs import SIGNALS


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
        arguments["index"], window = index_into(d, slot.shape)
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
        ins.append(mask(d, slot.shape))
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
