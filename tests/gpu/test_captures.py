"""CUDA graphs: which captured ranges of a program are captured, for which addresses, and that no value depends on it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from builders import Lines
from effort import cases
from generated_samples import Sample, compiled

from gt.ir.dtypes import BY_NAME
from gt.worker.base import backend as backends
from gt.worker.base.backend import Backend, backend
from gt.worker.cuda_graphs import captured_range as ranges
from gt.worker.cuda_graphs.capturable_run import CapturableRun
from gt.worker.cuda_graphs.captured_range import MAX_RANGE_GRAPHS, WARM_RUNS, CapturedRange
from gt.worker.cuda_graphs.graphs import CudaGraphs
from gt.worker.execution.optimize import fused, on_gpu
from gt.worker.fusion.chain_shapes import MAX_SINGLE_BLOCK_ELEMENTS
from gt.worker.op_table.op_table import CAPTURABLE
from gt.worker.op_table.row import Capturable
from gt.worker.program.compiler import Program


class Pair:
    """One program with graphs and without, run on the same inputs in turn; its results are compared bit by bit."""

    def __init__(self, sample: Sample, card: Backend | None = None) -> None:
        self.card = card or backend("cuda:0")
        assert self.card.capture is not None
        self.graphs = CudaGraphs(self.card.capture, self.card.checks)
        self.eager = fused(compiled(sample, self.card), on_gpu(self.card.xp))
        self.program = self.graphs.program(self.eager)
        self.slots = [slot for _, slot in self.program.survivors]

    @property
    def capturable(self) -> CapturableRun:
        (found,) = [action for action in self.program.actions[0] if isinstance(action, CapturableRun)]
        return found

    @property
    def captured(self) -> CapturedRange:
        (captured,) = self.capturable.ranges
        return captured

    def run(self, *inputs: Any) -> list[Any]:
        """The results with graphs, which are those without."""
        here = [self.card.from_host(each) if isinstance(each, np.ndarray) else each for each in inputs]
        expected = [self.card.to_host(each) for each in _ran(self.eager, [*here], self.slots)]
        found = _ran(self.program, here, self.slots)
        for mine, theirs in zip(found, expected, strict=True):
            assert self.card.to_host(mine).tobytes() == theirs.tobytes()
        return found


def _ran(program: Program, inputs: list[Any], wanted: list[int]) -> list[Any]:
    slots = [*inputs, *[None] * (program.slots - len(inputs))]
    inputs.clear()
    (actions,) = program.actions
    for action in actions:
        action(slots)
    return [slots[slot] for slot in wanted]


def walk() -> Sample:
    """x ← x + step · gradient, with a norm of it: two results, one of which may go on as an input; kernels of all kinds."""
    lines = Lines()
    x, gradient = lines.input(6, 8), lines.input(6, 8)
    step = lines.scalar("f")
    following = lines.op("add", x, lines.op("mul", gradient, step))
    turned = lines.op("permute", following, axes=(1, 0))
    total = lines.op("sum", lines.op("square", turned), axes=(0,), keepdims=False)
    norm = lines.op("sqrt", lines.op("sum", total, axes=(0,), keepdims=False))
    return Sample(lines, [following, norm, turned], [])


def adams() -> Sample:
    """Three steps of Adam in one program, each a chain of three results."""
    lines = Lines()
    numbers = [lines.scalar("f") for _ in range(6)]
    results = []
    for columns in (3, 40, 64):
        p, g, m, v = (lines.input(12, columns) for _ in range(4))
        b1, c1, b2, c2, rate, eps = numbers
        m = lines.op("add", lines.op("mul", m, b1), lines.op("mul", g, c1))
        v = lines.op("add", lines.op("mul", v, b2), lines.op("mul", lines.op("square", g), c2))
        step = lines.op("div", m, lines.op("add", lines.op("sqrt", v), eps))
        results += [m, v, lines.op("sub", p, lines.op("mul", step, rate))]
    return Sample(lines, results, [])


def test_a_loop_returns_to_its_addresses() -> None:
    """What comes out goes in again: two graphs that write where the other reads, and from then on nothing is copied in."""
    pair = Pair(walk())
    rng = np.random.default_rng(0)
    gradient = pair.card.from_host(rng.standard_normal((6, 8)).astype(np.float32))
    x = pair.card.from_host(rng.standard_normal((6, 8)).astype(np.float32))
    for turn in range(20):
        x, _, _ = pair.run(x, gradient, 0.5 / (turn + 1))
    assert pair.graphs.launched == 20 - WARM_RUNS
    assert pair.graphs.captured <= MAX_RANGE_GRAPHS
    assert not any(graph.blocks[0] for graph in pair.captured.found[1:])
    assert not pair.graphs.without


def test_inputs_that_lie_elsewhere_are_copied_in() -> None:
    """However many addresses there are, one graph is for all."""
    pair = Pair(walk())
    rng = np.random.default_rng(0)
    gradients = [pair.card.from_host(rng.standard_normal((6, 8)).astype(np.float32)) for _ in range(12)]
    for turn in range(24):
        pair.run(rng.standard_normal((6, 8)).astype(np.float32), gradients[turn % 12], 0.1)
    assert pair.graphs.launched >= 24 - WARM_RUNS - 2
    assert pair.graphs.captured <= 2


def test_a_result_that_is_held_is_copied_out() -> None:
    """Nobody's value is written to: whoever keeps results keeps what they were."""
    pair = Pair(walk())
    rng = np.random.default_rng(0)
    gradient = pair.card.from_host(rng.standard_normal((6, 8)).astype(np.float32))
    x = pair.card.from_host(rng.standard_normal((6, 8)).astype(np.float32))
    kept, was = [], []
    for _ in range(20):
        x, norm, turned = pair.run(x, gradient, 0.5)
        kept += [norm, turned]
        was += [pair.card.to_host(norm).tobytes(), pair.card.to_host(turned).tobytes()]
    assert [pair.card.to_host(each).tobytes() for each in kept] == was
    assert pair.graphs.launched > 10
    assert pair.graphs.captured <= 8


