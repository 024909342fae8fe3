"""Bands: which steps threads compute side by side, and that they give the bits and layouts that the steps give one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import Lines, ran
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import Policy
from gt.ir.dtypes import float32
from gt.ir.instruction import INPUT, OUTPUT
from gt.ir.instruction_bytes import pack_plan
from gt.ir.spec import pack_spec, spec
from gt.sharding.placement import REPLICATE, format_layout, uniform_mesh
from gt.wire import messages as m
from gt.worker.base.backend import backend
from gt.worker.core import WorkerCore
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.execution.optimize import HOT_RUN, fused, on_cpu
from gt.worker.execution.tensor_store import Poison
from gt.worker.fusion.cpu.row_parallel import MAX_LAYOUTS, RowParallelAction
from gt.worker.kernels import matmul
from gt.worker.kernels.matmul import MIN_PIECE_SIZE, MIN_SHARED_MULTIPLICATIONS, ROW_PARTS
from gt.worker.program.compiler import Program, compile_plan

Array = np.ndarray[Any, Any]
ONE = uniform_mesh(1, {"workers": 1}, (0,))
CPU = backend("cpu")
BATCH, ROWS, WIDTH = 2 * ROW_PARTS, MIN_PIECE_SIZE // 2, 8


@pytest.fixture(autouse=True)
def _small_products_have_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "MIN_PARTED_MULTIPLICATIONS", 1)
        yield


def compiled(lines: Lines, *survivors: int) -> Program:
    residents = tuple(ResidentPlacement((REPLICATE,)) for _ in lines.inputs)
    return compile_plan(Planner(ONE, Policy(ONE, {})).plan(lines.segment(*survivors), residents).plan, ONE, 0, CPU)


def bands(program: Program) -> list[list[str]]:
    """The ops of each band of a hot program."""
    (block,), (starts,), (actions,) = program.blocks, program.starts, program.actions
    ends = [*starts[1:], len(block)]
    return [
        [step.instruction.op for step in block[first:last]]
        for action, first, last in zip(actions, starts, ends, strict=True)
        if isinstance(action, RowParallelAction)
    ]


def same_bits(program: Program, hot: Program, inputs: list[Any]) -> None:
    cold, now = ran(program, inputs), ran(hot, inputs)
    for _, slot in program.survivors:
        a, b = cold[slot], now[slot]
        assert (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides)
        assert a.tobytes() == b.tobytes()
    assert [x is None for x in cold] == [x is None for x in now], "the same slots are empty"


class Net:
    """Writes layers of a transformer, of which any value may be read later."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.lines = Lines()
        self.arrays: list[Array] = []
        self.random = np.random.default_rng(draw.randrange(1000))
        self.x = self.input(BATCH, ROWS, WIDTH)

    def input(self, *shape: int) -> int:
        """A tensor from outside, which may lie in any order."""
        array = self.random.standard_normal(shape).astype(np.float32)
        axes = [*range(len(shape))]
        if self.draw.random() < 0.3:
            self.draw.shuffle(axes)
        laid = np.ascontiguousarray(array.transpose(axes)).transpose([axes.index(axis) for axis in range(len(axes))])
        self.arrays.append(laid)
        return self.lines.input(*shape)

    def product(self, x: int, columns: int) -> int:
        w = self.input(self.lines.spec(x).shape[-1], columns)
        if self.draw.random() < 0.5:
            w = self.lines.op("permute", self.input(columns, self.lines.spec(x).shape[-1]), axes=(1, 0))
        return self.lines.op("add", self.lines.op("matmul", x, w), self.input(columns))

    def attention(self, x: int) -> int:
        op = self.lines.op
        heads = []
        joint = self.product(x, 3 * WIDTH)
        for part in range(3):
            start = self.lines.scalar("i")
            self.numbers.append(part * WIDTH)
            cut = op("slice", joint, start, axes=(2,), sizes=(WIDTH,), steps=(1,))
            apart = op("reshape", cut, shape=(BATCH, ROWS, 2, WIDTH // 2))
            heads.append(op("permute", apart, axes=(0, 2, 1, 3)))
        q, k, v = heads
        weights = op("softmax", op("matmul", q, op("permute", k, axes=(0, 1, 3, 2))), axis=3)
        mixed = op("permute", op("matmul", weights, v), axes=(0, 2, 1, 3))
        return self.product(op("reshape", mixed, shape=(BATCH, ROWS, WIDTH)), WIDTH)

    def norm(self, x: int) -> int:
        op = self.lines.op
        total = op("sum", x, axes=(2,), keepdims=True)
        center = op("sub", x, op("expand", total, shape=(BATCH, ROWS, WIDTH)))
        spread = op("sum", op("square", center), axes=(2,), keepdims=True)
        return op("mul", center, op("rsqrt", op("add", op("square", spread), self.input(1))))

    def feed(self, x: int) -> int:
        op = self.lines.op
        wide = self.product(x, 4 * WIDTH)
        inner = op("relu", wide)
        chosen = op("where", op("le", inner, wide), inner, op("neg", wide))
        return self.product(chosen, WIDTH)

    def join(self, x: int) -> int:
        op = self.lines.op
        both = op("cat", x, self.product(x, WIDTH), axis=2)
        return self.product(op("log_softmax", both, axis=2), WIDTH)

    def rows(self, x: int) -> int:
        op = self.lines.op
        flat = op("reshape", x, shape=(BATCH * ROWS, WIDTH))
        return op("reshape", op("tanh", flat), shape=(BATCH, ROWS, WIDTH))

    def write(self) -> list[int]:
        """Up to six layers; what is read after them."""
        self.numbers: list[Any] = []
        x = self.x
        layers = (self.attention, self.norm, self.feed, self.join, self.rows)
        for _ in range(self.draw.randint(2, 6)):
            y = self.draw.choice(layers)(x)
            x = self.lines.op("add", x, y) if self.draw.random() < 0.5 else y
        made = [instruction.outputs[0] << 2 | OUTPUT for instruction in self.lines.instructions]
        over = [
            v
            for v in made
            if self.draw.random() < 0.2 and self.lines.spec(v).ndim == 3 and self.lines.spec(v).dtype is float32
        ][:3]
        late = [
            self.lines.op("matmul", self.lines.op("permute", v, axes=(0, 2, 1)), v) for v in over
        ]  # which joins rows
        return sorted({x, *self.draw.sample(made, 3), *late})


@settings(max_examples=cases(60), deadline=None)
@given(draw=st.randoms(use_true_random=False), threads=st.integers(2, 3))
def test_bands_give_the_bits_of_their_steps(draw: random.Random, threads: int) -> None:
    """However operands lie, whatever is read later, at the first run and when it is known how results lie."""
    net = Net(draw)
    survivors = net.write()
    program = compiled(net.lines, *survivors)
    hot = fused(program, on_cpu(ThreadPool(threads)))
    for _ in range(3):
        same_bits(program, hot, net.arrays + net.numbers)


def test_layers_are_one_band_and_what_joins_rows_comes_after_it() -> None:
    """So does what is read of both; what the band does not need comes before it."""
    lines = Lines()
    x, v, w = lines.input(BATCH, ROWS, WIDTH), lines.input(WIDTH, WIDTH), lines.input(WIDTH, WIDTH)
    first = lines.op("relu", lines.op("matmul", x, lines.op("permute", v, axes=(1, 0))))
    total = lines.op("sum", first, axes=(0, 1), keepdims=False)
    second = lines.op("matmul", first, lines.op("permute", w, axes=(1, 0)))
    moved = lines.op("add", second, total)
    program = compiled(lines, moved)
    hot = fused(program, on_cpu(ThreadPool(2)))
    assert bands(hot) == [["matmul", "relu", "matmul"]]
    assert [step.instruction.op for step in hot.blocks[0]] == [
        "permute", "permute", "matmul", "relu", "matmul", "sum", "add",
    ]  # fmt: skip
    drawn = [
        np.random.default_rng(at).standard_normal(lines.spec(each).shape, np.float32)
        for at, each in enumerate((x, v, w))
    ]
    same_bits(program, hot, drawn)
    assert bands(fused(program, on_cpu(ThreadPool(1)))) == [], "one thread has nobody to share with"


def test_phases_do_not_share_bands() -> None:
    lines = Lines()
    x, w = lines.input(BATCH, ROWS, WIDTH), lines.input(WIDTH, WIDTH)
    for phase in ("forward", "backward"):
        for _ in range(2):
            x = lines.op("matmul", x, w, phase=phase)
    assert bands(fused(compiled(lines, x), on_cpu(ThreadPool(2)))) == [["matmul"] * 2] * 2


def test_where_gradients_of_weights_keep_other_lanes_busy_there_is_no_band() -> None:
    lines = Lines()
    g, w = lines.input(BATCH, ROWS, WIDTH), lines.input(WIDTH, WIDTH)
    late = []
    for _ in range(3):
        rows = lines.op("reshape", g, shape=(BATCH * ROWS, WIDTH))
        late.append(lines.op("matmul", lines.op("permute", rows, axes=(1, 0)), rows))
        g = lines.op("matmul", g, w)
    assert bands(fused(compiled(lines, g, *late), on_cpu(ThreadPool(2)))) == []


def test_products_have_parts_by_their_shapes_alone() -> None:
    """Of a stack that can be halved, of rows enough, and not so many that all threads share them anyhow."""

    def parted(*shape: int, inner: int = WIDTH, columns: int = WIDTH) -> bool:
        lines = Lines()
        y = lines.op("matmul", lines.input(*shape, inner), lines.input(inner, columns))
        (step,) = compiled(lines, y).blocks[0]
        return step.kernel is matmul.in_parts

    assert parted(BATCH, ROWS)
    assert parted(BATCH, 2, ROWS)
    assert not parted(BATCH * ROWS), "rows of no stack"
    assert not parted(BATCH + 1, ROWS)
    assert not parted(ROW_PARTS, 2 * ROWS), "a part is a single matrix of the stack"
    assert not parted(BATCH, 1), "few rows"
    assert not parted(BATCH, ROWS, inner=MIN_SHARED_MULTIPLICATIONS // (BATCH * ROWS), columns=1)


def test_a_band_remembers_few_layouts() -> None:
    """And is right about each of many."""
    lines = Lines()
    x, w = lines.input(BATCH, ROWS, WIDTH), lines.input(WIDTH, WIDTH)
    y = lines.op("matmul", lines.op("tanh", lines.op("matmul", x, w)), w)
    z = lines.op("matmul", lines.op("neg", x), w)
    program = compiled(lines, y, z)
    hot = fused(program, on_cpu(ThreadPool(2)))
    random = np.random.default_rng(0)
    for gap in range(2 * MAX_LAYOUTS):
        wide = random.standard_normal((BATCH, ROWS, WIDTH + gap)).astype(np.float32)
        same_bits(program, hot, [wide[..., :WIDTH], random.standard_normal((WIDTH, WIDTH)).astype(np.float32)])
    (band,) = (action for action in hot.actions[0] if isinstance(action, RowParallelAction))
    assert 1 <= len(band.orders) <= MAX_LAYOUTS


def test_what_fails_in_a_band_poisons_its_readers_alone() -> None:
    """The fault names the step and the user's line, and all else is computed."""
    lines = Lines()
    x, w, start = lines.input(BATCH, ROWS, WIDTH), lines.input(WIDTH, WIDTH), lines.scalar("i")
    y = lines.op("matmul", x, w)
    cut = lines.op("slice", y, start, axes=(2,), sizes=(2,), steps=(1,))
    bad = lines.op("tanh", cut)
    good = lines.op("matmul", y, w)
    core = WorkerCore(replace(CPU, thread_pool=ThreadPool(2)))

    def handle(event: Any) -> list[Any]:
        return [send.message for send in core.handle(event, 0.0)]

    handle(m.Welcome(0, {}))
    handle(m.DefineMesh(1, [["workers"], [1], [0], [[1]], []], ["0"]))
    residents = tuple(ResidentPlacement((REPLICATE,)) for _ in lines.inputs)
    handle(m.DefinePlan(1, pack_plan(Planner(ONE, Policy(ONE, {})).plan(lines.segment(bad, good), residents).plan)))
    random = np.random.default_rng(0)
    for tensor, shape in enumerate(((BATCH, ROWS, WIDTH), (WIDTH, WIDTH)), 1):
        array = random.standard_normal(shape).astype(np.float32)
        handle(
            m.Store(
                tensor,
                5,
                tensor,
                pack_spec(spec(float32, shape)),
                1,
                format_layout((REPLICATE,)),
                [],
                b"",
                array.tobytes(),
            )
        )
    for run in range(HOT_RUN + 3):
        said = handle(m.Execute(3 + run, 1, 5, 100 * (run + 1), [1, 2], [3 if run < HOT_RUN + 2 else WIDTH], [], []))
    assert bands(core.programs.compiled[1]) == [["matmul", "slice", "tanh", "matmul"]]
    assert [type(each) for each in said] == [m.Poisoned, m.Done]
    assert "do not fit axis 2 of size 8" in said[0].text
    assert "model.py:2" in said[0].text
    made = core.stored.tensors[5]
    assert isinstance(made[100 * (HOT_RUN + 3) + (bad >> 2)], Poison)
    assert made[100 * (HOT_RUN + 3) + (good >> 2)].tobytes() == made[100 * (HOT_RUN + 2) + (good >> 2)].tobytes()
    assert x & 3 == INPUT
