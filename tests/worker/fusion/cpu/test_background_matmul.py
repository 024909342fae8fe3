"""Products that another thread computes: which are, that their bits are the same, and that what fails there fails as anywhere."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import Lines

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import Policy
from gt.ir.dtypes import float32
from gt.ir.instruction_bytes import pack_plan
from gt.ir.spec import pack_spec, spec
from gt.sharding.placement import REPLICATE, format_layout, uniform_mesh
from gt.wire import messages as m
from gt.worker.base.backend import backend
from gt.worker.core import WorkerCore
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.execution.optimize import HOT_RUN
from gt.worker.execution.tensor_store import Poison
from gt.worker.fusion.cpu import background_matmul
from gt.worker.fusion.cpu.background_matmul import BackgroundMatmul

Array = np.ndarray[Any, Any]
SIDE = 24
CLIENT = 5


@pytest.fixture(autouse=True)
def _small_products_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_matmul, "MIN_MULTIPLICATIONS", SIDE**3)


class Busy(ThreadPool):
    """Threads of which none ever comes."""

    def leave(self, work: Any) -> None:
        pass


class Alone:
    """One worker's core, which runs one plan again and again."""

    def __init__(self, lines: Lines, survivors: list[int], thread_pool: ThreadPool | None) -> None:
        known = backend("cpu")
        self.core = WorkerCore(replace(known, thread_pool=thread_pool or ThreadPool(1)))
        mesh = uniform_mesh(1, {"workers": 1}, (0,))
        self.handle(m.Welcome(0, {}))
        self.handle(m.DefineMesh(1, [["workers"], [1], [0], [[1]], []], ["0"]))
        residents = tuple(ResidentPlacement((REPLICATE,)) for _ in lines.inputs)
        plan = Planner(mesh, Policy(mesh, {})).plan(lines.segment(*survivors), residents).plan
        self.handle(m.DefinePlan(1, pack_plan(plan)))
        self.order = 0
        self.base = 0

    def handle(self, event: Any) -> list[Any]:
        return [send.message for send in self.core.handle(event, 0.0)]

    def store(self, tensor: int, array: Array) -> None:
        self.order += 1
        form = format_layout((REPLICATE,))
        packed = pack_spec(spec(float32, array.shape))
        self.handle(m.Store(self.order, CLIENT, tensor, packed, 1, form, [], b"", array.tobytes()))

    def run(self, inputs: list[int]) -> list[Any]:
        self.order += 1
        self.base += 100
        return self.handle(m.Execute(self.order, 1, CLIENT, self.base, inputs, [], [], []))

    def result(self, at: int) -> Any:
        return self.core.stored.tensors[CLIENT][self.base + at]

    @property
    def program(self) -> Any:
        return self.core.programs.compiled[1]