def test_numbers_are_read_from_the_device() -> None:
    """Another number at every run, one graph."""
    pair = Pair(walk())
    rng = np.random.default_rng(0)
    x, gradient = (pair.card.from_host(rng.standard_normal((6, 8)).astype(np.float32)) for _ in range(2))
    for number in (0.0, -0.0, 1.0, 2.5, float("inf"), float("nan"), 1e-300, -3.0, 0.0, -0.0):
        pair.run(x, gradient, number)
    assert pair.graphs.captured == 1
    assert pair.graphs.launched == 10 - WARM_RUNS


def of_window(lines: Lines, window: Any) -> list[Any]:
    """Some kernels that read a slice, and cannot be one."""
    found = [lines.op("argmax", lines.op("sin", window), axis=0, keepdims=False)]
    found.append(lines.op("argmax", window, axis=0, keepdims=False))
    found.append(lines.op("argmin", window, axis=0, keepdims=False))
    return [lines.op("tanh", window), *found]


def test_a_number_that_the_host_needs_is_part_of_the_graph() -> None:
    """As long as it stays."""
    lines = Lines()
    window = lines.op("slice", lines.input(32), lines.scalar("i"), axes=(0,), sizes=(8,), steps=(1,))
    pair = Pair(Sample(lines, of_window(lines, window), []))
    x_there = pair.card.from_host(np.linspace(0, 1, 32, dtype=np.float32))
    for _ in range(8):
        pair.run(x_there, 3)
    assert (pair.graphs.captured, pair.graphs.launched) == (1, 8 - WARM_RUNS)
    assert not pair.capturable.ahead


@pytest.mark.parametrize("turned", [False, True])
def test_a_slice_that_moves_on_stands_before_the_graph(turned: bool) -> None:
    """At the first move it is one more input, which is copied in wherever it lies; also behind what only looks at its base."""
    lines = Lines()
    x_shape = (4, 8) if turned else (32,)
    x = lines.input(*x_shape)
    base = lines.op("reshape", x, shape=(32,)) if turned else x
    window = lines.op("slice", base, lines.scalar("i"), axes=(0,), sizes=(8,), steps=(1,))
    pair = Pair(Sample(lines, of_window(lines, window), []))
    x_there = pair.card.from_host(np.linspace(0, 1, 32, dtype=np.float32).reshape(x_shape))
    for start in [3] * 6 + [*range(10, 20)]:
        pair.run(x_there, start)
    assert [step.instruction.op for step in pair.capturable.ahead] == ["reshape", "slice"][not turned :]
    assert pair.graphs.captured <= 3
    assert pair.graphs.launched >= 6 - WARM_RUNS + 10 - 3
    assert not pair.graphs.without


def test_a_slice_of_what_is_computed_stands_between_two_graphs() -> None:
    """Nothing that a graph does can be done before what it reads is there."""
    lines = Lines()
    x = lines.input(2 * MAX_SINGLE_BLOCK_ELEMENTS)
    base = x
    for op in ("sin", "tanh", "sin"):
        base = lines.op("add", lines.op(op, base), lines.op("sum", base, axes=(0,), keepdims=True))
        base = lines.op("add", base, lines.op("max", base, axes=(0,), keepdims=True))
    window = lines.op("slice", base, lines.scalar("i"), axes=(0,), sizes=(8,), steps=(1,))
    pair = Pair(Sample(lines, of_window(lines, window), []))
    x_there = pair.card.from_host(np.linspace(0, 1, 2 * MAX_SINGLE_BLOCK_ELEMENTS, dtype=np.float32))
    for start in range(14):
        pair.run(x_there, start)
    assert len(pair.capturable.ranges) == 2
    assert pair.graphs.launched >= 2 * (14 - 2 * WARM_RUNS)
    assert not pair.graphs.without


