"""Chains: which steps become one, and that they give the bits that the steps give one by one, however they are cut."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
from builders import Lines, ran
from effort import cases
from generated_samples import DOMAINS
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import Policy
from gt.ir.dtypes import DType, as_dtype, bool_, float32, int32
from gt.ir.ops import OPS
from gt.sharding.placement import REPLICATE, uniform_mesh
from gt.worker.base.backend import backend
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.execution.optimize import fused, on_cpu
from gt.worker.fusion.cpu import strip_executor
from gt.worker.op_table.op_table import CPU_LOWERINGS
from gt.worker.program.compiler import Program, compile_plan

Array = np.ndarray[Any, Any]
ONE = uniform_mesh(1, {"workers": 1}, (0,))
CPU = backend("cpu")


def compiled(lines: Lines, *survivors: int) -> Program:
    residents = tuple(ResidentPlacement((REPLICATE,)) for _ in lines.inputs)
    plan = Planner(ONE, Policy(ONE, {})).plan(lines.segment(*survivors), residents).plan
    return compile_plan(plan, ONE, 0, CPU)


def chains(program: Program) -> list[list[str]]:
    """The ops of each chain of a fused program, in the order in which they run; of single steps nothing."""
    (block,), (starts,), (actions,) = program.blocks, program.starts, program.actions
    ends = [*starts[1:], len(block)]
    return [
        [step.instruction.op for step in block[first:last]]
        for action, first, last in zip(actions, starts, ends, strict=True)
        if action is not block[first].action
    ]


def steps_of(array: Array) -> list[int]:
    """How far apart elements lie, along dimensions that have more than one."""
    return [step for step, size in zip(array.strides, array.shape, strict=True) if size > 1]


def bits(array: Array) -> bytes:
    """All bits, but those that say which NaN it is: loops of the same function may take another operand's."""
    real = np.ascontiguousarray(array).view(array.real.dtype) if array.dtype.kind == "c" else array
    return bytes(
        np.where(np.isnan(real), np.nan, real).astype(real.dtype).tobytes()
        if real.dtype.kind == "f"
        else real.tobytes()
    )


def same_bits(program: Program, hot: Program, inputs: list[Any]) -> None:
    before = [x.copy() if isinstance(x, np.ndarray) else x for x in inputs]
    cold, now = ran(program, inputs), ran(hot, inputs)
    for x, y in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(x, y, "operands are left as they were")
    for _, slot in program.survivors:
        a, b = np.asarray(cold[slot]), np.asarray(now[slot])
        assert (a.dtype, a.shape, steps_of(a)) == (b.dtype, b.shape, steps_of(b))
        assert bits(a) == bits(b)
    assert [x is None for x in cold] == [x is None for x in now], "the same slots are empty"


@pytest.fixture(autouse=True)
def _all_chains_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is that chains are right, and runs of one function in them, however short."""
    monkeypatch.setattr(strip_executor, "MIN_SMALL_STEPS", 2)
    monkeypatch.setattr(strip_executor, "MIN_CALL_RUN", 2)


@pytest.fixture
def small_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips of few elements, shared by all threads, so that small tensors are cut as large ones are."""
    monkeypatch.setattr(strip_executor, "STRIP_BYTES", 64)
    monkeypatch.setattr(strip_executor, "MIN_SHARED_WORK", 1)
    monkeypatch.setattr(strip_executor, "MAX_SMALL_ELEMENTS", 0)


MAPS = {
    "f": ("neg", "exp", "tanh", "sqrt", "relu", "sigmoid", "abs", "rsqrt", "log1p", "square", "erf", "floor"),
    "i": ("neg", "abs", "square", "relu", "bitwise_not"),
    "b": ("logical_not",),
    "c": ("neg", "exp", "conj", "square"),
}
PAIRS = {
    "f": ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "remainder", "lt", "eq", "atan2"),
    "i": ("add", "sub", "mul", "maximum", "left_shift", "bitwise_xor", "ge"),
    "b": ("logical_and", "logical_xor", "eq"),
    "c": ("add", "mul", "div", "ne"),
}


