"""Programs of plans that come again on another mesh are not compiled again, and say the same to whoever is in a place now."""

from __future__ import annotations

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
from gt.worker.execution import program_cache
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
