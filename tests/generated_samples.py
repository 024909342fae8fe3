"""Chains for the tests of generated kernels: every op on every dtype, drawn ones, and those that networks have."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from builders import Lines

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import Policy
from gt.ir import dtypes
from gt.ir.instruction import OUTPUT, ref
from gt.ir.ops import OPS
from gt.sharding.placement import REPLICATE, uniform_mesh
from gt.worker.base.backend import Backend, backend
from gt.worker.device import graph_capture
from gt.worker.fusion.chains import Chain, fuse
from gt.worker.fusion.cuda import codegen, cuda_types, fused_kernel
from gt.worker.kernels import philox
from gt.worker.op_table.op_table import CHECKED_INTEGERS, CUDA_EXPRESSIONS
from gt.worker.program.compiler import Program, compile_plan

ONE = uniform_mesh(1, {"workers": 1}, (0,))
DTYPES = tuple(dtypes.BY_NAME[name] for name in cuda_types.STORED_TYPES)
DOMAINS = {
    "any": "bif", "ordered": "bif", "number": "if", "real": "if", "inexact": "f", "float": "f", "integer": "i", "bool": "b",
}  # fmt: skip


class Sample(NamedTuple):
    """A program, and arrays and numbers for it."""

    lines: Lines
    survivors: list[int]
    inputs: list[Any]


def compiled(sample: Sample, backend: Backend) -> Program:
    """The program for one worker, step by step."""
    residents = tuple(ResidentPlacement((REPLICATE,)) for _ in sample.lines.inputs)
    plan = Planner(ONE, Policy(ONE, {})).plan(sample.lines.segment(*sample.survivors), residents).plan
    return compile_plan(plan, ONE, 0, backend)


def chains_of(program: Program) -> list[Chain]:
    """The chains of a program, as a GPU has them."""
    (steps,) = program.blocks
    wanted = {slot for _, slot in program.survivors}
    return [
        each
        for each in fuse(steps, wanted, fused_kernel.able, fused_kernel.worth, loose=True)
        if isinstance(each, Chain)
    ]


def sources_of(program: Program) -> list[str]:
    return [codegen.kernel_of(chain).source for chain in chains_of(program)]


def numbers(dtype: dtypes.DType, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Numbers of both signs and all that is special, some of them twice."""
    generator = np.random.default_rng(seed)
    if dtype.kind == "b":
        return generator.random(shape) < 0.5
    if dtype.kind == "i":
        limits = np.iinfo(dtype.name)
        special = np.array([0, 1, 2, 7, limits.max, limits.min, limits.max - 1], dtype.numpy)
        small = generator.integers(0 if not limits.min else -9, 10, shape)
        return np.where(generator.random(shape) < 0.3, generator.choice(special, shape), small.astype(dtype.numpy))
    special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, np.nan, np.inf, -np.inf])
    made = np.where(
        generator.random(shape) < 0.3, generator.choice(special, shape), generator.standard_normal(shape) * 4
    )
    return made.astype(np.float32 if dtype.itemsize < 4 else dtype.numpy).astype(dtype.numpy)


def every_op(dtype: dtypes.DType, size: int = 512) -> Sample:
    """All ops of one domain on one dtype, in one chain: they read a value that it makes first."""
    lines = Lines()
    x, y = lines.input(size, dtype=dtype), lines.input(size, dtype=dtype)
    c = lines.input(size, dtype=dtypes.bool_)
    first = lines.op("where", lines.op("logical_not", c), y, x)
    survivors = [first]
    for name in (*CUDA_EXPRESSIONS, "cast"):
        op = OPS[name]
        if name == "where":
            survivors.append(lines.op("where", c, first, y))
            if dtype.kind != "b":
                survivors.append(lines.op("where", c, lines.scalar("f" if dtype.kind == "f" else "i"), first))
        elif name == "cast":
            targets = (each for each in DTYPES if each is not dtype and (dtype.kind != "f" or each.kind in "bf"))
            survivors += [lines.op("cast", first, dtype=target) for target in targets]
        elif dtype.kind in DOMAINS[op.domain] and (dtype.kind == "f" or name not in CHECKED_INTEGERS):
            survivors.append(lines.op(name, first) if op.family == "unary" else lines.op(name, first, y))
            if op.family == "binary" and dtype.kind in "if" and name in ("add", "mul", "lt", "eq", "maximum", "pow"):
                survivors.append(lines.op(name, first, lines.scalar("f" if dtype.kind == "f" else "i")))
    given = [2 if kind == "i" else 0.1 for kind in lines.kinds]
    return Sample(
        lines, survivors, [numbers(dtype, (size,)), numbers(dtype, (size,), 1), numbers(dtypes.bool_, (size,)), *given]
    )


