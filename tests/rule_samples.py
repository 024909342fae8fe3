"""One instruction of every kind, with operands: on these the sharding rows are tried out.

Sizes are such that cuts are uneven; broadcasting, empty and one-element dimensions all occur. No rule may be in here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np

from gt.ir.attributes import Attributes
from gt.ir.dtypes import as_dtype, float64, scalar_kind
from gt.ir.infer import infer
from gt.ir.ops import OPS
from gt.ir.spec import Spec, spec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Sample:
    """One instruction with its operands. At an `edge` shapes or attributes are such that much works by accident."""

    op: str
    operands: tuple[Any, ...]
    attributes: Attributes = field(default_factory=dict)
    edge: bool = False

    @cached_property
    def specs(self) -> tuple[Spec | str, ...]:
        return tuple(spec_of(x) if isinstance(x, np.ndarray) else scalar_kind(x) for x in self.operands)

    @cached_property
    def result(self) -> Spec:
        return infer(self.op, self.specs, self.attributes)[0]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.specs))
        return f"{self.op}({shown}) {self.attributes}"


def spec_of(array: Array) -> Spec:
    return spec(as_dtype(array.dtype), array.shape)


random = np.random.default_rng()
"""One source for all samples of an op, so that no two operands are alike; `drawn` seeds it."""


def floats(*shape: int) -> Array:
    return np.asarray(random.standard_normal(shape))


def halves(*shape: int) -> Array:
    """Floats of which some are equal."""
    return np.asarray(np.round(random.standard_normal(shape) * 2) / 2)


def ints(*shape: int) -> Array:
    """Small, so that comparisons are true now and then; never zero, by which integers cannot be divided."""
    return np.asarray(random.integers(1, 4, shape) * random.choice([-1, 1], shape))


def bools(*shape: int) -> Array:
    return np.asarray(random.random(shape) < 0.5)


def index(below: int, *shape: int) -> Array:
    return np.asarray(random.integers(0, below, shape))


def either_end(below: int, *shape: int) -> Array:
    """Places counted from the front or, below zero, from the end."""
    return np.asarray(random.integers(-below, below, shape))


def complexes(*shape: int) -> Array:
    return np.asarray(random.standard_normal(shape) + 1j * random.standard_normal(shape))


def whole_complexes(*shape: int) -> Array:
    """Complex numbers of which some are equal."""
    return np.asarray(np.round(complexes(*shape)))


Maker = Callable[..., Array]
MAKERS: dict[str, tuple[Maker, ...]] = {
    "any": (halves, ints, bools, whole_complexes),
    "ordered": (halves, ints, bools),
    "number": (floats, ints, complexes),
    "real": (floats, ints),
    "inexact": (floats, complexes),
    "float": (floats,),
    "integer": (ints,),
    "complex": (complexes,),
    "bool": (bools,),
}


def creations(op: str) -> Iterator[Sample]:
    scalars = {"full": (2.5,), "arange": (3, 2)}.get(op, (7, 11))
    for shape, edge in (((11,), False), ((5, 4), False), ((1, 3), True), ((0,), True), ((), True)):
        if op != "arange" or len(shape) == 1:
            yield Sample(op, scalars, {"shape": shape, "dtype": float64}, edge)


def unaries(op: str) -> Iterator[Sample]:
    for make in MAKERS[OPS[op].domain]:
        x = make(5, 4)
        if x.dtype.kind in "fc":
            x[0] = np.nan, np.inf, -np.inf, 0.7
        yield Sample(op, (x,))
        for shape in ((1, 4), (0, 3), ()):
            yield Sample(op, (make(*shape),), edge=True)


def casts(op: str) -> Iterator[Sample]:
    for make, to in itertools.product(MAKERS["any"], ("float32", "int32", "bool")):
        x = make(5, 4) * make(5, 4)
        x[0] = 0
        yield Sample(op, (x,), {"dtype": as_dtype(to)})


def bitcasts(op: str) -> Iterator[Sample]:
    for make, to in ((floats, "int32"), (floats, "int64"), (ints, "uint8"), (bools, "int16"), (halves, "bool")):
        yield Sample(op, (make(5, 16),), {"dtype": as_dtype(to)})
    yield Sample(op, (floats(),), {"dtype": as_dtype("int64")}, edge=True)
    yield Sample(op, (floats(0, 4),), {"dtype": as_dtype("uint8")}, edge=True)


def binaries(op: str) -> Iterator[Sample]:
    for make in MAKERS[OPS[op].domain]:

        def tensor(shape: tuple[int, ...], make: Maker = make) -> Array:
            x = make(*shape)
            return np.asarray(np.abs(x)) if op == "pow" and x.dtype.kind != "c" else x

        for a, b in (((5, 4), (5, 4)), ((5, 4), (4,)), ((5, 1), (3, 1, 4)), ((4,), (5, 1))):
            yield Sample(op, (tensor(a), tensor(b)))
        scalar = {"f": 1.5, "i": 2, "b": True, "c": 1 - 1j}[make().dtype.kind]
        yield Sample(op, (tensor((5, 4)), scalar))
        yield Sample(op, (scalar, tensor((5, 4))))
        for a, b in (((1, 4), (4,)), ((0, 4), (1, 4)), ((1, 1), (1,)), ((), ()), ((3,), ())):
            yield Sample(op, (tensor(a), tensor(b)), edge=True)


def wheres(op: str) -> Iterator[Sample]:
    for make in MAKERS["any"]:
        yield Sample(op, (bools(5, 4), make(5, 4), make(5, 4)))
    yield Sample(op, (bools(5, 1), floats(4), floats(5, 4)))
    yield Sample(op, (bools(4), floats(5, 4), 1.5))
    yield Sample(op, (bools(5, 4), 2.5, floats(5, 1)))
    yield Sample(op, (bools(1, 4), floats(4), floats(1, 1)), edge=True)
    yield Sample(op, (bools(0, 4), floats(1, 4), 0.5), edge=True)


def reductions(op: str) -> Iterator[Sample]:
    for make, keepdims in itertools.product(MAKERS[OPS[op].domain], (False, True)):
        for axes in ((2,), (0, 2)):
            yield Sample(op, (make(2, 40, 2),), {"axes": axes, "keepdims": keepdims})
        yield Sample(op, (make(5, 4),), {"axes": (), "keepdims": keepdims}, edge=True)
        yield Sample(op, (make(1, 4),), {"axes": (0,), "keepdims": keepdims}, edge=True)
        yield Sample(op, (make(2, 0),), {"axes": (0,), "keepdims": keepdims}, edge=True)
        if op not in ("max", "min"):
            yield Sample(op, (make(2, 0),), {"axes": (1,), "keepdims": keepdims}, edge=True)


def args(op: str) -> Iterator[Sample]:
    for axis, keepdims in itertools.product((0, 1), (False, True)):
        yield Sample(op, (floats(5, 4),), {"axis": axis, "keepdims": keepdims})
        yield Sample(op, (ints(4, 1),), {"axis": axis, "keepdims": keepdims}, edge=True)
    yield Sample(op, (floats(0, 4),), {"axis": 1, "keepdims": False}, edge=True)


def reshapes(op: str) -> Iterator[Sample]:
    for old, new in (
        ((4, 6), (24,)), ((24,), (4, 6)), ((4, 6), (2, 2, 6)), ((4, 6), (4, 2, 3)), ((4, 6), (8, 3)),
        ((2, 3, 4), (6, 4)), ((5, 4), (4, 5)), ((12, 5), (3, 4, 5)),
    ):  # fmt: skip
        yield Sample(op, (floats(*old),), {"shape": new})
    for old, new in (((6, 1, 4), (6, 4)), ((6, 4), (1, 6, 4)), ((0, 3), (3, 0)), ((), (1,)), ((1, 1), ())):
        yield Sample(op, (ints(*old),), {"shape": new}, edge=True)


def permutes(op: str) -> Iterator[Sample]:
    yield Sample(op, (floats(3, 4, 5),), {"axes": (2, 0, 1)})
    yield Sample(op, (bools(5, 4),), {"axes": (1, 0)})
    yield Sample(op, (floats(1, 0),), {"axes": (1, 0)}, edge=True)


def expands(op: str) -> Iterator[Sample]:
    for old, new in (((4,), (5, 4)), ((5, 1), (5, 4)), ((5, 1, 3), (2, 5, 4, 3)), ((), (5,))):
        yield Sample(op, (floats(*old),), {"shape": new})
    for old, new in (((1, 4), (1, 4)), ((1, 4), (0, 4)), ((1,), (3, 1))):
        yield Sample(op, (floats(*old),), {"shape": new}, edge=True)


def cats(op: str) -> Iterator[Sample]:
    yield Sample(op, (floats(5, 4), floats(5, 3)), {"axis": 1})
    yield Sample(op, (floats(3, 4), floats(2, 4), floats(4, 4)), {"axis": 0})
    yield Sample(op, (bools(5, 4),), {"axis": 0}, edge=True)
    yield Sample(op, (floats(0, 4), floats(1, 4)), {"axis": 0}, edge=True)


def slices(op: str) -> Iterator[Sample]:
    def window(axes: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]) -> Attributes:
        return {"axes": axes, "sizes": sizes, "steps": steps}

    def value(*shape: int) -> tuple[Array, ...]:
        return (floats(*shape),) if op == "update_slice" else ()

    yield Sample(op, (floats(6, 5), *value(3, 5), 2), window((0,), (3,), (1,)))
    yield Sample(op, (floats(6, 5), *value(3, 2), 5, 1), window((0, 1), (3, 2), (-2, 2)))
    yield Sample(op, (floats(4, 5, 3), *value(4, 2, 3), 3), window((1,), (2,), (1,)))
    yield Sample(op, (floats(6, 5), *value(6, 5)), window((), (), ()), edge=True)
    yield Sample(op, (floats(6, 1), *value(0, 1), 2), window((0,), (0,), (1,)), edge=True)


def gathers(op: str) -> Iterator[Sample]:
    def values(*shape: int) -> tuple[Array, ...]:
        return (floats(*shape),) if op.startswith("scatter") else ()

    for x, at, axis, edge in (
        ((5, 4), (5, 7), 1, False), ((5, 4), (3, 4), 0, False), ((5, 4), (4, 4), 1, False),
        ((5, 4, 3), (5, 2, 3), 1, False),
        ((1, 4), (1, 2), 1, True), ((5, 4), (5, 0), 1, True), ((0, 4), (0, 2), 1, True),
    ):  # fmt: skip
        yield Sample(op, (floats(*x), index(x[axis], *at), *values(*at)), {"axis": axis}, edge)


def takes(op: str) -> Iterator[Sample]:
    for make in MAKERS["any"]:
        yield Sample(op, (make(5, 4), index(4, 7)), {"axis": 1})
    for x, at, axis, edge in (
        ((7, 4), (5, 3), 0, False), ((3, 7, 4), (6,), 1, False), ((7, 4), (), 0, False),
        ((1, 4), (2,), 0, True), ((5, 4), (0,), 1, True), ((4, 0), (3,), 0, True),
    ):  # fmt: skip
        yield Sample(op, (floats(*x), either_end(x[axis], *at)), {"axis": axis}, edge)


def segment_sums(op: str) -> Iterator[Sample]:
    for make in MAKERS["number"]:
        yield Sample(op, (make(5, 7), index(4, 7)), {"axis": 1, "size": 4})
    for values, at, axis, size, edge in (
        ((5, 3, 4), (5, 3), 0, 7, False), ((3, 6, 4), (6,), 1, 5, False), ((4,), (), 0, 5, True),
        ((2, 4), (2,), 0, 1, True), ((5, 0), (0,), 1, 4, True), ((3, 0), (3,), 0, 4, True),
    ):  # fmt: skip
        yield Sample(op, (floats(*values), either_end(size, *at)), {"axis": axis, "size": size}, edge)


def matmuls(op: str) -> Iterator[Sample]:
    for a, b in (
        ((5, 4), (4, 3)), ((3, 5, 4), (4, 6)), ((3, 5, 4), (3, 4, 6)), ((2, 1, 5, 4), (3, 4, 6)), ((5, 4), (3, 4, 6)),
    ):  # fmt: skip
        yield Sample(op, (floats(*a), floats(*b)))
    yield Sample(op, (ints(5, 4), ints(4, 3)))
    for a, b in (((1, 4), (4, 1)), ((3, 0), (0, 2)), ((1, 5, 1), (1, 1, 2)), ((0, 5), (5, 2))):
        yield Sample(op, (floats(*a), floats(*b)), edge=True)


def bytes_(*shape: int) -> Array:
    """Near the ends of int8, so that contributions to a partial sum wrap around."""
    return np.asarray(random.integers(118, 128, shape) * random.choice([-1, 1], shape), np.int8)


def int8_products(op: str) -> Iterator[Sample]:
    make = bytes_ if op == "matmul_int8" else floats
    for x, w, edge in (
        ((5, 4), (7, 4), False), ((3, 5, 4), (6, 4), False), ((2, 3, 1, 7), (5, 7), True), ((1, 5), (1, 5), True),
        ((4, 0), (3, 0), True), ((0, 5), (2, 5), True), ((4, 5), (0, 5), True),
    ):  # fmt: skip
        yield Sample(op, (make(*x), bytes_(*w)), edge=edge)


def attentions(op: str) -> Iterator[Sample]:
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
        yield Sample(op, (*operands, *masks), {"causal": causal}, edge)


def recurrences(op: str) -> Iterator[Sample]:
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
            yield Sample(
                op,
                (floats(steps, rows, 2), floats(gates * size, 2), weight, *begin, *biases),
                {"reverse": reverse, **attributes},
                edge,
            )
            continue
        given = [floats(steps, rows, size), *(floats(rows, size) for _ in range(states))]
        attributes = {"reverse": reverse, "states": other, **more}
        yield Sample(op, (floats(planes, steps + 1, rows, size), weight, *given), attributes, edge)


def solves(op: str) -> Iterator[Sample]:
    for a, b, edge in (
        ((4, 4), (4, 5), False), ((3, 4, 4), (3, 4, 2), False), ((4, 4), (5, 4, 3), False), ((5, 1, 3, 3), (4, 3, 2), False),
        ((0, 3, 3), (3, 2), True), ((1, 1), (1, 4), True),
    ):  # fmt: skip
        yield Sample(op, (floats(*a) + 4 * np.eye(a[-1]), floats(*b)), {}, edge)
    yield Sample(op, (complexes(3, 2, 2), complexes(2, 3)))


def matrices(op: str) -> Iterator[Sample]:
    """Hermitian and positive definite, as some need them."""
    choices = [{"full": False}, {"full": True}] if op in ("qr", "svd") else [{}]
    for attributes in choices:
        for make, shape, edge in (
            (floats, (5, 3, 3), False), (floats, (4, 5, 2, 2), False), (complexes, (4, 2, 2), False),
            (floats, (2, 2), True), (floats, (0, 2, 2), True),
        ):  # fmt: skip
            x = make(*shape)
            x = x @ x.swapaxes(-1, -2).conj() + np.eye(shape[-1])
            yield Sample(op, (x,), attributes, edge)
        if attributes:
            yield Sample(op, (floats(5, 4, 3),), attributes)


def transforms(op: str) -> Iterator[Sample]:
    make = floats if op == "rfft" else complexes
    for axis in (0, 1):
        more = {"fft": {"inverse": bool(axis)}, "rfft": {}, "irfft": {"size": 7 - axis}}[op]
        yield Sample(op, (make(4, 4, 3),), {"axis": axis, **more})
    yield Sample(op, (make(2, 0),), {"axis": 0, **({"size": 2} if op == "irfft" else more)}, edge=True)


def convs(op: str) -> Iterator[Sample]:
    def of(x: tuple[int, ...], w: tuple[int, ...], edge: bool = False, **given: Any) -> Sample:
        count = len(x) - 3
        attributes = {
            "strides": (1,) * count,
            "pads": (0,) * 2 * count,
            "spreads": (1,) * count,
            "dilations": (1,) * count,
        }
        return Sample(op, (floats(*x), floats(*w)), {**attributes, **given}, edge)

    yield of((5, 2, 3, 7), (2, 4, 3, 3))
    yield of((3, 2, 4, 6, 5), (2, 3, 4, 2, 3), strides=(3, 1), pads=(1, 0, -1, 2), dilations=(1, 2), spreads=(2, 1))
    yield of((1, 1, 2, 3), (1, 1, 2, 3), edge=True)
    yield of((2, 1, 0, 3), (1, 3, 0, 2), edge=True)


def swaps(op: str) -> Iterator[Sample]:
    yield Sample(op, (np.stack([index(4, 3) + 1 for _ in range(5)]),), {"size": 4})
    yield Sample(op, (index(4, 3) + 1,), {"size": 4}, edge=True)


def sliding(op: str) -> Iterator[Sample]:
    for make in MAKERS["any"]:
        yield Sample(op, (make(5, 7),), {"axes": (1,), "sizes": (3,), "strides": (2,), "dilations": (1,)})
    yield Sample(op, (floats(6, 4, 7),), {"axes": (0, 2), "sizes": (2, 3), "strides": (1, 2), "dilations": (3, 2)})
    yield Sample(op, (floats(1, 4),), {"axes": (1,), "sizes": (4,), "strides": (1,), "dilations": (1,)}, edge=True)


def overlaps(op: str) -> Iterator[Sample]:
    for make in MAKERS["number"]:
        yield Sample(op, (make(5, 3, 3),), {"axes": (1,), "sizes": (7,), "strides": (2,), "dilations": (1,)})
    yield Sample(
        op, (floats(3, 4, 2, 2, 3),), {"axes": (0, 2), "sizes": (4, 8), "strides": (1, 3), "dilations": (1, 2)}
    )
    yield Sample(op, (floats(1, 1, 4),), {"axes": (1,), "sizes": (4,), "strides": (1,), "dilations": (1,)}, edge=True)


def poolings(op: str) -> Iterator[Sample]:
    """Windows overlap: where they lie side by side nothing is added, so their gradients would be moved only."""
    for shape, axes, sizes, strides, dilations, edge in (
        ((5, 8, 3), (1,), (3,), (2,), (1,), False), ((4, 7, 6), (1, 2), (3, 2), (2, 2), (1, 1), False),
        ((6, 3, 7), (0, 2), (2, 3), (1, 2), (3, 2), True), ((1, 4), (1,), (4,), (1,), (1,), True),
    ):  # fmt: skip
        attributes = {"axes": axes, "sizes": sizes, "strides": strides, "dilations": dilations}
        for make in MAKERS[OPS[op].domain] if op == "max_pool" and not edge else [floats]:
            x = make(*shape)
            if op == "max_pool":
                yield Sample(op, (x,), attributes, edge)
                continue
            extents = [(size - 1) * apart + 1 for size, apart in zip(sizes, dilations, strict=True)]
            largest = np.lib.stride_tricks.sliding_window_view(x, extents, axes)
            for at, (axis, stride, apart) in enumerate(zip(axes, strides, dilations, strict=True), len(shape)):
                largest = largest[(slice(None),) * axis + (slice(None, None, stride),)]
                largest = largest[(slice(None),) * at + (slice(None, None, apart),)]
            largest = largest.max(tuple(range(len(shape), largest.ndim)))
            yield Sample(op, (x, largest, floats(*largest.shape)), attributes, edge)


def alongs(op: str) -> Iterator[Sample]:
    more: Attributes = {"descending": True} if op == "argsort" else {}
    for make, axis in itertools.product(MAKERS[OPS[op].domain], (0, 1)):
        yield Sample(op, (make(5, 4),), {"axis": axis, **more})
        yield Sample(op, (make(1, 4),), {"axis": axis, **more}, edge=True)


def searches(op: str) -> Iterator[Sample]:
    for make, right in itertools.product(MAKERS[OPS[op].domain], (False, True)):
        yield Sample(op, (np.sort(make(7)), make(5, 4)), {"right": right})
        yield Sample(op, (np.sort(make(5, 7)), make(5, 4)), {"right": right})
        yield Sample(op, (np.sort(make(1)), make(4)), {"right": right}, edge=True)
        yield Sample(op, (np.sort(make(0)), make()), {"right": right}, edge=True)


def compressions(op: str) -> Iterator[Sample]:
    mask = bools(11)
    yield Sample(op, (random.permutation(np.arange(11) < 6),), {"size": 6})
    yield Sample(op, (mask & False,), {"size": 0}, edge=True)
    yield Sample(op, (mask | True,), {"size": 11}, edge=True)


def row_orders(op: str) -> Iterator[Sample]:
    yield Sample(op, (ints(7, 3),))
    yield Sample(op, (halves(7, 2),))
    yield Sample(op, (halves(1, 3),), edge=True)
    yield Sample(op, (halves(3, 0),), edge=True)


def tags(op: str) -> Iterator[Sample]:
    yield Sample(op, (floats(5, 4),), {"param": True})


def follows(op: str) -> Iterator[Sample]:
    yield Sample(op, (floats(5, 4), floats(5, 4)))


FAMILIES = {
    "creation": creations, "random": creations, "unary": unaries, "cast": casts, "bitcast": bitcasts,
    "binary": binaries, "where": wheres,
    "reduction": reductions, "arg": args, "reshape": reshapes, "permute": permutes, "expand": expands, "cat": cats,
    "slice": slices, "update_slice": slices, "gather": gathers, "scatter_add": gathers, "take": takes,
    "scatter": gathers, "segment_sum": segment_sums, "matmul": matmuls, "int8_product": int8_products,
    "attention": attentions, "attention_grad": attentions, "recurrence": recurrences, "recurrence_grad": recurrences,
    "solve": solves, "linalg": matrices, "fft": transforms,
    "conv": convs, "windows": sliding, "overlap_add": overlaps,
    "max_pool": poolings, "max_pool_grad": poolings,
    "along": alongs, "search": searches, "compress": compressions, "permutation": swaps,
    "rows": row_orders, "tag": tags, "follow": follows,
}  # fmt: skip
DRAWS = 6


@cache
def drawn(op: str) -> list[tuple[Sample, ...]]:
    """The samples of an op, each drawn several times: by accident a combination may work for one draw, not for all."""
    random.bit_generator.state = np.random.default_rng(list(op.encode())).bit_generator.state
    family = OPS[op].family
    return list(zip(*(FAMILIES[family](op) for _ in range(DRAWS)), strict=True))
