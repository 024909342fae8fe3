"""Programs of plans that come again on another mesh are not compiled again, and say the same to whoever is in a place now."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import Lines, one
from one_mesh import CUT, WHOLE, Ranks, gathered, numbers

from gt.errors import ProtocolError
from gt.ir.dtypes import float32
from gt.ir.instruction import Plan
from gt.ir.instruction_bytes import pack_plan, split_plan, unpack_plan
from gt.ir.spec import spec
from gt.wire import messages as m
from gt.worker.device.heap import long_lived
from gt.worker.execution import program_cache
from gt.worker.execution.optimize import HOT_RUN
from gt.worker.execution.program_cache import IDLE_TURN_PIECES, MIN_TURN_PIECES
from gt.worker.program.compiler import Program


def again(group: Ranks, plan: Plan, number: int, members: list[int], **body: Any) -> None:
    """Drop plan 1 and its mesh, and define it with another number on another mesh."""
    size = len(members)
    fields = {"axes": ["workers"], "sizes": [size], "members": members, "weights": [[1] * size], "cards": [], **body}
    group.all(m.DropPlan(1))
    group.all(m.DropMesh(1))
    group.all(m.DefineMesh(2, list(fields.values()), [str(member) for member in members]))
    group.all(m.DefinePlan(number, pack_plan(replace(plan, mesh=2))))


def program(group: Ranks, number: int, rank: int = 0) -> Program:
    return group.cores[rank].programs.compiled[number]


def test_a_survivor_has_its_program_again_and_talks_to_the_replacement() -> None:
    """Worker 7 is in the place of worker 1: worker 0's program is the same one, and its pieces go to worker 7."""
    group, number, array = gathered(2)
    plan = unpack_plan(group.cores[0].programs.plans[number])
    group.all(group.execute(number, [1]))
    group.settle()
    before = program(group, number)
    group.all(m.DropPlan(number))
    group.all(m.DropMesh(1))
    group.tell(1, m.Welcome(7, {}))
    for rank in range(2):
        group.tell(rank, m.DefineMesh(2, [["workers"], [2], [0, 7], [[1, 1]], []], ["0", "7"]))
    group.all(m.DefinePlan(9, pack_plan(replace(plan, mesh=2))))
    group.all(group.execute(9, [1], base=200))
    assert {target for target, _ in group.pieces} == {0, 7}
    while group.pieces:
        target, piece = group.pieces.pop(0)
        group.tell(1 if target == 7 else 0, piece)
    found = program(group, 9)
    assert found.blocks is before.blocks
    assert (found.plan.mesh, found.mesh.number, found.mesh.members) == (2, 2, (0, 7))
    for rank in range(2):
        np.testing.assert_array_equal(group.stored(201, rank), np.maximum(array.sum(0), 0))


def test_what_a_program_depends_on_is_in_its_key() -> None:
    """Other weights, another rank or another plan: it is compiled anew."""
    for body, members in (({}, [1, 0]), ({"weights": [[1, 3]]}, [0, 1]), ({"axes": ["data"]}, [0, 1])):
        group, number, _ = gathered(2)
        plan = unpack_plan(group.cores[0].programs.plans[number])
        group.all(group.execute(number, [1]))
        group.settle()
        before = program(group, number)
        again(group, plan, 9, members, **body)
        group.tell(0, group.execute(9, [1], base=200))
        assert program(group, 9).blocks is not before.blocks


def test_a_hot_program_stays_hot() -> None:
    """How often it has run is not forgotten."""
    group = Ranks(1)
    group.store(1, numbers(3))
    number, plan = group.define(one("neg", spec(float32, (3,))), [WHOLE])
    for base in range(100, 105):
        group.tell(0, group.execute(number, [1], base=base))
    hot = program(group, number)
    again(group, plan, 9, [0])
    group.tell(0, group.execute(9, [1], base=200))
    assert program(group, 9).actions is hot.actions
    np.testing.assert_array_equal(group.stored(200), -numbers(3))