EXACT = {
    "f": (
        ("neg", "abs", "relu", "square", "sign", "floor"),
        ("add", "sub", "mul", "maximum", "minimum", "lt", "eq", "ge"),
    ),
    "i": (("neg", "abs", "square", "bitwise_not"), ("add", "sub", "mul", "maximum", "bitwise_xor", "ge", "ne")),
    "b": (("logical_not",), ("logical_and", "logical_xor", "eq")),
}


class Drawn:
    """A random chain of what computes whole numbers exactly: all that can differ is which elements meet."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.lines = Lines()
        self.arrays: list[Any] = []
        self.given: list[Any] = []
        ndim = draw.choice((1, 2, 2, 3, 4))
        self.shape = tuple(draw.choice((1, 2, 3, 4, 8, 16, 33)) for _ in range(ndim))
        if draw.random() < 0.2:
            self.shape = (*self.shape[:1], draw.choice((1500, 4097, 5000)))
        self.dtypes = [draw.choice([each for each in DTYPES if each.kind != "b"]) for _ in range(2)]
        self.values = [self.input() for _ in range(draw.randint(1, 4))]
        for _ in range(draw.randint(3, 12)):
            made = self.step()
            if made is not None:
                self.values.append(made)

    def sample(self) -> Sample:
        """Some of what is made is kept."""
        made = [value for value in self.values if value & 3 == self.values[-1] & 3]
        kept = {self.values[-1], *self.draw.sample(made, min(2, len(made)))}
        return Sample(self.lines, sorted(kept), self.arrays + self.given)

    def input(self) -> int:
        draw, shape = self.draw, self.shape
        way = draw.randrange(8)
        if way == 0:
            shape = shape[draw.randrange(len(shape)) :]
        elif way < 3:
            shape = tuple(1 if draw.random() < 0.5 else size for size in shape)
        dtype = draw.choice(self.dtypes)
        generator = np.random.default_rng(draw.randrange(1 << 30))
        array = generator.integers(0, 4, shape).astype(np.float32).astype(dtype.numpy)
        if draw.random() < 0.2:
            array = np.asfortranarray(array)
        elif draw.random() < 0.2:  # off by one element: not aligned
            array = np.concatenate([array.reshape(-1)[:1], array.reshape(-1)])[1:].reshape(shape)
        self.arrays.append(array)
        return self.lines.input(*shape, dtype=dtype)

    def step(self) -> int | None:
        draw, lines = self.draw, self.lines
        x = draw.choice(self.values[-4:])
        spec = lines.spec(x)
        kind = spec.dtype.kind
        maps, pairs = EXACT[kind]
        way = draw.randrange(10)
        if way < 2:
            return lines.op(draw.choice(maps), x)
        if way == 2 and kind in "fi":
            self.given.append(draw.choice((0, 1, 2)) if kind == "i" else draw.choice((0.0, 1.0, 3.0)))
            return lines.op(draw.choice(("add", "mul", "maximum", "lt")), x, lines.scalar(kind))
        if way < 6:
            others = [
                v
                for v in self.values
                if lines.spec(v).dtype is spec.dtype and self.meets(lines.spec(v).shape, spec.shape)
            ]
            return lines.op(draw.choice(pairs), x, draw.choice(others))
        if way == 6 and spec.ndim > 1:
            many = draw.randint(1, spec.ndim - 1)
            axes = tuple(range(many)) if draw.random() < 0.4 else tuple(range(spec.ndim - many, spec.ndim))
            return lines.op(
                draw.choice(("any", "all") if kind == "b" else ("sum", "max", "min")), x, axes=axes, keepdims=True
            )
        if way == 7:
            conditions = [
                v
                for v in self.values
                if lines.spec(v).dtype is dtypes.bool_ and self.meets(lines.spec(v).shape, spec.shape)
            ]
            return lines.op("where", draw.choice(conditions), x, x) if conditions else None
        if way == 8:
            targets = [each for each in self.dtypes if each is not spec.dtype and (kind != "f" or each.kind == "f")]
            return lines.op("cast", x, dtype=draw.choice(targets)) if targets else None
        return None

    def meets(self, one: tuple[int, ...], two: tuple[int, ...]) -> bool:
        """Whether two shapes broadcast to no more than the whole."""
        try:
            return np.broadcast_shapes(one, two, self.shape) == self.shape
        except ValueError:
            return False


class Loosely:
    """A random program of whole numbers on matrices, often square ones, and on rows, columns and numbers of theirs."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.lines = Lines()
        self.dtype = draw.choice((dtypes.int64, dtypes.int32, dtypes.float64, dtypes.float32))
        rows = draw.choice((1, 2, 5, 40))
        columns = draw.choice((rows, 2, 3, 33))
        self.rows, self.columns = rows, columns
        self.inputs: list[Any] = []
        self.scalars: list[Any] = []
        self.values: list[int] = []
        for shape in ((rows, columns), (rows,), (columns,), (rows, 1), ()):
            if len(self.values) < 2 or draw.random() < 0.6:
                generator = np.random.default_rng(draw.randrange(1 << 30))
                self.inputs.append(generator.integers(-3, 4, shape).astype(self.dtype.numpy))
                self.values.append(self.lines.input(*shape, dtype=self.dtype))
        places = draw.choice((dtypes.int64, dtypes.int32))
        self.inputs.append(
            np.random.default_rng(seed).integers(-columns, columns, rows).astype(places.numpy)
        )  # the last are before the first
        self.index = self.lines.input(rows, dtype=places)
        for _ in range(draw.randint(4, 16)):
            made = self.step()
            if made is not None:
                self.values.append(made)

    def sample(self) -> Sample:
        made = [value for value in self.values if value & 3 == ref(OUTPUT, 0) & 3] or [self.lines.op("neg", 0)]
        kept = {made[-1], *self.draw.sample(made, min(2, len(made)))}
        return Sample(self.lines, sorted(kept), self.inputs + self.scalars)

    def step(self) -> int | None:
        draw, lines = self.draw, self.lines
        x = draw.choice(self.values[-5:])
        shape = lines.spec(x).shape
        way = draw.randrange(11)
        if way < 2:
            return lines.op(draw.choice(("neg", "abs", "square" if self.dtype.kind == "i" else "neg")), x)
        if way < 5:
            others = [v for v in self.values if self.together(shape, lines.spec(v).shape)]
            return lines.op(draw.choice(("add", "sub", "maximum")), x, draw.choice(others)) if others else None
        if way == 5 and shape:
            last = draw.randint(1, len(shape))
            axes = tuple(range(last)) if draw.random() < 0.4 else tuple(range(len(shape) - last, len(shape)))
            return lines.op(draw.choice(("sum", "max")), x, axes=axes, keepdims=draw.random() < 0.5)
        if way == 6:
            other = shape[:-1] if shape and shape[-1] == 1 else (*shape, 1)
            return lines.op("reshape", x, shape=other) if len(other) < 3 else None
        if way == 7:
            whole = self.rows, self.columns
            return lines.op("expand", x, shape=whole) if self.together(shape, whole) and shape != whole else None
        if way == 8:
            self.scalars.append(draw.choice((0, 2)) if self.dtype.kind == "i" else draw.choice((0.0, 2.0)))
            number = lines.scalar(self.dtype.kind)
            wanted = draw.choice(((self.rows, self.columns), (self.rows,), (self.rows, 1), ()))
            return lines.op("full", number, shape=wanted, dtype=self.dtype)
        return self.placed(x if shape == (self.rows, self.columns) else self.values[0])

    def placed(self, x: int) -> int:
        draw, lines = self.draw, self.lines
        index = lines.op("reshape", self.index, shape=(self.rows, 1))
        if draw.random() < 0.5:
            return lines.op("gather", x, index, axis=1)
        columns = [v for v in self.values if lines.spec(v).shape == (self.rows, 1)]
        value = draw.choice(columns) if columns else lines.op("sum", x, axes=(1,), keepdims=True)
        return lines.op("scatter_add", x, index, value, axis=1)

    def together(self, one: tuple[int, ...], two: tuple[int, ...]) -> bool:
        """Whether two shapes broadcast to one that the program has."""
        try:
            return len(np.broadcast_shapes(one, two)) <= 2 and np.broadcast_shapes(one, two) in (
                (), (1,), (1, 1), (self.rows,), (self.columns,), (self.rows, 1), (1, self.columns), (self.rows, self.columns),
            )  # fmt: skip
        except ValueError:
            return False


