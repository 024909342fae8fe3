"""What a worker does with a plan: run it in its turn, keep what outlives it, forget the rest."""

from __future__ import annotations

import numpy as np
import pytest
from builders import Lines, evaluate, one
from one_mesh import CLIENT, CUT, WHOLE, Ranks, numbers

from gt.errors import ProtocolError
from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.wire import messages as m


def test_a_plan_is_executed() -> None:
    """One worker stores a tensor, runs a plan on it with a scalar, keeps the survivor and says that it is done."""
    group = Ranks(1)
    group.store(1, numbers(2, 3))
    lines = Lines()
    x, factor = lines.input(2, 3), lines.scalar("f")
    plan, _ = group.define(lines.segment(lines.op("mul", lines.op("add", x, x), factor)), [WHOLE])
    assert group.tell(0, group.execute(plan, [1], scalars=[0.5])) == [m.Done(2)]
    np.testing.assert_array_equal(group.stored(101), numbers(2, 3))
    assert group.cores[0].executed == 1


def test_survivors_are_numbered_as_the_segment_numbers_them() -> None:
    """Survivor n is tensor base + n, though moves give the plan's outputs other numbers; what dies inside is gone."""
    group = Ranks(2)
    array = numbers(4, 4)
    group.store(1, array, CUT)
    lines = Lines()
    x = lines.input(4, 4)
    total = lines.op("sum", x, axes=(0,), keepdims=False)
    kept = lines.op("relu", lines.op("permute", x, axes=(1, 0)))
    segment = lines.segment(total, kept)
    plan, _ = group.define(segment, [CUT])
    group.all(group.execute(plan, [1], base=70))
    group.settle()
    expected = evaluate(segment, [array])
    assert set(group.cores[0].stored.tensors[CLIENT]) == {1, 70, 72}
    for rank in range(2):
        np.testing.assert_array_equal(group.stored(70, rank), expected[0])
        np.testing.assert_array_equal(group.stored(72, rank), expected[2][:, rank * 2 : rank * 2 + 2])


def test_dying_and_freed_tensors_are_gone() -> None:
    """An input that dies with a run, and whatever else the run frees, is not stored any more; other inputs are."""
    group = Ranks(1)
    for tensor in range(4):
        group.store(tensor, numbers(3))
    lines = Lines()
    plan, _ = group.define(lines.segment(lines.op("add", lines.input(3), lines.input(3))), [WHOLE, WHOLE])
    group.tell(0, group.execute(plan, [0, 1], dying=[1], freed=[3, 99]))
    assert set(group.cores[0].stored.tensors[CLIENT]) == {0, 2, 100}


def test_a_dying_input_may_be_read_to_the_end() -> None:
    """That an input dies frees its name at once and its memory after its last reader: the result is right."""
    group = Ranks(1)
    group.store(1, numbers(3))
    lines = Lines()
    x = lines.input(3)
    y = lines.op("add", lines.op("mul", x, x), x)
    plan, _ = group.define(lines.segment(y), [WHOLE])
    group.tell(0, group.execute(plan, [1], dying=[0]))
    np.testing.assert_array_equal(group.stored(101), numbers(3) ** 2 + numbers(3))


def test_a_survivor_keeps_no_more_than_itself() -> None:
    """A survivor that is a small view of something large is copied, so that the large one can go."""
    group = Ranks(1)
    group.store(1, numbers(1000, 100))
    lines = Lines()
    x = lines.input(1000, 100)
    row = lines.op("slice", x, lines.scalar("i"), axes=(0,), sizes=(1,), steps=(1,))
    plan, _ = group.define(lines.segment(row), [WHOLE])
    group.tell(0, group.execute(plan, [1], scalars=[7], dying=[0]))
    assert group.stored(100).base is None
    np.testing.assert_array_equal(group.stored(100), numbers(1000, 100)[7:8])
    assert group.cores[0].stored.nbytes == 400


def test_results_without_dimensions_are_stored_as_arrays() -> None:
    """NumPy's kernels give scalars where nothing is left to index; what is stored is always an array."""
    group = Ranks(1)
    group.store(1, numbers(4))
    plan, _ = group.define(one("sum", spec(float32, (4,)), axes=(0,), keepdims=False), [WHOLE])
    group.tell(0, group.execute(plan, [1]))
    assert isinstance(group.stored(100), np.ndarray)
    assert group.stored(100) == 6


def test_release_and_forget() -> None:
    """Released tensors are gone; a forgotten client's all are, and other clients' none."""
    group = Ranks(1)
    for tensor in (1, 2):
        group.store(tensor, numbers(3))
    group.tell(0, m.Store(9, 6, 1, ["f32", [3]], 1, "R", [], b"", numbers(3).tobytes()))
    group.tell(0, m.Release(CLIENT, [1, 77]))
    assert set(group.cores[0].stored.tensors[CLIENT]) == {2}
    group.tell(0, m.Forget(CLIENT))
    group.tell(0, m.Forget(CLIENT))
    group.tell(0, m.Release(CLIENT, [2]))
    assert set(group.cores[0].stored.tensors) == {6}


def test_dropped_plans_and_meshes_are_gone() -> None:
    """The dispatcher owns the caches: what it drops leaves nothing behind."""
    group = Ranks(1)
    group.store(1, numbers(3))
    plan, _ = group.define(one("neg", spec(float32, (3,))), [WHOLE])
    group.tell(0, group.execute(plan, [1]))
    group.tell(0, m.DropPlan(plan))
    group.tell(0, m.DropMesh(1))
    core = group.cores[0]
    assert (core.programs.plans, core.programs.compiled, core.meshes) == ({}, {}, {})


def test_what_no_dispatcher_says_is_refused() -> None:
    """A message that has no meaning for a worker is an error, never ignored."""
    with pytest.raises(ProtocolError):
        Ranks(1).tell(0, m.Credit(1))