def test_random_numbers_are_drawn_in_the_graph() -> None:
    """With another seed and counter at every run, one graph; they are those that are drawn without."""
    lines = Lines()
    x = lines.input(6, 8)
    keys = [lines.scalar("i") for _ in range(4)]
    drawn = lines.op("uniform", *keys[:2], shape=(6, 8), dtype=BY_NAME["float32"])
    kept = lines.op("where", lines.op("lt", drawn, lines.scalar("f")), x, lines.scalar("f"))
    noisy = lines.op("add", kept, lines.op("normal", *keys[2:], shape=(6, 8), dtype=BY_NAME["float32"]))
    pair = Pair(Sample(lines, [noisy, lines.op("sum", noisy, axes=(0,), keepdims=False)], []))
    x_there = pair.card.from_host(np.ones((6, 8), np.float32))
    outcomes = set()
    for turn in range(10):
        outcomes.add(
            pair.card.to_host(pair.run(x_there, 2**64 - 1 - turn % 2, turn, 7, 2**63 + turn, 0.5, 0.0)[0]).tobytes()
        )
    assert len(outcomes) == 10
    assert (pair.graphs.captured, pair.graphs.launched) == (1, 10 - WARM_RUNS)
    assert not pair.graphs.without


def test_a_number_that_meets_a_tensor_alone_is_read_from_the_device() -> None:
    """An op of its own, that is no chain with others: it is a kernel that is written for it."""
    lines = Lines()
    x, rate = lines.input(2, 3, 8), lines.scalar("f")
    turned = lines.op("permute", lines.op("mul", x, rate), axes=(2, 0, 1))
    sums = lines.op("sum", turned, axes=(1,), keepdims=False)
    highest = lines.op("max", lines.op("permute", turned, axes=(0, 2, 1)), axes=(0,), keepdims=False)
    pair = Pair(Sample(lines, [sums, highest], []))
    x_there = pair.card.from_host(np.ones((2, 3, 8), np.float32))
    for turn in range(10):
        pair.run(x_there, 0.5 + turn)
    assert (pair.graphs.captured, pair.graphs.launched) == (1, 10 - WARM_RUNS)
    assert not pair.capturable.watched


