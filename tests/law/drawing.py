"""How a program is drawn: what is set up once, and how often each kind of step comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from .arranging import chance, constant, dimensions, join, places, reshape, split, subscript, triangle, turn
from .computing import (
    binary,
    cast,
    choice,
    clamp,
    compare,
    complex_numbers,
    divide,
    linear,
    logic,
    loss,
    matmul,
    reduction,
    smooth,
    softmax,
    unary,
    where,
    whole_division,
)
from .drawer import Drawer
from .effects import backward, delete, fetch, flush, forget, in_place, tag
from .programs import LARGEST, Draws, Program

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
