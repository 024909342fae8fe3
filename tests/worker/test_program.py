"""Compiled programs: slots, blocks and what dies where; and the local half of every move, brute-forced against NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from builders import Array, Lines
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.plan import Home, Planner
from gt.dispatcher.policy import Policy
from gt.dtypes import as_dtype, float32
from gt.instruction import MOVE, Instruction, Plan, Segment, Tag, ref
from gt.partition import box, extent
from gt.placement import PARTIAL_OPS, REPLICATE, Layout, Mesh, Partial, Placement, Replicate, Shard, uniform_mesh
from gt.spec import Spec, spec
from gt.worker.backend import backend
from gt.worker.program import Program, assemble, compile_plan, describe, pieces

CPU = backend("cpu")
ONE = uniform_mesh(1, {"workers": 1}, (0,))
REDUCE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def compiled(segment: Segment, layouts: list[Layout], mesh: Mesh = ONE, rank: int = 0) -> Program:
    plan = Planner(mesh, Policy(mesh, {})).plan(segment, tuple(Home(layout) for layout in layouts)).plan
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
    """Every tensor slot that does not survive is emptied by the step that reads it last, or that makes it for nobody."""
    lines = Lines()
    x = lines.input(3)
    a = lines.op("neg", x)
    lines.op("exp", a)
    b = lines.op("add", a, x)
    program = compiled(lines.segment(b), [(REPLICATE,)])
    assert [step.dead for step in program.blocks[0]] == [(), (2,), (1, 0)]
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
        assert (move.number, move.reduce, move.shape) == (1, "sum", (4,))
        assert [t.target for t in move.sends] == [1 - rank]
        assert [t.source for t in move.receives] == [0, 1]


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


# moves


def moving(whole: Spec, before: Layout, after: Layout, mesh: Mesh) -> Plan:
    """A plan that is one move."""
    instruction = Instruction(MOVE, range(1), (ref(1, 0),), {}, 0)
    tags = (Tag((), "forward", "model.py:1"),)
    return Plan(mesh.number, (whole,), (before,), "", tags, (instruction,), (whole,), (after,), ((0, 0),), ())


def contributions(array: Array, layout: Layout, mesh: Mesh, seed: int) -> list[Array]:
    """What each rank holds of `array`: its part, or along partial axes something that only joined is the value."""
    operation = next((p.op for p in layout if isinstance(p, Partial)), None)
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(len(mesh.members)):
        at = mesh.coordinates(rank)
        groups.setdefault(tuple(c for c, p in zip(at, layout, strict=True) if not isinstance(p, Partial)), []).append(
            rank
        )
    held: dict[int, Array] = {}
    random = np.random.default_rng(seed)
    for group in groups.values():
        shares = [random.integers(1, 4, array.shape).astype(array.dtype) for _ in group]
        if operation == "sum":
            shares[-1] = array - sum(shares[:-1], np.zeros_like(array))
        elif operation in ("max", "min"):
            shares = [REDUCE["min" if operation == "max" else "max"](array, share) for share in shares]
            shares[0] = array
        elif operation == "prod":
            shares = [array, *[np.ones_like(array) for _ in group[1:]]]
        else:
            shares = [array]
        for rank, share in zip(group, shares, strict=True):
            part = box(array.shape, layout, mesh, rank)
            held[rank] = share[tuple(slice(*pair) for pair in part)]
    return [held[rank] for rank in range(len(mesh.members))]


def check_move(array: Array, before: Layout, after: Layout, mesh: Mesh, seed: int = 0) -> None:
    """After the move every rank holds its part of the value, and ranks that hold the same hold the same bits."""
    whole = spec(as_dtype(array.dtype), array.shape)
    plan = moving(whole, before, after, mesh)
    ranks = range(len(mesh.members))
    moves = [compile_plan(plan, mesh, rank, CPU).moves[0] for rank in ranks]
    held = contributions(array, before, mesh, seed)
    sent: dict[tuple[int, int], Any] = {}
    for rank in ranks:
        for target, piece in pieces(moves[rank], held[rank], CPU):
            assert piece.flags.c_contiguous
            assert (rank, target) not in sent, "one piece for each pair"
            sent[rank, target] = piece
    joined: dict[Any, bytes] = {}
    for rank in ranks:
        arrived = {t.source: sent.pop((t.source, rank)) for t in moves[rank].receives if t.source != rank}
        arrived = {
            source: piece.reshape(extent(next(t.part for t in moves[rank].receives if t.source == source)))
            for source, piece in arrived.items()
        }
        found = assemble(moves[rank], held[rank], arrived, np)
        part = box(array.shape, after, mesh, rank)
        key = (part, tuple(c for c, p in zip(mesh.coordinates(rank), after, strict=True) if isinstance(p, Partial)))
        if not any(isinstance(p, Partial) for p in after):
            np.testing.assert_array_equal(found, array[tuple(slice(*pair) for pair in part)])
            assert joined.setdefault(key, np.asarray(found).tobytes()) == np.asarray(found).tobytes()
    assert not sent, "nobody sends what nobody receives"


def placements(ndim: int, operation: str) -> list[Placement]:
    return [REPLICATE, Partial(operation), *[Shard(dim) for dim in range(ndim)], Shard(0, (2, 0, 1))]


@pytest.mark.parametrize("operation", PARTIAL_OPS)
def test_every_move_along_one_axis(operation: str) -> None:
    """From every placement to every other, over three workers, uneven and empty shards included."""
    mesh = uniform_mesh(1, {"workers": 3}, (0, 1, 2))
    for shape in ((4, 5), (1, 2), (7,)):
        array = np.random.default_rng(1).integers(1, 5, shape).astype(np.float64)
        for before, after in itertools.product(placements(len(shape), operation), repeat=2):
            if isinstance(after, Replicate | Shard):
                check_move(array, (before,), (after,), mesh)


@given(
    st.sampled_from([(2, 2), (2, 3), (3, 1), (4, 2)]),
    st.lists(st.integers(0, 6), min_size=1, max_size=3),
    st.sampled_from(PARTIAL_OPS),
    st.data(),
)
@settings(max_examples=120, deadline=None)
def test_moves_on_two_axes(sizes: tuple[int, int], shape: list[int], operation: str, data: st.DataObject) -> None:
    """From any layout to any other on a mesh of two axes, also where both cut one dimension or both are partial."""
    mesh = uniform_mesh(1, dict(zip("ab", sizes, strict=True)), tuple(range(sizes[0] * sizes[1])))
    ends: list[Placement] = [REPLICATE, *[Shard(dim) for dim in range(len(shape))]]
    before = tuple(data.draw(st.sampled_from([*ends, Partial(operation)])) for _ in sizes)
    after = tuple(data.draw(st.sampled_from(ends)) for _ in sizes)
    array = np.random.default_rng(2).integers(1, 5, tuple(shape)).astype(np.float64)
    check_move(array, before, after, mesh)


def test_a_value_without_dimensions_moves() -> None:
    """Contributions to a scalar, as NumPy's own scalars, are joined on every worker."""
    mesh = uniform_mesh(1, {"workers": 3}, (0, 1, 2))
    plan = moving(spec(float32, ()), (Partial("sum"),), (REPLICATE,), mesh)
    moves = [compile_plan(plan, mesh, rank, CPU).moves[0] for rank in range(3)]
    held = [np.float32(rank + 1) for rank in range(3)]
    sent = {(rank, target): piece for rank in range(3) for target, piece in pieces(moves[rank], held[rank], CPU)}
    for rank in range(3):
        arrived = {source: sent[source, rank].reshape(()) for source in range(3) if source != rank}
        found = assemble(moves[rank], held[rank], arrived, np)
        assert (found.shape, found.dtype, found) == ((), np.float32, 6)


def test_what_a_move_keeps_holds_no_larger_array() -> None:
    """A part cut from a whole that goes away is copied: it does not keep the whole in memory."""
    mesh = uniform_mesh(1, {"workers": 2}, (0, 1))
    array = np.arange(8, dtype=np.float32)
    (move,) = compile_plan(moving(spec(float32, (8,)), (REPLICATE,), (Shard(0),), mesh), mesh, 0, CPU).moves
    part = assemble(move, array, {}, np)
    assert part.base is None
    np.testing.assert_array_equal(part, array[:4])