def test_what_is_refused_in_a_capture_stands_between_two_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried once; all else is captured. CuPy calls nothing of cuBLAS while a stream captures."""

    def none() -> Any:
        raise ImportError("no cuBLAS but by CuPy")

    monkeypatch.setattr(backends, "_cublas", none)
    monkeypatch.setitem(CAPTURABLE, "matmul", Capturable.ALWAYS)
    lines = Lines()
    x = lines.input(4, 4)
    y = x
    for _ in range(2):
        for turn in range(3):
            y = lines.op("permute", lines.op(("exp", "tanh", "sin")[turn], y), axes=(1, 0))
            y = lines.op("add", y, lines.op("sum", y, axes=(0,), keepdims=True))
        y = lines.op("matmul", y, x)
    pair = Pair(Sample(lines, [lines.op("sum", y, axes=(0, 1), keepdims=False)], []))
    for turn in range(12):
        pair.run(np.full((4, 4), turn / 8, np.float32))
    assert len(pair.capturable.ranges) == 2
    assert pair.graphs.launched >= 2 * (12 - WARM_RUNS - 4)
    assert dict(pair.graphs.without) == {"NotImplementedError in a capture": 2, "matmul is not captured": 2}


def test_what_is_found_out_about_operands_is_told_after_each_launch() -> None:
    """Whether an index was out of range, and which was: of the launch that read it, whatever is computed later."""
    lines = Lines()
    table, values, index = lines.input(7, 3), lines.input(4, 5), lines.input(4, 5, dtype=BY_NAME["int64"])
    rows = lines.op("take", table, index, axis=0)
    totals = lines.op("segment_sum", rows, index, axis=0, size=7)
    found = lines.op("gather", values, index, axis=1)
    added = lines.op("scatter_add", values, index, found, axis=1)
    pair = Pair(Sample(lines, [totals, added, lines.op("scatter", added, index, values, axis=1)], []))
    rng = np.random.default_rng(0)
    checks = pair.graphs.checks
    for turn in range(10):
        places = rng.integers(-5, 5, (4, 5))
        if turn % 2:
            places[turn % 4, 1:] = 8 + turn
        table_here, here = (rng.standard_normal(shape).astype(np.float32) for shape in ((7, 3), (4, 5)))
        checks.clear()
        pair.run(table_here, here, places)
        told = [(check.call.op, int(pair.card.to_host(check.found))) for check in checks]
        half = len(told) // 2
        assert told[:half] == told[half:], "with a graph as without"
        assert {number for _, number in told} == {8 + turn if turn % 2 else 0}
        assert [op for op, _ in told[:half]] == ["take", "segment_sum", "gather", "scatter_add", "scatter"]
        error = checks[half].error(8 + turn)
        assert str(error) == f"take: index {8 + turn} is out of range for axis 0 of size 7"
    assert pair.graphs.launched == 10 - WARM_RUNS
    assert not pair.graphs.without


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64", "complex64"])
def test_products_are_captured(name: str) -> None:
    """By cuBLAS itself, with a workspace of its own: of matrices and stacks, also of those that lie turned."""
    lines = Lines()
    dtype = BY_NAME[name]
    x, y = lines.input(2, 4, 6, dtype=dtype), lines.input(6, 4, dtype=dtype)
    z = lines.op("matmul", x, y)
    scores = lines.op("matmul", z, lines.op("permute", z, axes=(0, 2, 1)))
    gradient = lines.op("matmul", lines.op("permute", scores, axes=(0, 2, 1)), lines.op("neg", z))
    pair = Pair(Sample(lines, [gradient, z], []))
    rng = np.random.default_rng(0)
    for _ in range(8):
        values = (rng.standard_normal(shape).astype(dtype.numpy) for shape in ((2, 4, 6), (6, 4)))
        pair.run(*values)
    assert pair.graphs.launched == 8 - WARM_RUNS
    assert not pair.graphs.without


def test_memory_is_given_up_and_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that lie in it stay; the books know of all of it."""
    monkeypatch.setattr(ranges, "PAUSE_RUNS", 5)
    pair = Pair(walk())
    rng = np.random.default_rng(0)
    x, gradient = (pair.card.from_host(rng.standard_normal((6, 8)).astype(np.float32)) for _ in range(2))
    for _ in range(8):
        x, _, _ = pair.run(x, gradient, 0.5)
    assert pair.graphs.total > pair.graphs.nbytes > 0
    was = pair.card.to_host(x).tobytes()
    assert pair.graphs.give_up()
    assert (pair.graphs.total, pair.graphs.nbytes) == (0, 0)
    assert pair.card.to_host(x).tobytes() == was
    assert not pair.graphs.give_up()
    launched = pair.graphs.launched
    for _ in range(14):
        x, _, _ = pair.run(x, gradient, 0.5)
    assert pair.graphs.launched > launched
    pair.graphs.room = lambda nbytes: False
    pair.graphs.give_up()
    for _ in range(14):
        x, _, _ = pair.run(x, gradient, 0.5)
    assert pair.graphs.without["memory is short"] > 0
    assert pair.graphs.total == 0


@pytest.mark.parametrize("seed", range(cases(12)))
def test_any_order_of_runs_gives_what_they_give_without(seed: int) -> None:
    """Inputs from elsewhere, from earlier runs, in views; results kept and dropped; numbers the same and others; memory gone."""
    drawn = random.Random(seed)
    rng = np.random.default_rng(seed)
    card = backend("cuda:0")
    pairs = [Pair(walk(), card), Pair(adams(), card)]
    shapes = [[spec.shape for spec in pair.program.plan.inputs] for pair in pairs]
    kinds = [pair.program.plan.kinds for pair in pairs]
    pools: dict[tuple[int, ...], list[Any]] = {}
    kept: list[tuple[Any, bytes]] = []
    for _ in range(60):
        which = drawn.randrange(len(pairs))
        pair = pairs[which]
        inputs: list[Any] = []
        for shape in shapes[which]:
            pool = pools.setdefault(shape, [])
            if not pool or drawn.random() < 0.2:
                pool.append(card.from_host(np.abs(rng.standard_normal(shape)).astype(np.float32)))
            inputs.append(pool[-1] if drawn.random() < 0.7 else drawn.choice(pool))
        numbers = [{"f": drawn.choice((0.5, rng.random())), "i": 2, "b": True}[kind] for kind in kinds[which]]
        for made in pair.run(*inputs, *numbers):
            if drawn.random() < 0.6:
                pools.setdefault(made.shape, []).append(made)
            if drawn.random() < 0.2:
                kept.append((made, card.to_host(made).tobytes()))
        for pool in pools.values():
            while len(pool) > 3:
                pool.pop(drawn.randrange(len(pool)))
        if drawn.random() < 0.1:
            kept.clear()
        if drawn.random() < 0.02:
            pair.graphs.give_up()
        for value, was in kept:
            assert card.to_host(value).tobytes() == was, "nobody's value is written to"
    assert sum(pair.graphs.launched for pair in pairs) > 0