def drawn(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((SIDE, SIDE)).astype(np.float32)


def backward() -> tuple[Lines, list[int]]:
    """A backward pass: of each layer the gradient of its weight, read late, and that of its input, read at once."""
    lines = Lines()
    x, w, g = (lines.input(SIDE, SIDE) for _ in range(3))
    late = []
    for _ in range(3):
        wide = lines.op("matmul", lines.op("permute", x, axes=(1, 0)), g)
        late.append(lines.op("permute", wide, axes=(1, 0)))
        g = lines.op("tanh", lines.op("matmul", g, w))
    total = lines.op("add", lines.op("add", late[0], late[1]), late[2])
    return lines, [late[1], total, g]


def parts(program: Any) -> list[str]:
    """Of each action what it is: that of its steps, the beginning of a product, or the meeting with one."""
    return [action.__name__ for action in program.actions[0] if action.__name__ in ("begin", "meet")]


@pytest.mark.parametrize("thread_pool", [ThreadPool(2), ThreadPool(3), Busy(2)], ids=["two", "three", "none comes"])
def test_products_that_are_read_late_have_the_same_bits_whoever_computes_them(thread_pool: ThreadPool) -> None:
    """All but the last, behind which nothing long is left to do, are begun, and met before they are read or stored."""
    lines, survivors = backward()
    plain, aside_ = Alone(lines, survivors, None), Alone(lines, survivors, thread_pool)
    for worker in (plain, aside_):
        for tensor in (1, 2, 3):
            worker.store(tensor, drawn(tensor))
    for _ in range(HOT_RUN + 3):
        for worker in (plain, aside_):
            assert [type(said) for said in worker.run([1, 2, 3])] == [m.Done]
        for survivor in survivors:
            expected, found = plain.result(survivor >> 2), aside_.result(survivor >> 2)
            assert expected.strides == found.strides
            assert expected.tobytes() == found.tobytes()
    assert parts(plain.program) == []
    assert sorted(parts(aside_.program)) == ["begin"] * 3 + ["meet"] * 3
    program = aside_.program
    assert sorted(step.writes for step in program.blocks[0]) == sorted(step.writes for step in plain.program.blocks[0])
    read: set[int] = set()
    for step in reversed(program.blocks[0]):
        assert not read.intersection(step.dead), "what is read later is not dropped"
        read.update(step.tensors)


def test_a_product_that_is_read_next_is_computed_where_it_is() -> None:
    lines = Lines()
    x, w = lines.input(SIDE, SIDE), lines.input(SIDE, SIDE)
    y = lines.op("relu", lines.op("matmul", x, w))
    worker = Alone(lines, [lines.op("matmul", y, w)], ThreadPool(2))
    worker.store(1, drawn(1))
    worker.store(2, drawn(2))
    for _ in range(HOT_RUN + 1):
        worker.run([1, 2])
    assert parts(worker.program) == []


@pytest.mark.parametrize("thread_pool", [ThreadPool(2), Busy(2)], ids=["two", "none comes"])
def test_what_fails_aside_poisons_its_readers_alone_and_is_told_once(thread_pool: ThreadPool) -> None:
    """The fault names the product and the user's line, and all else is computed, what is under way too."""
    lines, survivors = backward()
    worker = Alone(lines, survivors, thread_pool)
    for tensor in (1, 2, 3):
        worker.store(tensor, drawn(tensor))
    for _ in range(HOT_RUN):
        worker.run([1, 2, 3])
    expected = [worker.result(survivor >> 2).copy() for survivor in survivors]
    step = next(s for s in worker.program.blocks[0] if s.instruction.op == "matmul")

    def kernel(*_: Any) -> Any:
        raise MemoryError("no room for it")

    step.kernel = kernel
    said = worker.run([1, 2, 3])
    assert [type(each) for each in said] == [m.Poisoned, m.Done]
    assert "no room for it" in said[0].text
    assert "matmul of f32[24,24], f32[24,24] at model.py:2" in said[0].text
    assert isinstance(worker.result(survivors[1] >> 2), Poison), "the sum of all three"
    for at in (0, 2):
        assert worker.result(survivors[at] >> 2).tobytes() == expected[at].tobytes()


def test_whoever_comes_first_computes_it_and_everybody_hears_of_it() -> None:
    """Once, however many ask; its operands are let go of before anybody has the result."""
    lines, survivors = backward()
    worker = Alone(lines, survivors, None)
    for tensor in (1, 2, 3):
        worker.store(tensor, drawn(tensor))
    worker.run([1, 2, 3])
    step = next(s for s in worker.program.blocks[0] if s.instruction.op == "matmul")
    calls: list[int] = []
    begun, ready = threading.Event(), threading.Event()

    def kernel(a: Array, b: Array) -> Array:
        calls.append(threading.get_ident())
        begun.set()
        assert ready.wait(10)
        return a @ b

    step.kernel = kernel
    work = BackgroundMatmul(step, [drawn(1), drawn(2)])
    other = threading.Thread(target=work.join, args=(1,))
    other.start()
    assert begun.wait(10)
    work.join(0)
    ready.set()
    np.testing.assert_array_equal(work.result(), drawn(1) @ drawn(2))
    assert work.result() is work.result()
    other.join()
    assert len(calls) == 1