def softmaxes(dtype: dtypes.DType, rows: int, columns: int) -> Sample:
    lines = Lines()
    x = lines.input(rows, columns, dtype=dtype)
    y = lines.op("mul", x, lines.scalar("f"))
    survivors = [lines.op("softmax", y, axis=1), lines.op("log_softmax", y, axis=1)]
    generator = np.random.default_rng(columns)
    return Sample(lines, survivors, [generator.standard_normal((rows, columns), np.float32).astype(dtype.numpy), 3.0])


def layer_norm(dtype: dtypes.DType, rows: int, columns: int) -> Sample:
    lines = Lines()
    x, weight, bias = (lines.input(*shape, dtype=dtype) for shape in ((rows, columns), (columns,), (columns,)))
    size, eps = lines.scalar("f"), lines.scalar("f")
    mean = lines.op("div", lines.op("sum", x, axes=(1,), keepdims=True), size)
    less = lines.op("sub", x, mean)
    variance = lines.op("div", lines.op("sum", lines.op("square", less), axes=(1,), keepdims=True), size)
    scale = lines.op("rsqrt", lines.op("add", variance, eps))
    out = lines.op("add", lines.op("mul", lines.op("mul", less, scale), weight), bias)
    generator = np.random.default_rng(columns)
    arrays = [
        generator.standard_normal(shape, np.float32).astype(dtype.numpy)
        for shape in ((rows, columns), (columns,), (columns,))
    ]
    return Sample(lines, [out, mean, scale], [*arrays, float(columns), 1e-5])