class Drawn:
    """A random program: operands of a few shapes, in several layouts, and steps on whatever there is."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.lines = Lines()
        self.arrays: list[Any] = []
        self.numbers: list[Any] = []
        ndim = draw.choice((1, 2, 2, 3))
        self.shape = tuple(draw.choice((1, 2, 3, 5, 17, 64)) for _ in range(ndim))
        self.dtypes = [as_dtype(draw.choice(("float32", "float32", "float64", "int32", "complex64")))]
        self.values: list[int] = []
        for _ in range(draw.randint(1, 4)):
            self.values.append(self.input())
        for _ in range(draw.randint(2, 14)):
            made = self.step()
            if made is not None:
                self.values.append(made)

    def input(self) -> int:
        shape = self.broadcast(self.shape)
        dtype = self.draw.choice(self.dtypes)
        generator = np.random.default_rng(self.draw.randrange(1 << 30))
        layout = self.draw.choice(("C", "C", "C", "F", "strided", "expanded"))
        array = (generator.standard_normal(shape) * 3).astype(dtype.numpy)
        if dtype.kind == "f" and array.size and self.draw.random() < 0.4:
            flat = array.reshape(-1)
            flat[generator.integers(0, flat.size, 3)] = (np.nan, -0.0, np.inf)
        if layout == "F":
            array = np.asfortranarray(array)
        elif layout == "strided":
            array = np.repeat(array, 2, -1)[..., ::2]
        elif layout == "expanded":
            array = np.broadcast_to(array[:1], array.shape)
        self.arrays.append(array)
        return self.lines.input(*shape, dtype=dtype)

    def broadcast(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        way = self.draw.randrange(8)
        if way == 0:
            return shape[self.draw.randrange(len(shape)) :]
        if way == 1:
            return tuple(1 if self.draw.random() < 0.5 else size for size in shape)
        return shape

    def spec(self, value: int) -> Any:
        return self.lines.spec(value)

    def step(self) -> int | None:
        draw, lines = self.draw, self.lines
        x = draw.choice(self.values[-4:])
        spec = self.spec(x)
        kind = {"u": "i"}.get(spec.dtype.kind, spec.dtype.kind)
        way = draw.randrange(12)
        if way < 3:
            return lines.op(draw.choice(MAPS[kind]), x)
        if way == 3 and kind in "fi":
            a, b = draw.choice(((x, self.number(kind)), (self.number(kind), x)))
            return lines.op(draw.choice(("add", "mul", "maximum", "lt")), a, b)
        if way < 7:
            others = [v for v in self.values if self.spec(v).dtype is spec.dtype and self.fits(v, x)]
            y = draw.choice(others)
            return lines.op(draw.choice(PAIRS[kind]), *draw.choice(((x, y), (y, x))))
        if way == 7 and spec.ndim > 1 and kind in "fi":
            count = draw.randint(1, spec.ndim - 1)
            axes = tuple(range(spec.ndim - count, spec.ndim))
            return lines.op(draw.choice(("sum", "max", "prod")), x, axes=axes, keepdims=draw.random() < 0.8)
        if way == 8 and kind == "f" and spec.ndim:
            return lines.op(draw.choice(("softmax", "log_softmax")), x, axis=spec.ndim - 1)
        if way == 9:
            conditions = [v for v in self.values if self.spec(v).dtype is bool_ and self.fits(v, x)]
            if conditions and kind in "fi":
                other = self.number(kind) if draw.random() < 0.5 else x
                return lines.op("where", draw.choice(conditions), other, x)
            return lines.op("cast", x, dtype=float32) if kind != "c" else None
        if way == 10 and spec.ndim == 2:
            return lines.op("permute", x, axes=(1, 0))
        if way == 11 and spec.shape and self.fits_shape(spec.shape, self.shape):
            return lines.op("expand", x, shape=self.shape)
        return None

    def number(self, kind: str) -> int:
        self.numbers.append(self.draw.choice((0, 2) if kind == "i" else (0.0, -0.0, 0.5, float("nan"))))
        return self.lines.scalar(kind)

    def fits(self, one: int, two: int) -> bool:
        return self.fits_shape(self.spec(one).shape, self.spec(two).shape)

    def fits_shape(self, one: tuple[int, ...], two: tuple[int, ...]) -> bool:
        try:
            np.broadcast_shapes(one, two)
        except ValueError:
            return False
        return len(np.broadcast_shapes(one, two)) <= len(two) and np.broadcast_shapes(one, two) == two


@settings(max_examples=cases(150))
@given(draw=st.randoms(use_true_random=False), threads=st.integers(1, 3))
@pytest.mark.usefixtures("small_strips")
def test_chains_give_the_bits_of_their_steps(draw: random.Random, threads: int) -> None:
    """Whatever is computed, in whatever layouts operands lie, strips or not, on one to three threads: no bit differs."""
    drawn = Drawn(draw)
    made = [v for v in drawn.values if v & 3 == 0]
    if not made:
        return
    survivors = sorted({made[-1], *draw.sample(made, min(len(made), 2))})
    program = compiled(drawn.lines, *survivors)
    same_bits(program, fused(program, on_cpu(ThreadPool(threads))), drawn.arrays + drawn.numbers)


CHAINED = [
    (name, dtype)
    for name in sorted(CPU_LOWERINGS)
    for dtype in (float32, int32, bool_)
    if OPS[name].family in ("unary", "binary") and dtype.kind in DOMAINS.get(OPS[name].domain, "")
    if dtype is not int32 or name not in ("floor_divide", "fmod", "pow", "remainder")
]
"""Element-wise ops that chains take, each in the dtypes that it knows; of integers some may fail, so no chain has them."""


@pytest.mark.parametrize(("name", "dtype"), CHAINED)
def test_an_op_is_read_by_others_of_its_chain(name: str, dtype: DType) -> None:
    """Two results of each op, which only a third step reads: in a small chain that holds what the op's calls return."""
    op = OPS[name]
    lines = Lines()
    x, y = lines.input(8, dtype=dtype), lines.input(8, dtype=dtype)
    first, second = (lines.op(name, *operands[: 1 + (op.family == "binary")]) for operands in ((x, y), (y, x)))
    last = (
        lines.op("logical_and", first, second) if lines.spec(first).dtype is bool_ else lines.op("add", first, second)
    )
    program = compiled(lines, lines.op("isnan", last) if lines.spec(last).dtype.kind == "f" else last, last)
    hot = fused(program, on_cpu(ThreadPool(1)))
    assert chains(hot), "it is one chain"
    values = np.array([0.5, 1, 2, 3, 0.25, 1, 4, 0]).astype(dtype.numpy)
    same_bits(program, hot, [values, values[::-1].copy()])


