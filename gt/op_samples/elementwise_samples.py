"""Samples of ops that work element by element, join elements, move or find them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from gt.ir.attributes import Attributes
from gt.ir.dtypes import as_dtype, float64
from gt.ir.ops import OPS

from .sample import MAKERS, Array, Maker, OpSample, bools, either_end, floats, halves, index, ints

ShapePair = tuple[tuple[int, ...], tuple[int, ...]]


def creations(op: str) -> Iterator[OpSample]:
    scalars = {"full": (2.5,), "arange": (3, 2)}.get(op, (7, 11))
    for shape, edge in (((11,), False), ((5, 4), False), ((1, 3), True), ((0,), True), ((), True)):
        if op != "arange" or len(shape) == 1:
            yield OpSample(op, scalars, {"shape": shape, "dtype": float64}, edge)


def unaries(op: str) -> Iterator[OpSample]:
    for make in MAKERS[OPS[op].domain]:
        x = make(5, 4)
        if x.dtype.kind in "fc":
            x[0] = np.nan, np.inf, -np.inf, 0.7
        yield OpSample(op, (x,))
        for shape in ((1, 4), (0, 3), ()):
            yield OpSample(op, (make(*shape),), edge=True)


def casts(op: str) -> Iterator[OpSample]:
    for make, to in itertools.product(MAKERS["any"], ("float32", "int32", "bool")):
        x = make(5, 4) * make(5, 4)
        x[0] = 0
        yield OpSample(op, (x,), {"dtype": as_dtype(to)})


def bitcasts(op: str) -> Iterator[OpSample]:
    for make, to in ((floats, "int32"), (floats, "int64"), (ints, "uint8"), (bools, "int16"), (halves, "bool")):
        yield OpSample(op, (make(5, 16),), {"dtype": as_dtype(to)})
    yield OpSample(op, (floats(),), {"dtype": as_dtype("int64")}, edge=True)
    yield OpSample(op, (floats(0, 4),), {"dtype": as_dtype("uint8")}, edge=True)


def binaries(op: str) -> Iterator[OpSample]:
    for make in MAKERS[OPS[op].domain]:

        def tensor(shape: tuple[int, ...], make: Maker = make) -> Array:
            x = make(*shape)
            return np.asarray(np.abs(x)) if op == "pow" and x.dtype.kind != "c" else x

        shapes: tuple[ShapePair, ...] = (((5, 4), (5, 4)), ((5, 4), (4,)), ((5, 1), (3, 1, 4)), ((4,), (5, 1)))
        for a, b in shapes:
            yield OpSample(op, (tensor(a), tensor(b)))
        scalar = {"f": 1.5, "i": 2, "b": True, "c": 1 - 1j}[make().dtype.kind]
        yield OpSample(op, (tensor((5, 4)), scalar))
        yield OpSample(op, (scalar, tensor((5, 4))))
        edges: tuple[ShapePair, ...] = (((1, 4), (4,)), ((0, 4), (1, 4)), ((1, 1), (1,)), ((), ()), ((3,), ()))
        for a, b in edges:
            yield OpSample(op, (tensor(a), tensor(b)), edge=True)


def wheres(op: str) -> Iterator[OpSample]:
    for make in MAKERS["any"]:
        yield OpSample(op, (bools(5, 4), make(5, 4), make(5, 4)))
    yield OpSample(op, (bools(5, 1), floats(4), floats(5, 4)))
    yield OpSample(op, (bools(4), floats(5, 4), 1.5))
    yield OpSample(op, (bools(5, 4), 2.5, floats(5, 1)))
    yield OpSample(op, (bools(1, 4), floats(4), floats(1, 1)), edge=True)
    yield OpSample(op, (bools(0, 4), floats(1, 4), 0.5), edge=True)


def reductions(op: str) -> Iterator[OpSample]:
    for make, keepdims in itertools.product(MAKERS[OPS[op].domain], (False, True)):
        for axes in ((2,), (0, 2)):
            yield OpSample(op, (make(2, 40, 2),), {"axes": axes, "keepdims": keepdims})
        yield OpSample(op, (make(5, 4),), {"axes": (), "keepdims": keepdims}, edge=True)
        yield OpSample(op, (make(1, 4),), {"axes": (0,), "keepdims": keepdims}, edge=True)
        yield OpSample(op, (make(2, 0),), {"axes": (0,), "keepdims": keepdims}, edge=True)
        if op not in ("max", "min"):
            yield OpSample(op, (make(2, 0),), {"axes": (1,), "keepdims": keepdims}, edge=True)


def args(op: str) -> Iterator[OpSample]:
    for axis, keepdims in itertools.product((0, 1), (False, True)):
        yield OpSample(op, (floats(5, 4),), {"axis": axis, "keepdims": keepdims})
        yield OpSample(op, (ints(4, 1),), {"axis": axis, "keepdims": keepdims}, edge=True)
    yield OpSample(op, (floats(0, 4),), {"axis": 1, "keepdims": False}, edge=True)


def reshapes(op: str) -> Iterator[OpSample]:
    shapes: tuple[ShapePair, ...] = (
        ((4, 6), (24,)), ((24,), (4, 6)), ((4, 6), (2, 2, 6)), ((4, 6), (4, 2, 3)), ((4, 6), (8, 3)),
        ((2, 3, 4), (6, 4)), ((5, 4), (4, 5)), ((12, 5), (3, 4, 5)),
    )  # fmt: skip
    for old, new in shapes:
        yield OpSample(op, (floats(*old),), {"shape": new})
    edges: tuple[ShapePair, ...] = (
        ((6, 1, 4), (6, 4)),
        ((6, 4), (1, 6, 4)),
        ((0, 3), (3, 0)),
        ((), (1,)),
        ((1, 1), ()),
    )
    for old, new in edges:
        yield OpSample(op, (ints(*old),), {"shape": new}, edge=True)


def permutes(op: str) -> Iterator[OpSample]:
    yield OpSample(op, (floats(3, 4, 5),), {"axes": (2, 0, 1)})
    yield OpSample(op, (bools(5, 4),), {"axes": (1, 0)})
    yield OpSample(op, (floats(1, 0),), {"axes": (1, 0)}, edge=True)


def expands(op: str) -> Iterator[OpSample]:
    for old, new in (((4,), (5, 4)), ((5, 1), (5, 4)), ((5, 1, 3), (2, 5, 4, 3)), ((), (5,))):
        yield OpSample(op, (floats(*old),), {"shape": new})
    for old, new in (((1, 4), (1, 4)), ((1, 4), (0, 4)), ((1,), (3, 1))):
        yield OpSample(op, (floats(*old),), {"shape": new}, edge=True)


def cats(op: str) -> Iterator[OpSample]:
    yield OpSample(op, (floats(5, 4), floats(5, 3)), {"axis": 1})
    yield OpSample(op, (floats(3, 4), floats(2, 4), floats(4, 4)), {"axis": 0})
    yield OpSample(op, (bools(5, 4),), {"axis": 0}, edge=True)
    yield OpSample(op, (floats(0, 4), floats(1, 4)), {"axis": 0}, edge=True)


def slices(op: str) -> Iterator[OpSample]:
    def window(axes: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]) -> Attributes:
        return {"axes": axes, "sizes": sizes, "steps": steps}

    def value(*shape: int) -> tuple[Array, ...]:
        return (floats(*shape),) if op == "update_slice" else ()

    yield OpSample(op, (floats(6, 5), *value(3, 5), 2), window((0,), (3,), (1,)))
    yield OpSample(op, (floats(6, 5), *value(3, 2), 5, 1), window((0, 1), (3, 2), (-2, 2)))
    yield OpSample(op, (floats(4, 5, 3), *value(4, 2, 3), 3), window((1,), (2,), (1,)))
    yield OpSample(op, (floats(6, 5), *value(6, 5)), window((), (), ()), edge=True)
    yield OpSample(op, (floats(6, 1), *value(0, 1), 2), window((0,), (0,), (1,)), edge=True)


def gathers(op: str) -> Iterator[OpSample]:
    def values(*shape: int) -> tuple[Array, ...]:
        return (floats(*shape),) if op.startswith("scatter") else ()

    for x, at, axis, edge in (
        ((5, 4), (5, 7), 1, False), ((5, 4), (3, 4), 0, False), ((5, 4), (4, 4), 1, False),
        ((5, 4, 3), (5, 2, 3), 1, False),
        ((1, 4), (1, 2), 1, True), ((5, 4), (5, 0), 1, True), ((0, 4), (0, 2), 1, True),
    ):  # fmt: skip
        yield OpSample(op, (floats(*x), index(x[axis], *at), *values(*at)), {"axis": axis}, edge)


def takes(op: str) -> Iterator[OpSample]:
    for make in MAKERS["any"]:
        yield OpSample(op, (make(5, 4), index(4, 7)), {"axis": 1})
    for x, at, axis, edge in (
        ((7, 4), (5, 3), 0, False), ((3, 7, 4), (6,), 1, False), ((7, 4), (), 0, False),
        ((1, 4), (2,), 0, True), ((5, 4), (0,), 1, True), ((4, 0), (3,), 0, True),
    ):  # fmt: skip
        yield OpSample(op, (floats(*x), either_end(x[axis], *at)), {"axis": axis}, edge)


def segment_sums(op: str) -> Iterator[OpSample]:
    for make in MAKERS["number"]:
        yield OpSample(op, (make(5, 7), index(4, 7)), {"axis": 1, "size": 4})
    for values, at, axis, size, edge in (
        ((5, 3, 4), (5, 3), 0, 7, False), ((3, 6, 4), (6,), 1, 5, False), ((4,), (), 0, 5, True),
        ((2, 4), (2,), 0, 1, True), ((5, 0), (0,), 1, 4, True), ((3, 0), (3,), 0, 4, True),
    ):  # fmt: skip
        yield OpSample(op, (floats(*values), either_end(size, *at)), {"axis": axis, "size": size}, edge)


def matmuls(op: str) -> Iterator[OpSample]:
    for a, b in (
        ((5, 4), (4, 3)), ((3, 5, 4), (4, 6)), ((3, 5, 4), (3, 4, 6)), ((2, 1, 5, 4), (3, 4, 6)), ((5, 4), (3, 4, 6)),
    ):  # fmt: skip
        yield OpSample(op, (floats(*a), floats(*b)))
    yield OpSample(op, (ints(5, 4), ints(4, 3)))
    for a, b in (((1, 4), (4, 1)), ((3, 0), (0, 2)), ((1, 5, 1), (1, 1, 2)), ((0, 5), (5, 2))):
        yield OpSample(op, (floats(*a), floats(*b)), edge=True)