def totals(dtype: dtypes.DType, *shape: int) -> Sample:
    """The gradients of a layer's bias and weight, as one kernel: of what only their sums read, and of what others read, too."""
    lines = Lines()
    g, x = lines.input(*shape, dtype=dtype), lines.input(*shape, dtype=dtype)
    scale, offset = lines.input(*shape[:-1], 1, dtype=dtype), lines.input(shape[-1], dtype=dtype)
    lead = tuple(range(len(shape) - 1))
    slope = lines.op("mul", lines.op("add", g, offset), lines.scalar("f"))
    bias = lines.op("sum", slope, axes=lead, keepdims=False)
    weight = lines.op("sum", lines.op("mul", slope, lines.op("mul", x, scale)), axes=lead, keepdims=True)
    largest = lines.op("max", x, axes=lead, keepdims=False)
    weight = lines.op("add", lines.op("mul", weight, lines.scalar("f")), offset)
    generator = np.random.default_rng(shape[0])
    arrays = [
        generator.standard_normal(each, np.float32).astype(dtype.numpy)
        for each in (shape, shape, (*shape[:-1], 1), shape[-1:])
    ]
    return Sample(lines, [slope, bias, weight, largest], [*arrays, 0.5, 0.25])


def loss(dtype: dtypes.DType, rows: int, columns: int) -> Sample:
    """A mean that counts what is kept, and the largest: of so much that one block does not add it up."""
    lines = Lines()
    x, y = lines.input(rows, columns, dtype=dtype), lines.input(columns, dtype=dtype)
    kept = lines.op("gt", x, lines.scalar("f"))
    apart = lines.op("where", kept, lines.op("square", lines.op("sub", x, y)), lines.scalar("f"))
    total = lines.op("sum", apart, axes=(0, 1), keepdims=False)
    count = lines.op("sum", lines.op("cast", kept, dtype=dtype), axes=(0, 1), keepdims=False)
    largest = lines.op("max", x, axes=(0, 1), keepdims=True)
    mean = lines.op("div", total, count)
    generator = np.random.default_rng(rows)
    arrays = [generator.standard_normal(each, np.float32).astype(dtype.numpy) for each in ((rows, columns), (columns,))]
    return Sample(lines, [apart, mean, largest, lines.op("add", mean, lines.scalar("f"))], [*arrays, 0.25, 0.0, 2.0])