def normed(lines: Lines, x: int) -> int:
    """A layer norm without weights."""
    shape, count = lines.spec(x).shape, lines.scalar("f")
    axes = (len(shape) - 1,)
    center = lines.op("sub", x, lines.op("div", lines.op("sum", x, axes=axes, keepdims=True), count))
    spread = lines.op("div", lines.op("sum", lines.op("square", center), axes=axes, keepdims=True), count)
    return lines.op("mul", center, lines.op("rsqrt", lines.op("add", spread, count)))


def test_a_layer_norm_is_one_chain() -> None:
    """Sums along rows and what is made of them belong to the chain: only the result is stored."""
    lines = Lines()
    program = compiled(lines, normed(lines, lines.input(4, 8)))
    hot = fused(program, on_cpu(ThreadPool()))
    assert chains(hot) == [["sum", "div", "sub", "square", "sum", "div", "add", "rsqrt", "mul"]]
    x = np.random.default_rng(0).standard_normal((4, 8), np.float32)
    same_bits(program, hot, [x, 8.0])
    assert len([slot for slot in ran(hot, [x, 8.0]) if slot is not None]) == 2


def test_nothing_outside_may_lie_between_members() -> None:
    """What reads a product that reads the chain cannot be in it; what does not, can, wherever it stands."""
    lines = Lines()
    x = lines.input(4, 4)
    a = lines.op("exp", lines.op("neg", lines.op("tanh", x)))
    product = lines.op("matmul", a, a)
    after = lines.op("add", product, a)
    beside = lines.op("mul", a, a)
    program = compiled(lines, after, beside)
    hot = fused(program, on_cpu(ThreadPool()))
    assert chains(hot) == [["tanh", "neg", "exp", "mul"]]
    assert [step.instruction.op for step in hot.blocks[0]] == ["tanh", "neg", "exp", "mul", "matmul", "add"]
    same_bits(program, hot, [np.random.default_rng(0).standard_normal((4, 4), np.float32)])


def test_phases_do_not_share_chains() -> None:
    """What the backward sweep makes of forward values is not made before it, for it would take memory all that time."""
    lines = Lines()
    x = lines.input(4, 4)
    a = lines.op("exp", lines.op("neg", lines.op("tanh", x)))
    b = lines.op("exp", lines.op("neg", lines.op("square", a, phase="backward"), phase="backward"), phase="backward")
    assert chains(fused(compiled(lines, a, b), on_cpu(ThreadPool()))) == [
        ["tanh", "neg", "exp"],
        ["square", "neg", "exp"],
    ]


