"""Instructions that fail on a worker: only what depends on them is poisoned, and the error reaches all who wait."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from builders import Lines, one
from one_mesh import CLIENT, CUT, WHOLE, Ranks, numbers, picking

from gt.dispatcher.planner.policy import resolve
from gt.ir.dtypes import float32
from gt.ir.instruction import MOVE
from gt.ir.spec import spec
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.worker.execution.optimize import HOT_RUN
from gt.worker.execution.tensor_store import Poison
from gt.worker.op_table import op_table


def test_a_failing_kernel_poisons_what_depends_on_it_alone() -> None:
    """A failure becomes the fault of its result and of all that is computed from it; everything else is computed."""
    group = Ranks(1)
    group.store(1, numbers(4, 3))
    group.store(2, np.full((4, 1), 7))
    plan, _ = group.define(picking(), [WHOLE, WHOLE])
    said = group.tell(0, group.execute(plan, [1, 2]))
    assert [type(each) for each in said] == [m.Poisoned, m.Done]
    assert said[0].kind == "IndexOutOfRange"
    for tensor in (100, 101, 102):
        assert isinstance(group.stored(tensor), Poison)
    np.testing.assert_array_equal(group.stored(103), -numbers(4, 3))
    assert "gather of f32[4,3], i64[4,1] at model.py:1" in group.stored(102).fault[1]


def test_poison_travels_into_later_plans() -> None:
    """A plan that reads a poisoned tensor runs to its end: what depends on it holds the original error."""
    group = Ranks(1)
    group.store(1, numbers(4, 3))
    group.store(2, np.full((4, 1), 7))
    plan, _ = group.define(picking(), [WHOLE, WHOLE])
    group.tell(0, group.execute(plan, [1, 2]))
    lines = Lines()
    a, b = lines.input(4, 1), lines.input(4, 3)
    later, _ = group.define(lines.segment(lines.op("relu", a), lines.op("relu", b)), [WHOLE, WHOLE])
    assert group.tell(0, group.execute(later, [100, 103], base=200)) == [m.Done(4)]
    assert group.stored(200) == group.stored(100)
    np.testing.assert_array_equal(group.stored(201), np.maximum(-numbers(4, 3), 0))


def test_poison_takes_part_in_a_move() -> None:
    """One of two ranks fails before an all-reduce: both go on, and both hold the one original error."""
    group = Ranks(2)
    group.store(1, numbers(4, 3), CUT)
    group.store(2, np.array([[0], [1], [2], [9]]), CUT)
    plan, _ = group.define(picking(), [CUT, CUT])
    run = group.execute(plan, [1, 2])
    group.all(run)
    assert {piece.fault[0] for _, piece in group.pieces if piece.fault} == {"IndexOutOfRange"}
    group.settle()
    assert [said for said in group.said[0] if isinstance(said, m.Done)][-1] == m.Done(3)
    assert group.faults(0) == []
    assert len(group.faults(1)) == 1
    assert group.stored(101, 0) == group.stored(101, 1) == group.stored(102, 0)
    np.testing.assert_array_equal(group.stored(100, 0), [[0], [4]])
    np.testing.assert_array_equal(group.stored(103, 1), -numbers(4, 3)[2:])
    group.store(2, np.array([[0], [1], [2], [0]]), CUT)
    group.all(m.Execute(9, plan, CLIENT, 300, [1, 2], [], [], []))
    group.settle()
    assert group.stored(301, 0) == group.stored(301, 1) == 0 + 4 + 8 + 9


def test_poison_on_a_rank_whose_part_nobody_needs_stays_there() -> None:
    """A rank that needs nothing of another's part does not learn of its fault: it holds sound data."""
    group = Ranks(2)
    group.store(1, numbers(4, 3), CUT)
    group.store(2, np.array([[0], [1], [2], [9]]), CUT)
    plan, _ = group.define(picking(), [CUT, CUT])
    group.all(group.execute(plan, [1, 2]))
    group.settle()
    assert isinstance(group.stored(100, 0), np.ndarray)
    assert isinstance(group.stored(100, 1), Poison)


