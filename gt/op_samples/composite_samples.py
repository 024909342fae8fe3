"""Samples of ops on matrices, sequences, windows and whole axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gt.ir.attributes import Attributes
from gt.ir.ops import OPS

from .sample import MAKERS, Array, OpSample, bools, complexes, floats, halves, index, ints, random


def bytes_(*shape: int) -> Array:
    """Near the ends of int8, so that contributions to a partial sum wrap around."""
    return np.asarray(random.integers(118, 128, shape) * random.choice([-1, 1], shape), np.int8)


def int8_products(op: str) -> Iterator[OpSample]:
    make = bytes_ if op == "matmul_int8" else floats
    for x, w, edge in (
        ((5, 4), (7, 4), False), ((3, 5, 4), (6, 4), False), ((2, 3, 1, 7), (5, 7), True), ((1, 5), (1, 5), True),
        ((4, 0), (3, 0), True), ((0, 5), (2, 5), True), ((4, 5), (0, 5), True),
    ):  # fmt: skip
        yield OpSample(op, (make(*x), bytes_(*w)), edge=edge)


def attentions(op: str) -> Iterator[OpSample]:
    """Without a mask, or with one as the last operand: of booleans where it has an even number of dimensions."""
    many = op == "attention_grad"  # combinations of placements
    for stack, sizes, mask, causal, edge in (
        ((), (5, 7, 3, 4), None, True, False), ((), (5, 7, 3, 4), (5, 7), False, many),
        ((), (5, 7, 3, 4), None, False, True), ((3,), (5, 7, 3, 4), None, True, True),
        ((3, 4), (5, 7, 2, 3), (4, 1, 7), False, True), ((3,), (5, 6, 2, 2), (5, 1), False, True),
        ((3,), (4, 6, 2, 2), (3, 1, 6), True, True), ((2,), (5, 6, 2, 2), (6,), False, True),
        ((), (4, 5, 2, 3), (), False, True), ((), (1, 1, 4, 1), None, False, True),
        ((2,), (0, 3, 2, 2), None, True, True), ((0,), (3, 3, 2, 2), None, False, True),
    ):  # fmt: skip
        queries, keys, size, out = sizes
        operands = [floats(*stack, queries, size), floats(*stack, keys, size), floats(*stack, keys, out)]
        operands += [floats(*stack, queries, out)] * (op == "attention_grad")
        masks = [] if mask is None else [floats(*mask)] if len(mask) % 2 else [bools(*mask)]
        yield OpSample(op, (*operands, *masks), {"causal": causal}, edge)


def recurrences(op: str) -> Iterator[OpSample]:
    """All steps there and back; of a GRU with and without a bias under the reset."""
    cell = op.removesuffix("_grad")
    gates, states, planes = {"lstm": (4, 2, 6), "gru": (3, 1, 5), "rnn": (1, 1, 1)}[cell]
    many = op in (
        "lstm_grad",
        "gru_grad",
        "rnn",
    )  # combinations of placements; a dimension of one element in every sample
    for rows, steps, size, reverse, other, edge in (
        (5, 3, 2, False, True, many), (4, 2, 3, True, True, True), (5, 3, 2, True, False, True), (1, 1, 1, False, False, True),
        (0, 2, 2, False, True, True),
    ):  # fmt: skip
        weight, more = floats(gates * size, size), {"relu": other} if cell == "rnn" else {}
        if op == cell:
            biases = [floats(gates * size), *[floats(size)] * (cell == "gru")] * other
            attributes = more or {"kept": other}
            begin = [floats(rows, size) for _ in range(states)]
            yield OpSample(
                op,
                (floats(steps, rows, 2), floats(gates * size, 2), weight, *begin, *biases),
                {"reverse": reverse, **attributes},
                edge,
            )
            continue
        given = [floats(steps, rows, size), *(floats(rows, size) for _ in range(states))]
        attributes = {"reverse": reverse, "states": other, **more}
        yield OpSample(op, (floats(planes, steps + 1, rows, size), weight, *given), attributes, edge)


def solves(op: str) -> Iterator[OpSample]:
    for a, b, edge in (
        ((4, 4), (4, 5), False), ((3, 4, 4), (3, 4, 2), False), ((4, 4), (5, 4, 3), False), ((5, 1, 3, 3), (4, 3, 2), False),
        ((0, 3, 3), (3, 2), True), ((1, 1), (1, 4), True),
    ):  # fmt: skip
        yield OpSample(op, (floats(*a) + 4 * np.eye(a[-1]), floats(*b)), {}, edge)
    yield OpSample(op, (complexes(3, 2, 2), complexes(2, 3)))


def matrices(op: str) -> Iterator[OpSample]:
    """Hermitian and positive definite, as some need them."""
    choices = [{"full": False}, {"full": True}] if op in ("qr", "svd") else [{}]
    for attributes in choices:
        for make, shape, edge in (
            (floats, (5, 3, 3), False), (floats, (4, 5, 2, 2), False), (complexes, (4, 2, 2), False),
            (floats, (2, 2), True), (floats, (0, 2, 2), True),
        ):  # fmt: skip
            x = make(*shape)
            x = x @ x.swapaxes(-1, -2).conj() + np.eye(shape[-1])
            yield OpSample(op, (x,), attributes, edge)
        if attributes:
            yield OpSample(op, (floats(5, 4, 3),), attributes)


def transforms(op: str) -> Iterator[OpSample]:
    make = floats if op == "rfft" else complexes
    for axis in (0, 1):
        more: Attributes = {"inverse": bool(axis)} if op == "fft" else {"size": 7 - axis} if op == "irfft" else {}
        yield OpSample(op, (make(4, 4, 3),), {"axis": axis, **more})
    yield OpSample(op, (make(2, 0),), {"axis": 0, **({"size": 2} if op == "irfft" else more)}, edge=True)


def convs(op: str) -> Iterator[OpSample]:
    def of(x: tuple[int, ...], w: tuple[int, ...], edge: bool = False, **given: Any) -> OpSample:
        count = len(x) - 3
        attributes = {
            "strides": (1,) * count,
            "pads": (0,) * 2 * count,
            "spreads": (1,) * count,
            "dilations": (1,) * count,
        }
        return OpSample(op, (floats(*x), floats(*w)), {**attributes, **given}, edge)

    yield of((5, 2, 3, 7), (2, 4, 3, 3))
    yield of((3, 2, 4, 6, 5), (2, 3, 4, 2, 3), strides=(3, 1), pads=(1, 0, -1, 2), dilations=(1, 2), spreads=(2, 1))
    yield of((1, 1, 2, 3), (1, 1, 2, 3), edge=True)
    yield of((2, 1, 0, 3), (1, 3, 0, 2), edge=True)


def swaps(op: str) -> Iterator[OpSample]:
    yield OpSample(op, (np.stack([index(4, 3) + 1 for _ in range(5)]),), {"size": 4})
    yield OpSample(op, (index(4, 3) + 1,), {"size": 4}, edge=True)


def sliding(op: str) -> Iterator[OpSample]:
    for make in MAKERS["any"]:
        yield OpSample(op, (make(5, 7),), {"axes": (1,), "sizes": (3,), "strides": (2,), "dilations": (1,)})
    yield OpSample(op, (floats(6, 4, 7),), {"axes": (0, 2), "sizes": (2, 3), "strides": (1, 2), "dilations": (3, 2)})
    yield OpSample(op, (floats(1, 4),), {"axes": (1,), "sizes": (4,), "strides": (1,), "dilations": (1,)}, edge=True)


def overlaps(op: str) -> Iterator[OpSample]:
    for make in MAKERS["number"]:
        yield OpSample(op, (make(5, 3, 3),), {"axes": (1,), "sizes": (7,), "strides": (2,), "dilations": (1,)})
    yield OpSample(
        op, (floats(3, 4, 2, 2, 3),), {"axes": (0, 2), "sizes": (4, 8), "strides": (1, 3), "dilations": (1, 2)}
    )
    yield OpSample(op, (floats(1, 1, 4),), {"axes": (1,), "sizes": (4,), "strides": (1,), "dilations": (1,)}, edge=True)


def poolings(op: str) -> Iterator[OpSample]:
    """Windows overlap: where they lie side by side nothing is added, so their gradients would be moved only."""
    for shape, axes, sizes, strides, dilations, edge in (
        ((5, 8, 3), (1,), (3,), (2,), (1,), False), ((4, 7, 6), (1, 2), (3, 2), (2, 2), (1, 1), False),
        ((6, 3, 7), (0, 2), (2, 3), (1, 2), (3, 2), True), ((1, 4), (1,), (4,), (1,), (1,), True),
    ):  # fmt: skip
        attributes = {"axes": axes, "sizes": sizes, "strides": strides, "dilations": dilations}
        for make in MAKERS[OPS[op].domain] if op == "max_pool" and not edge else [floats]:
            x = make(*shape)
            if op == "max_pool":
                yield OpSample(op, (x,), attributes, edge)
                continue
            extents = [(size - 1) * apart + 1 for size, apart in zip(sizes, dilations, strict=True)]
            largest = np.lib.stride_tricks.sliding_window_view(x, extents, axes)
            for at, (axis, stride, apart) in enumerate(zip(axes, strides, dilations, strict=True), len(shape)):
                largest = largest[(slice(None),) * axis + (slice(None, None, stride),)]
                largest = largest[(slice(None),) * at + (slice(None, None, apart),)]
            largest = largest.max(tuple(range(len(shape), largest.ndim)))
            yield OpSample(op, (x, largest, floats(*largest.shape)), attributes, edge)


def alongs(op: str) -> Iterator[OpSample]:
    more: Attributes = {"descending": True} if op == "argsort" else {}
    for make, axis in itertools.product(MAKERS[OPS[op].domain], (0, 1)):
        yield OpSample(op, (make(5, 4),), {"axis": axis, **more})
        yield OpSample(op, (make(1, 4),), {"axis": axis, **more}, edge=True)


def searches(op: str) -> Iterator[OpSample]:
    for make, right in itertools.product(MAKERS[OPS[op].domain], (False, True)):
        yield OpSample(op, (np.sort(make(7)), make(5, 4)), {"right": right})
        yield OpSample(op, (np.sort(make(5, 7)), make(5, 4)), {"right": right})
        yield OpSample(op, (np.sort(make(1)), make(4)), {"right": right}, edge=True)
        yield OpSample(op, (np.sort(make(0)), make()), {"right": right}, edge=True)


def compressions(op: str) -> Iterator[OpSample]:
    mask = bools(11)
    yield OpSample(op, (random.permutation(np.arange(11) < 6),), {"size": 6})
    yield OpSample(op, (mask & False,), {"size": 0}, edge=True)
    yield OpSample(op, (mask | True,), {"size": 11}, edge=True)


def row_orders(op: str) -> Iterator[OpSample]:
    yield OpSample(op, (ints(7, 3),))
    yield OpSample(op, (halves(7, 2),))
    yield OpSample(op, (halves(1, 3),), edge=True)
    yield OpSample(op, (halves(3, 0),), edge=True)


def tags(op: str) -> Iterator[OpSample]:
    yield OpSample(op, (floats(5, 4),), {"param": True})


def weights(op: str) -> Iterator[OpSample]:
    for make in MAKERS[OPS[op].domain]:
        yield OpSample(op, (np.abs(make(5, 4)),))
        for shape in ((1, 4), (0, 3), ()):
            yield OpSample(op, (np.asarray(np.abs(make(*shape))),), edge=True)


def follows(op: str) -> Iterator[OpSample]:
    yield OpSample(op, (floats(5, 4), floats(5, 4)))
