"""Compiled programs: slots, blocks and what dies where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import Lines

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import Policy
from gt.ir.instruction import Segment
from gt.sharding.placement import REPLICATE, Layout, Mesh, Shard, uniform_mesh
from gt.worker.base.backend import backend
from gt.worker.program.compiler import Program, compile_plan, describe

CPU = backend("cpu")
ONE = uniform_mesh(1, {"workers": 1}, (0,))


def compiled(segment: Segment, layouts: list[Layout], mesh: Mesh = ONE, rank: int = 0) -> Program:
    plan = Planner(mesh, Policy(mesh, {})).plan(segment, tuple(ResidentPlacement(layout) for layout in layouts)).plan
    return compile_plan(plan, mesh, rank, CPU)


def test_slots_hold_inputs_scalars_and_outputs_in_order() -> None:
    """Slots are the plan's inputs, then its scalars, then its outputs; every step reads and writes by number."""
    lines = Lines()
    x, y, factor = lines.input(3), lines.input(3), lines.scalar("f")
    total = lines.op("add", x, y)
    program = compiled(lines.segment(lines.op("mul", total, factor)), [(REPLICATE,)] * 2)
    assert program.slots == 5
    (block,) = program.blocks
    assert [(step.reads, step.tensors, step.writes) for step in block] == [((0, 1), (0, 1), 3), ((3, 2), (3,), 4)]
    assert program.survivors == [(1, 4)]


def test_values_die_after_their_last_reader() -> None:
    """Every tensor slot that does not survive is emptied by the step that reads it last; what nobody reads is not made."""
    lines = Lines()
    x = lines.input(3)
    a = lines.op("neg", x)
    lines.op("exp", a)
    b = lines.op("add", a, x)
    program = compiled(lines.segment(b), [(REPLICATE,)])
    assert [step.instruction.op for step in program.blocks[0]] == ["neg", "add"]
    assert [step.dead for step in program.blocks[0]] == [(), (1, 0)]
    slots: list[Any] = [np.ones(3, np.float32), None, None, None]
    for action in program.actions[0]:
        action(slots)
    assert [slot is None for slot in slots] == [True, True, True, False]


@pytest.mark.parametrize("operands", [1, 2, 3])
@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_actions_do_what_their_steps_say(operands: int, kept: int) -> None:
    """However many operands a step has, and however many of them die with it, its fast form does the same."""
    lines = Lines()
    inputs = [lines.input(2, 3) for _ in range(operands)]
    y = lines.op("cat", *inputs, axis=0)
    after = [lines.op("neg", x) for x in inputs[:kept]]
    program = compiled(lines.segment(y, *after), [(REPLICATE,)] * operands)
    arrays = [np.full((2, 3), n, np.float32) for n in range(operands)]
    slots: list[Any] = [*arrays, *[None] * (program.slots - operands)]
    step = program.blocks[0][0]
    assert len(step.dead) == max(0, operands - kept)
    step.action(slots)
    np.testing.assert_array_equal(slots[step.writes], np.concatenate(arrays))
    assert [slots[n] is None for n in range(operands)] == [n >= kept for n in range(operands)]


def test_products_that_only_transposes_read_are_made_transposed() -> None:
    """The gradient of a weight lies in memory as the weight does; a product that somebody reads as it is stays as it is."""
    lines = Lines()
    x, g = lines.input(5, 3), lines.input(5, 4)
    xt = lines.op("permute", x, axes=(1, 0))
    turned, read = lines.op("matmul", xt, g), lines.op("matmul", xt, g)
    survivors = [
        lines.op("permute", turned, axes=(1, 0)),
        lines.op("permute", read, axes=(1, 0)),
        lines.op("neg", read),
    ]
    program = compiled(lines.segment(*survivors), [(REPLICATE,)] * 2)
    a, b = (np.random.default_rng(n).standard_normal((5, n), np.float32) for n in (3, 4))
    slots: list[Any] = [a, b, *[None] * (program.slots - 2)]
    for action in program.actions[0]:
        action(slots)
    made = [slots[slot] for _, slot in program.survivors]
    for each in made[:2]:
        np.testing.assert_allclose(each, b.T @ a, rtol=1e-5)
    assert [each.flags.c_contiguous for each in made] == [True, False, True]


@pytest.mark.parametrize("seen", ["by nobody", "by a slot", "by a view", "by somebody", "written nowhere"])
def test_who_writes_to_what_dies_writes_into_it_unless_others_see_it(seen: str) -> None:
    """A slice written to a value that dies takes no copy of it; whoever else has it, or looks at it, sees what was there."""
    lines = Lines()
    x, part = lines.input(8, 4), lines.input(2, 4)
    start = lines.scalar("i")
    y = lines.op("update_slice", x, part, start, axes=(0,), sizes=(2,), steps=(1,))
    after = [lines.op("neg", x)] if seen == "by a slot" else []
    program = compiled(lines.segment(y, *after), [(REPLICATE,)] * 2)
    host = np.zeros((8, 4), np.float32)
    place = host.ctypes.data
    slots: list[Any] = [host, np.ones((2, 4), np.float32), 3, *[None] * (program.slots - 3)]
    held = {"by a view": host[1:], "by somebody": host}.get(seen)
    if seen == "written nowhere":
        host.flags.writeable = False
    del host
    program.actions[0][0](slots)
    out = slots[program.survivors[0][1]]
    assert out.sum(1).tolist() == [0, 0, 0, 4, 4, 0, 0, 0]
    assert (out.ctypes.data == place) == (seen == "by nobody")
    assert held is None or not held.any()


def test_blocks_lie_between_moves() -> None:
    """A program is one block more than it has moves; a move is numbered by its place in the plan, equal for all ranks."""
    mesh = uniform_mesh(1, {"workers": 2}, (0, 1))
    lines = Lines()
    x = lines.input(4, 4)
    total = lines.op("sum", x, axes=(0,), keepdims=False)
    segment = lines.segment(lines.op("relu", lines.op("relu", total)))
    programs = [compiled(segment, [(Shard(0),)], mesh, rank) for rank in range(2)]
    for rank, program in enumerate(programs):
        assert [len(block) for block in program.blocks] == [1, 2]
        (move,) = program.moves
        assert (move.number, move.reduce, move.collective, move.wanted) == (1, "sum", "all-reduce", ((0, 4),))
        assert move.targets == (1 - rank,)
        assert [portion.sources for portion in move.portions] == [(0, 1)]


def test_a_failing_instruction_is_described_as_the_user_wrote_it() -> None:
    """The description names the op, its operands, the user's line and signal, and the printed form with layouts."""
    mesh = uniform_mesh(1, {"workers": 2}, (0, 1))
    lines = Lines("train.py")
    x = lines.input(4, 4)
    segment = lines.segment(lines.op("mul", x, lines.scalar("f"), signal=("net", "head")))
    program = compiled(segment, [(Shard(0),)], mesh)
    (step,) = program.blocks[0]
    assert describe(program, step.instruction) == (
        "mul of f32[4,4], f at train.py:1 in signal net/head [%0 f32[4,4] S0 = mul $0 S0, #0]"
    )
    alone = compiled(segment, [(REPLICATE,)])
    assert describe(alone, step.instruction).endswith("[%0 f32[4,4] = mul $0, #0]")