def test_memory_that_cannot_be_had_is_the_fault_of_one_tensor() -> None:
    """A result too large for the machine poisons itself, as `OutOfMemory`, and the worker goes on."""
    group = Ranks(1)
    group.store(1, numbers(3))
    lines = Lines()
    huge = lines.op("full", lines.scalar("f"), shape=(1 << 24, 1 << 24), dtype=float32)
    plan, _ = group.define(lines.segment(huge, lines.op("neg", lines.input(3))), [WHOLE])
    group.tell(0, group.execute(plan, [1], scalars=[1.0]))
    assert group.stored(100).fault[0] == "OutOfMemory"
    assert "full of f at model.py:1" in group.stored(100).fault[1]
    np.testing.assert_array_equal(group.stored(101), -numbers(3))


def test_memory_that_a_fetch_cannot_have_is_the_fault_of_the_fetch() -> None:
    """An expanded tensor takes no memory until it is fetched; when there is none then, the fetch alone fails."""
    group = Ranks(1)
    group.store(1, numbers(1, 1))
    plan, _ = group.define(one("expand", spec(float32, (1, 1)), shape=(1 << 24, 1 << 24)), [WHOLE])
    group.tell(0, group.execute(plan, [1]))
    (part,) = group.tell(0, m.Collect(1, 1, CLIENT, 100, False, b"c"))
    assert part.fault[0] == "OutOfMemory"
    assert group.tell(0, m.Collect(2, 2, CLIENT, 100, True, b"c")) == [m.Part(2, [], False, b"")]


def test_memory_that_a_move_cannot_have_reaches_everybody_as_a_fault() -> None:
    """A rank that cannot pack a piece sends its error in place of it, so that nobody waits."""
    group = Ranks(2)
    group.store(1, numbers(1, 1))
    size = 1 << 24
    config = Config.from_plain({"sharding_config": {"rows": {"shard": {"axis": 0, "workers": [0, 1]}}}})
    lines = Lines()
    cut = lines.op("expand", lines.input(1, 1), shape=(size, size), signal=("rows",))
    plan, planned = group.define(lines.segment(lines.op("cat", cut, axis=0)), [WHOLE], resolve(config, group.mesh))
    assert [i.op for i in planned.instructions] == ["expand", MOVE, "cat"]
    group.all(group.execute(plan, [1]))
    group.settle()
    for rank in range(2):
        assert group.stored(101, rank).fault[0] == "OutOfMemory"
        assert group.said[rank][-1] == m.Done(2)