def test_few_steps_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of programs that nobody runs the newest are kept, up to a number of steps; two live plans never share one."""
    monkeypatch.setattr(program_cache, "MAX_SPARE_STEPS", 4)
    group = Ranks(1)
    group.store(1, numbers(4, 3), CUT)
    for op in ("neg", "exp", "abs"):
        number, _ = group.define(one(op, spec(float32, (4, 3))), [WHOLE])
        group.tell(0, group.execute(number, [1], base=100 * number))
        group.tell(0, m.DropPlan(number))
    programs = group.cores[0].programs
    assert [found.plan.instructions[0].op for found in programs.spare.values()] == ["exp", "abs"]
    lines = Lines()
    x = lines.input(4, 3)
    for _ in range(6):
        x = lines.op("neg", x)
    long, _ = group.define(lines.segment(x), [WHOLE])
    group.tell(0, group.execute(long, [1], base=900))
    group.tell(0, m.DropPlan(long))
    assert programs.spare == {}


def test_a_plan_is_split_behind_the_number_of_its_mesh() -> None:
    """However long that number is; what is no plan is refused."""
    group = Ranks(1)
    _, plan = group.define(one("neg", spec(float32, (3,))), [WHOLE])
    bodies = set()
    for mesh in (0, 1, 127, 128, 255, 256, 65_536, 1 << 40):
        found, body = split_plan(pack_plan(replace(plan, mesh=mesh)))
        assert found == mesh
        bodies.add(body)
    assert len(bodies) == 1
    for wrong in (b"", b"\x9b", b"x", b"\x92\xa1a", b"\x91\xc0"):
        with pytest.raises(ProtocolError):
            split_plan(wrong)


def long_chain(group: Ranks, steps: int = 200) -> tuple[int, Plan]:
    """A plan that is fused in many turns."""
    lines = Lines()
    x = lines.input(2, 2)
    y = x
    for _ in range(steps):
        y = lines.op("add", y, x)
    return group.define(lines.segment(y), [WHOLE])


def is_fused(program: Program) -> bool:
    return len(program.actions[0]) < len(program.blocks[0])


def test_a_long_program_is_fused_beside_the_stream_and_takes_over_at_the_run_at_which_it_is_ready() -> None:
    """Some pieces with each run, whichever plan runs; it has the same bits before and after, and nothing is fused twice."""
    group = Ranks(1)
    group.store(1, numbers(2, 2))
    number, _ = long_chain(group)
    other, _ = group.define(one("neg", spec(float32, (2, 2))), [WHOLE])
    fused_at: list[int] = []
    results = set()
    for run in range(60):
        group.tell(0, group.execute(number if run % 2 or run < HOT_RUN else other, [1], base=1000 * (run + 1)))
        if run % 2 or run < HOT_RUN:
            results.add(group.stored(1000 * (run + 1) + 199).tobytes())
        if is_fused(program(group, number)):
            fused_at.append(run)
    assert len(results) == 1
    assert fused_at == [*range(fused_at[0], 60)]
    pieces = 9 * 200
    assert HOT_RUN + pieces // MIN_TURN_PIECES // 2 < fused_at[0] < HOT_RUN + 2 * pieces // MIN_TURN_PIECES
    assert not group.cores[0].fuses


def test_an_idle_worker_fuses_what_is_hot() -> None:
    """Whoever drives the core is told to call it, and the next run finds the program ready."""
    group = Ranks(1)
    group.store(1, numbers(2, 2))
    number, _ = long_chain(group)
    core = group.cores[0]
    for run in range(HOT_RUN):
        assert not core.fuses
        group.tell(0, group.execute(number, [1], base=1000 * (run + 1)))
    turns = 0
    while core.fuses:
        turns += 1
        assert not is_fused(program(group, number))
        group.tell(0, None)
    assert is_fused(program(group, number))
    assert 1 < turns <= 10 * 200 // IDLE_TURN_PIECES


def test_a_plan_that_is_dropped_while_it_is_fused_is_hot_again_when_it_comes_again() -> None:
    group = Ranks(1)
    group.store(1, numbers(2, 2))
    number, plan = long_chain(group)
    for run in range(HOT_RUN):
        group.tell(0, group.execute(number, [1], base=1000 * (run + 1)))
    assert group.cores[0].fuses
    again(group, plan, 9, [0])
    assert not group.cores[0].fuses
    for run in range(HOT_RUN + 30):
        group.tell(0, group.execute(9, [1], base=1000 * (run + 10)))
    assert is_fused(program(group, 9))


def test_programs_have_no_reference_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker keeps them from the garbage collector, so they must go without it."""
    monkeypatch.setattr(program_cache, "MAX_SPARE_STEPS", 0)
    group = Ranks(1)
    group.store(1, numbers(2, 2))
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    try:
        with long_lived():
            assert not gc.isenabled()
            number, _ = long_chain(group)
            for run in range(HOT_RUN + 30):
                group.tell(0, group.execute(number, [1], base=1000 * (run + 1)))
            found = program(group, number)
            assert is_fused(found)
            gone = [weakref.ref(action) for action in (*(step.action for step in found.blocks[0]), *found.actions[0])]
            del found
            group.tell(0, m.DropPlan(number))
            assert [each() for each in gone if each() is not None] == []
        assert gc.isenabled() == enabled
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