def test_chains_see_through_expands() -> None:
    """An expanded operand is not looked at as a whole; an expand that something else reads is there for that too."""
    lines = Lines()
    x, row = lines.input(4, 8), lines.input(4, 1)
    wide = lines.op("expand", lines.op("exp", row), shape=(4, 8))
    y = lines.op("neg", lines.op("mul", lines.op("add", x, wide), wide))
    z = lines.op("cumsum", wide, axis=1)
    program = compiled(lines, y, z)
    hot = fused(program, on_cpu(ThreadPool()))
    assert chains(hot) == [["expand", "add", "mul", "neg"]]
    assert sorted(step.instruction.op for step in hot.blocks[0]) == [
        "add", "cumsum", "exp", "expand", "expand", "mul", "neg",
    ]  # fmt: skip
    generator = np.random.default_rng(0)
    same_bits(program, hot, [generator.standard_normal(shape, np.float32) for shape in ((4, 8), (4, 1))])


@pytest.mark.usefixtures("small_strips")
def test_large_values_are_cut_into_strips_that_lanes_share() -> None:
    """However many threads take strips, every strip is computed once."""
    lines = Lines()
    x = lines.input(64, 40)
    program = compiled(lines, lines.op("exp", lines.op("neg", lines.op("softmax", x, axis=1))))
    thread_pool = ThreadPool(3)
    hot = fused(program, on_cpu(thread_pool))
    same_bits(program, hot, [np.random.default_rng(0).standard_normal((64, 40), np.float32)])


def test_lanes_work_at_the_same_time_and_say_what_they_raise() -> None:
    """Every thread that is free comes, and what one of them raises is raised where the work was given out."""
    thread_pool, met, seen = ThreadPool(3), threading.Barrier(3), []

    def meet(thread: int) -> None:
        met.wait(10)
        seen.append(thread)
        if thread == 2:
            raise MemoryError("thread 2")

    with pytest.raises(MemoryError, match="thread 2"):
        thread_pool.run(meet)
    assert sorted(seen) == [0, 1, 2]


@pytest.mark.usefixtures("small_strips")
@pytest.mark.parametrize("seen", [False, True])
def test_a_result_takes_the_memory_of_what_dies_unless_others_see_it(seen: bool) -> None:
    """As weights do in an update, but only when nobody else has them and nothing reads them after the result is written."""
    lines = Lines()
    w, g, rate = lines.input(64, 40), lines.input(64, 40), lines.scalar("f")
    later = lines.op("mul", lines.op("sub", w, lines.op("mul", g, rate)), rate)
    program = compiled(lines, later)
    hot = fused(program, on_cpu(ThreadPool(2)))
    assert chains(hot) == [["mul", "sub", "mul"]]
    generator = np.random.default_rng(0)
    weights, gradient = (generator.standard_normal((64, 40), np.float32) for _ in range(2))
    expected = ((weights - gradient * 0.5) * 0.5).tobytes()
    places = {weights.ctypes.data, gradient.ctypes.data}
    slots: list[Any] = [weights, gradient, 0.5, *[None] * (program.slots - 3)]
    held = (weights[1:], gradient) if seen else ()
    copies = [x.copy() for x in held]
    del weights, gradient
    hot.actions[0][0](slots)
    out = slots[program.survivors[0][1]]
    assert out.tobytes() == expected
    assert (out.ctypes.data in places) != seen
    for x, copy in zip(held, copies, strict=True):
        np.testing.assert_array_equal(x, copy)


@pytest.mark.usefixtures("small_strips")
def test_a_source_that_is_read_after_a_result_keeps_its_memory() -> None:
    """Of two results the first is not written over what the second is made of."""
    lines = Lines()
    x = lines.input(64, 40)
    first = lines.op("exp", lines.op("neg", x))
    second = lines.op("add", first, x)
    program = compiled(lines, first, second)
    hot = fused(program, on_cpu(ThreadPool()))
    array = np.random.default_rng(0).standard_normal((64, 40), np.float32)
    cold = ran(program, [array.copy()])
    slots: list[Any] = [array, *[None] * (program.slots - 1)]
    place = array.ctypes.data
    del array
    hot.actions[0][0](slots)
    one, two = (slots[slot] for _, slot in program.survivors)
    assert [one.tobytes(), two.tobytes()] == [cold[slot].tobytes() for _, slot in program.survivors]
    assert (one.ctypes.data, two.ctypes.data)[1] == place != one.ctypes.data


def test_a_row_that_is_too_long_is_computed_step_by_step() -> None:
    """Where not even one row fits into the scratch memory, steps stay steps."""
    lines = Lines()
    x = lines.input(2, 3 << 20)
    total = lines.op("sum", lines.op("exp", lines.op("neg", x)), axes=(1,), keepdims=True)
    program = compiled(lines, lines.op("mul", lines.op("neg", lines.op("exp", x)), total))
    hot = fused(program, on_cpu(ThreadPool()))
    assert chains(hot) == []
    assert len(hot.actions[0]) == len(hot.blocks[0]) == 6