def test_a_kernel_that_cannot_be_made_fails_where_it_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling a plan raises nothing: an instruction without a kernel fails as it runs, and its peers are told."""

    def impossible(call: Any) -> Any:
        raise NotImplementedError("no such kernel here")

    monkeypatch.setitem(op_table.KERNELS, "neg", impossible)
    group = Ranks(2)
    group.store(1, numbers(4, 3), CUT)
    lines = Lines()
    total = lines.op("sum", lines.op("neg", lines.input(4, 3)), axes=(0,), keepdims=False)
    plan, _ = group.define(lines.segment(total), [CUT])
    group.all(group.execute(plan, [1]))
    group.settle()
    assert group.faults(0) == group.faults(1) == ["NotImplementedError: no such kernel here"]
    assert isinstance(group.stored(101, 1), Poison)


@pytest.mark.parametrize("facet", ["WORKSPACE_RULES", "IN_PLACE_KERNELS"])
def test_an_estimate_that_fails_poisons_its_instruction_alone(facet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever compiling asks about an instruction: a mistake there is an error of that instruction, not the worker's end."""
    monkeypatch.setitem(getattr(op_table, facet), "neg", lambda call: 1 // 0)
    group = Ranks(2)
    group.store(1, numbers(4, 3), CUT)
    lines = Lines()
    x = lines.input(4, 3)
    total = lines.op("sum", lines.op("neg", x), axes=(0,), keepdims=False)
    plan, _ = group.define(lines.segment(total, lines.op("relu", x)), [CUT])
    group.all(group.execute(plan, [1]))
    group.settle()
    assert group.faults(0) == group.faults(1) == ["ZeroDivisionError: integer division or modulo by zero"]
    np.testing.assert_array_equal(group.stored(102, 1), numbers(4, 3)[2:])
    assert "neg of f32[4,3] at model.py:1" in group.stored(101, 0).fault[1]


def test_an_error_of_a_kernel_that_cannot_be_made_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same error is raised at each run, with a traceback as long as at the first."""
    error = NotImplementedError("no such kernel here")

    def impossible(call: Any) -> Any:
        raise error

    monkeypatch.setitem(op_table.KERNELS, "neg", impossible)
    group = Ranks(1)
    group.store(1, numbers(4, 3))
    plan, _ = group.define(one("neg", spec(float32, (4, 3))), [WHOLE])
    lengths = set()
    for run in range(5):
        group.all(group.execute(plan, [1], base=200 + run))
        lengths.add(len(traceback.extract_tb(error.__traceback__)))
    assert len(lengths) == 1


def test_a_plan_that_cannot_be_compiled_poisons_what_it_leaves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake in the compiler itself ends no worker: the plan's results are poison, what dies with it is gone, and the next
    plan runs. Nor does it stay: the next run of the plan compiles again."""
    group = Ranks(1)
    group.store(1, numbers(4, 3))
    group.store(2, numbers(4, 3))
    lines = Lines()
    total = lines.op("add", lines.input(4, 3), lines.input(4, 3))
    plan, _ = group.define(lines.segment(total), [WHOLE, WHOLE])
    with monkeypatch.context() as broken:
        broken.setattr("gt.worker.program.compiler._need", lambda *_: 1 // 0)
        said = group.tell(0, group.execute(plan, [1, 2], dying=[1]))
    assert [type(each) for each in said] == [m.Poisoned, m.Done]
    assert "in compiling a plan of model.py:1" in group.stored(100).fault[1]
    assert set(group.cores[0].stored.tensors[CLIENT]) == {1, 100}
    assert "could not be compiled" in caplog.text
    group.tell(0, group.execute(plan, [1, 1], base=300))
    np.testing.assert_array_equal(group.stored(300), numbers(4, 3) * 2)


def test_a_plan_that_cannot_be_fused_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake in what only makes plans faster costs that and nothing else; the log says so once."""

    def failing(*_: Any) -> Iterator[None]:
        yield
        raise ZeroDivisionError

    monkeypatch.setattr("gt.worker.execution.program_cache.fusing_program", failing)
    group = Ranks(1)
    group.store(1, numbers(4, 3))
    plan, _ = group.define(one("neg", spec(float32, (4, 3))), [WHOLE])
    for run in range(2 * HOT_RUN):
        group.tell(0, group.execute(plan, [1], base=200 + run))
        np.testing.assert_array_equal(group.stored(200 + run), -numbers(4, 3))
    assert caplog.text.count("runs unfused") == 1


def test_a_tensor_that_is_not_there_is_a_fault() -> None:
    """A run or a fetch of something that this worker does not hold fails by itself, and the worker goes on."""
    group = Ranks(1)
    plan, _ = group.define(one("neg", spec(float32, (3,))), [WHOLE])
    group.tell(0, group.execute(plan, [55]))
    assert "tensor 55 is not on worker 0" in group.stored(100).fault[1]
    (part,) = group.tell(0, m.Collect(1, 1, CLIENT, 56, False, b"c"))
    assert "tensor 56 is not on worker 0" in part.fault[1]