def entropy(dtype: dtypes.DType, rows: int, columns: int) -> Sample:
    """Minus the log-probabilities of classes, nothing where a class is ignored, and the gradient of their sum."""
    lines = Lines()
    x, classes = lines.input(rows, columns, dtype=dtype), lines.input(rows, dtype=dtypes.int64)
    ignored, nothing = lines.scalar("i"), lines.scalar("i")
    zero, one = lines.scalar("f"), lines.scalar("f")
    kept = lines.op("ne", classes, ignored)
    index = lines.op("reshape", lines.op("where", kept, classes, nothing), shape=(rows, 1))
    scores = lines.op("log_softmax", x, axis=1)
    picked = lines.op("reshape", lines.op("gather", scores, index, axis=1), shape=(rows,))
    losses = lines.op("where", kept, lines.op("neg", picked), zero)
    slope = lines.op("expand", lines.op("full", one, shape=(1,), dtype=dtype), shape=(rows,))
    slope = lines.op("reshape", lines.op("neg", lines.op("where", kept, slope, zero)), shape=(rows, 1))
    g = lines.op("full", zero, shape=(rows, columns), dtype=dtype)
    g = lines.op("scatter_add", g, index, slope, axis=1)
    total = lines.op("sum", g, axes=(1,), keepdims=True)
    gradient = lines.op("sub", g, lines.op("mul", lines.op("exp", scores), total))
    generator = np.random.default_rng(columns)
    chosen = generator.integers(-columns, columns, rows)
    chosen[0] = -1000
    arrays = [generator.standard_normal((rows, columns), np.float32).astype(dtype.numpy), chosen]
    return Sample(lines, [losses, gradient], [*arrays, -1000, 0, 0.0, 1.0])


def adam(dtype: dtypes.DType, *shape: int) -> Sample:
    lines = Lines()
    p, g, m, v = (lines.input(*shape, dtype=dtype) for _ in range(4))
    b1, c1, b2, c2, rate, eps = (lines.scalar("f") for _ in range(6))
    m = lines.op("add", lines.op("mul", m, b1), lines.op("mul", g, c1))
    v = lines.op("add", lines.op("mul", v, b2), lines.op("mul", lines.op("square", g), c2))
    step = lines.op("div", m, lines.op("add", lines.op("sqrt", v), eps))
    out = lines.op("sub", p, lines.op("mul", step, rate))
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape, np.float32).astype(dtype.numpy) for _ in range(3)]
    second = np.square(generator.standard_normal(shape, np.float32)).astype(dtype.numpy)
    return Sample(lines, [m, v, out], [*arrays, second, 0.9, 0.1, 0.999, 0.001, 0.01, 1e-8])


def known() -> Iterator[tuple[str, Sample]]:
    """What networks have, over rows of every length that makes a difference."""
    for dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.float64):
        yield f"adam {dtype.name}", adam(dtype, 12, 40)
        if dtype is not dtypes.float16:  # so many do not fit in its sums
            yield f"loss {dtype.name}", loss(dtype, 700, 48)
        for shape in ((37, 33), (700, 48), (5, 130, 8), (2, 3, 300), (9000, 2)):
            if dtype is dtypes.float32 or shape[0] == 700:
                yield f"totals {dtype.name} {shape}", totals(dtype, *shape)
        for rows, columns in ((5, 1), (37, 33), (9, 64), (3, 1500), (3, 2048), (2, 5001), (2, 20000)):
            if dtype is dtypes.float32 or columns in (33, 64):
                yield f"softmax {dtype.name} {columns}", softmaxes(dtype, rows, columns)
                yield f"layer norm {dtype.name} {columns}", layer_norm(dtype, rows, columns)
                if columns > 1:
                    yield f"cross-entropy {dtype.name} {columns}", entropy(dtype, rows, columns)


def written(drawn: int) -> dict[str, tuple[str, str]]:
    """All CUDA that GT writes, by what it is for, with its entry; of chains those of every kind, so many of them drawn."""
    cpu = backend("cpu")
    samples = {f"every op on {dtype.name}": every_op(dtype) for dtype in DTYPES}
    samples |= {f"drawn {seed}": Drawn(seed).sample() for seed in range(drawn)}
    samples |= {f"loosely drawn {seed}": Loosely(seed).sample() for seed in range(2 * drawn)}
    samples |= dict(known())
    found = {
        "random numbers": (philox.SOURCE, "philox_words"),
        "run-time scalars": (graph_capture.KERNEL_SOURCE, "place_numbers"),
    }
    for name, sample in samples.items():
        for number, source in enumerate(sources_of(compiled(sample, cpu))):
            found[f"{name}, {number}"] = (source, codegen.ENTRY)
    return found
