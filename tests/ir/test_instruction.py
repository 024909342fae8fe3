"""Segments and plans: they come back from their bytes as they were, print in one form, and hostile ones are refused."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from builders import Lines
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_calls import allocated_bytes

from gt.bounds import MAX_INSTRUCTIONS
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import resolve
from gt.errors import DTypeError, ProtocolError, ShapeError
from gt.ir.dtypes import float32, int64
from gt.ir.instruction import Segment, Tag, print_instruction, ref
from gt.ir.instruction_bytes import pack_plan, pack_segment, unpack_plan, unpack_segment
from gt.ir.ops import OPS
from gt.ir.spec import Spec, spec
from gt.op_samples.op_samples import FAMILIES, drawn
from gt.sharding.config import Config
from gt.sharding.placement import uniform_mesh

REFUSALS = (ProtocolError, ShapeError, DTypeError)
"""All that a hostile definition may meet."""


def network() -> Segment:
    """Two layers with a scalar, a slice, a cast and a gather: every kind of operand and attribute."""
    lines = Lines()
    x, w, rate, start = lines.input(8, 6), lines.input(6, 4), lines.scalar("f"), lines.scalar("i")
    h = lines.op("relu", lines.op("matmul", x, w, signal=("net", "first")), signal=("net", "first"))
    part = lines.op("slice", h, start, axes=(0,), sizes=(2,), steps=(-2,), phase="backward")
    index = lines.op("cast", part, dtype=int64)
    picked = lines.op("gather", h, index, axis=1)
    total = lines.op("sum", lines.op("mul", picked, rate), axes=(0, 1), keepdims=False)
    step = lines.op("full", rate, shape=(3,), dtype=float32, phase="update")
    return lines.segment(h, total, step)


def several() -> Segment:
    """Every op of the table once, each on operands of its own."""
    lines = Lines()
    survivors = []
    for name in OPS:
        sample = drawn(name)[0][0]
        operands = [
            lines.input(*x.shape, dtype=x.dtype) if isinstance(x, Spec) else lines.scalar(x) for x in sample.specs
        ]
        survivors.append(lines.op(name, *operands, **sample.attributes))
    return lines.segment(*survivors[::2])


def plan_of(segment: Segment) -> Any:
    config = Config.from_plain(
        {"mesh": {"data": 2, "model": 2}, "sharding_config": {"first": {"strategy": "data_parallel"}}}
    )
    mesh = uniform_mesh(7, config.mesh_for(4), (0, 1, 2, 3))
    planner = Planner(mesh, resolve(config, mesh))
    return planner.plan(segment, tuple(ResidentPlacement(mesh.replicated) for _ in segment.inputs)).plan


# round trips


def test_every_op_survives_the_wire() -> None:
    """A segment that holds every op of the table comes back equal, spec by spec and attribute by attribute."""
    assert set(FAMILIES) >= {op.family for op in OPS.values()}
    segment = several()
    assert unpack_segment(pack_segment(segment)) == segment


def test_equal_segments_have_equal_bytes() -> None:
    """The bytes of a segment depend on nothing but what it says, so that they can be its identity."""
    first, second = network(), network()
    assert pack_segment(first) == pack_segment(second)
    assert pack_segment(unpack_segment(pack_segment(first))) == pack_segment(first)


def test_every_value_is_derived_again() -> None:
    """A definition carries no spec of a result: what the receiver holds is what its own rules say."""
    segment = network()
    raw = msgpack.unpackb(pack_segment(segment))
    assert raw[0] == [["f32", [8, 6]], ["f32", [6, 4]]]
    assert [str(value) for value in unpack_segment(msgpack.packb(raw)).values] == [
        "f32[8,4]", "f32[8,4]", "f32[2,4]", "i64[2,4]", "f32[2,4]", "f32[2,4]", "f32[]", "f32[3]",
    ]  # fmt: skip


def test_plans_survive_the_wire() -> None:
    """A plan with moves, layouts and survivors comes back equal."""
    for segment in (network(), several()):
        plan = plan_of(segment)
        assert unpack_plan(pack_plan(plan)) == plan


def test_last_use_is_the_last_reader() -> None:
    """`last_use` names the last instruction that reads a tensor, and leaves scalars out."""
    segment = network()
    assert segment.last_use == {
        ref(1, 0): 0, ref(1, 1): 0, ref(0, 0): 1, ref(0, 1): 4, ref(0, 2): 3, ref(0, 3): 4, ref(0, 4): 5, ref(0, 5): 6,
    }  # fmt: skip


# the printed form


def test_segment_prints_in_one_form() -> None:
    """Results, op, operands and attributes, one line an instruction: `%` outputs, `$` inputs, `#` scalars."""
    assert str(network()).splitlines() == [
        "%0 f32[8,4] = matmul $0, $1",
        "%1 f32[8,4] = relu %0",
        "%2 f32[2,4] = slice %1, #1 {axes=(0,), sizes=(2,), steps=(-2,)}",
        "%3 i64[2,4] = cast %2 {dtype=i64}",
        "%4 f32[2,4] = gather %1, %3 {axis=1}",
        "%5 f32[2,4] = mul %4, #0",
        "%6 f32[] = sum %5 {axes=(0,1), keepdims=False}",
        "%7 f32[3] = full #0 {shape=(3,), dtype=f32}",
    ]


def test_plan_prints_with_layouts() -> None:
    """In a plan every tensor is printed with its layout, one placement for each axis of the mesh."""
    lines = Lines()
    x, w = lines.input(8, 6), lines.input(6, 4)
    plan = plan_of(lines.segment(lines.op("relu", lines.op("matmul", x, w, signal=("first",)))))
    assert str(plan).splitlines() == [
        "%0 f32[8,6] S0|R = move $0 R|R",
        "%1 f32[8,4] S0|R = matmul %0 S0|R, $1 R|R",
        "%2 f32[8,4] S0|R = relu %1 S0|R",
    ]


def test_one_instruction_prints_alone() -> None:
    """Error texts print a single instruction, with or without layouts."""
    segment = network()
    assert print_instruction(segment.instructions[3], segment.values) == "%3 i64[2,4] = cast %2 {dtype=i64}"


# refusals


def body(**changes: Any) -> bytes:
    """A definition of one addition, with parts of it replaced."""
    parts: dict[str, Any] = {
        "inputs": [["f32", [2, 3]], ["f32", [3]]],
        "kinds": "f",
        "tags": [[["net"], 0, "model.py:1", []]],
        "instructions": [["add", [1, 5], {}, 0]],
        "survivors": [0],
    }
    assert set(changes) <= set(parts)
    return msgpack.packb(list({**parts, **changes}.values()))


def instruction(*parts: Any) -> dict[str, Any]:
    return {"instructions": [list(parts)]}


MALFORMED: dict[str, bytes] = {
    "no bytes": b"",
    "not msgpack": b"\xc1",
    "bytes left over": body() + b"\0",
    "a number": msgpack.packb(7),
    "a mapping": msgpack.packb({"inputs": []}),
    "a part short": msgpack.packb([[], "", [], []]),
    "a part that is nothing": msgpack.packb([[], "", [], None, []]),
    "an extension type": msgpack.packb([[], "", [], [msgpack.ExtType(4, b"x")], []]),
    "an unknown dtype": body(inputs=[["f33", [2, 3]], ["f32", [3]]]),
    "a negative size": body(inputs=[["f32", [2, -3]], ["f32", [3]]]),
    "a size that is true": body(inputs=[["f32", [2, True]], ["f32", [3]]]),
    "too many elements": body(inputs=[["f32", [1 << 40, 1 << 40]], ["f32", [3]]]),
    "too many dimensions": body(inputs=[["f32", [1] * 33], ["f32", [3]]]),
    "inputs that are text": body(inputs="f32"),
    "a kind of scalar that does not exist": body(kinds="z"),
    "kinds that are a list": body(kinds=["f"]),
    "a tag short of a site": body(tags=[[["net"], 0]]),
    "a path of numbers": body(tags=[[[1], 0, "model.py:1", []]]),
    "a phase that does not exist": body(tags=[[["net"], 3, "model.py:1", []]]),
    "a phase that is true": body(tags=[[["net"], True, "model.py:1", []]]),
    "a site that is bytes": body(tags=[[["net"], 0, b"model.py:1", []]]),
    "hints that are text": body(tags=[[["net"], 0, "model.py:1", "hot"]]),
    "an unknown op": body(**instruction("launch", [1, 5], {}, 0)),
    "the op that only plans have": body(**instruction("move", [1], {}, 0)),
    "an op that is a list": body(**instruction(["add"], [1, 5], {}, 0)),
    "an operand that does not exist": body(**instruction("add", [1, 9], {}, 0)),
    "an operand not made yet": body(**instruction("add", [1, 0], {}, 0)),
    "an operand of no kind": body(**instruction("add", [1, 3], {}, 0)),
    "a negative operand": body(**instruction("add", [1, -3], {}, 0)),
    "an operand that is true": body(**instruction("add", [1, True], {}, 0)),
    "operands that are a mapping": body(**instruction("add", {}, {}, 0)),
    "one operand for two": body(**instruction("add", [1], {}, 0)),
    "no operand": body(**instruction("cat", [], {"axis": 0}, 0)),
    "an attribute too many": body(**instruction("add", [1, 5], {"axis": 0}, 0)),
    "an attribute short": body(**instruction("sum", [1], {"axes": [0]}, 0)),
    "axes out of order": body(**instruction("sum", [1], {"axes": [1, 0], "keepdims": False}, 0)),
    "an axis out of range": body(**instruction("sum", [1], {"axes": [2], "keepdims": False}, 0)),
    "keepdims that is a number": body(**instruction("sum", [1], {"axes": [0], "keepdims": 1}, 0)),
    "an axis that is huge": body(**instruction("softmax", [1], {"axis": 1 << 62}, 0)),
    "a shape that is text": body(**instruction("reshape", [1], {"shape": "6"}, 0)),
    "a shape of other elements": body(**instruction("reshape", [1], {"shape": [7]}, 0)),
    "a dtype that is a number": body(**instruction("cast", [1], {"dtype": 4}, 0)),
    "attributes that are a list": body(**instruction("add", [1, 5], [], 0)),
    "attributes with keys of bytes": body(**instruction("cast", [1], {b"dtype": "f32"}, 0)),
    "a tag that does not exist": body(**instruction("add", [1, 5], {}, 1)),
    "a negative tag": body(**instruction("add", [1, 5], {}, -1)),
    "an instruction short of a tag": body(**instruction("add", [1, 5], {})),
    "an instruction that is text": body(instructions=["add"]),
    "instructions that are text": body(instructions="add"),
    "more instructions than allowed": body(instructions=[None] * (MAX_INSTRUCTIONS + 1)),
    "shapes that do not broadcast": body(inputs=[["f32", [2, 4]], ["f32", [3]]]),
    "dtypes that differ": body(inputs=[["f32", [2, 3]], ["f64", [3]]]),
    "a scalar for a matrix": body(**instruction("matmul", [1, 2], {}, 0)),
    "a survivor that does not exist": body(survivors=[1]),
    "a survivor twice": body(survivors=[0, 0]),
    "a negative survivor": body(survivors=[-1]),
    "survivors that are a number": body(survivors=0),
}  # fmt: skip


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_definitions_are_refused(data: bytes) -> None:
    """Each way to write a wrong definition is refused by an error of GT that says what is wrong."""
    with pytest.raises(REFUSALS) as refusal:
        unpack_segment(data)
    assert str(refusal.value)


def test_malformed_is_about_the_part_that_was_changed() -> None:
    """The definition from which the malformed ones are made is itself fine."""
    assert str(unpack_segment(body())) == "%0 f32[2,3] = add $0, $1"


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=4)
    | st.binary(max_size=4) | st.sampled_from([*OPS, "f32", "i64", "bif", "axes", "shape", "dtype", "to", "S0|R"]),
    lambda inner: st.lists(inner, max_size=5)
    | st.dictionaries(st.text(max_size=4) | st.integers(0, 3), inner, max_size=3),
    max_leaves=20,
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, raw: Any) -> Any:
    """`raw` with something inside it replaced, removed or doubled."""
    raw = msgpack.unpackb(msgpack.packb(raw), strict_map_key=False)
    for _ in range(draw(st.integers(1, 3))):
        inner: Any = raw
        for _ in range(draw(st.integers(0, 5))):
            items = list(inner) if isinstance(inner, dict) else range(len(inner))
            if not items:
                break
            key = draw(st.sampled_from(items))
            if not isinstance(inner[key], (list, dict)) or not inner[key]:
                break
            inner = inner[key]
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        if not keys:
            continue
        key = draw(st.sampled_from(keys))
        change = draw(st.sampled_from(["replace", "remove", "number"]))
        if change == "replace":
            inner[key] = draw(plain)
        elif change == "number":
            inner[key] = draw(st.integers(0, 40) | st.sampled_from([1 << 31, 1 << 48, (1 << 64) - 1, -1]))
        else:
            del inner[key]
    return raw


def survives(data: bytes) -> None:
    """Unpacking either refuses, or gives a segment that packs again."""
    try:
        segment = unpack_segment(data)
    except REFUSALS:
        return
    assert unpack_segment(pack_segment(segment)) == segment
    assert str(segment).count("\n") == max(0, len(segment.instructions) - 1)


@given(st.binary(max_size=200))
@settings(max_examples=cases(50))
def test_random_bytes_never_do_more_than_be_refused(data: bytes) -> None:
    """Whatever bytes arrive as a definition or a plan, nothing but an error of GT is raised."""
    survives(data)
    try:
        unpack_plan(data)
    except REFUSALS:
        pass


@given(st.lists(plain, min_size=5, max_size=5))
@settings(max_examples=cases(50))
def test_random_structures_never_do_more_than_be_refused(raw: list[Any]) -> None:
    """Whatever structure arrives as a definition, nothing but an error of GT is raised."""
    survives(msgpack.packb(raw))


@given(st.data())
@settings(max_examples=cases(75))
def test_mutated_definitions_never_do_more_than_be_refused(data: st.DataObject) -> None:
    """A definition that was right until something in it changed is refused by an error of GT, or means something."""
    whole = data.draw(st.sampled_from([pack_segment(network()), pack_segment(several()), body()]))
    survives(msgpack.packb(data.draw(mutated(msgpack.unpackb(whole)))))


@given(st.data())
@settings(max_examples=cases(50))
def test_mutated_plans_never_do_more_than_be_refused(data: st.DataObject) -> None:
    """The same of plans."""
    raw = data.draw(mutated(msgpack.unpackb(pack_plan(plan_of(network())), strict_map_key=False)))
    try:
        unpack_plan(msgpack.packb(raw))
    except REFUSALS:
        pass


@pytest.mark.parametrize("mesh", ["", "1", [], True, None])
def test_a_plan_names_its_mesh_by_a_number(mesh: Any) -> None:
    """A plan whose mesh is anything but a number is refused."""
    raw = msgpack.unpackb(pack_plan(plan_of(network())), strict_map_key=False)
    with pytest.raises(ProtocolError):
        unpack_plan(msgpack.packb([mesh, *raw[1:]]))


@given(st.data())
@settings(max_examples=cases(50))
def test_random_segments_survive_the_wire(data: st.DataObject) -> None:
    """Any run of ops over any operands that fit comes back equal."""
    lines = Lines()
    made = [lines.input(3, 4), lines.input(3, 4)]
    for _ in range(data.draw(st.integers(1, 12))):
        a, b = data.draw(st.sampled_from(made)), data.draw(st.sampled_from(made))
        choice = data.draw(st.integers(0, 3))
        tags = {"signal": tuple(data.draw(st.lists(st.sampled_from("ab"), max_size=2)))}
        if choice == 0:
            made.append(lines.op("add", a, b, phase="backward", **tags))
        elif choice == 1:
            made.append(lines.op("mul", a, lines.scalar("f"), **tags))
        elif choice == 2:
            made.append(lines.op("permute", lines.op("permute", a, axes=(1, 0)), axes=(1, 0), **tags))
        else:
            made.append(lines.op("sub", a, b, **tags))
    kept = data.draw(st.sets(st.sampled_from([r for r in made if r & 3 == 0]), min_size=1))
    segment = lines.segment(*kept)
    assert unpack_segment(pack_segment(segment)) == segment


def test_tags_say_where_an_instruction_comes_from() -> None:
    """Signal path, phase and site of every instruction arrive as they were."""
    segment = unpack_segment(pack_segment(network()))
    assert segment.tags[segment.instructions[0].tag] == Tag(("net", "first"), "forward", "model.py:1")
    assert segment.tags[segment.instructions[2].tag].phase == "backward"
    assert spec(float32, (8, 6)) is segment.inputs[0]


@given(st.data())
@settings(max_examples=cases(150), deadline=None)
def test_a_definition_costs_no_more_than_a_multiple_of_its_bytes(data: st.DataObject) -> None:
    """Bytes of a valid definition that are changed, cut, or repeated a thousand times raise nothing but refusals."""
    whole = pack_segment(network())
    at = data.draw(st.integers(0, len(whole)))
    piece = data.draw(st.one_of(st.binary(max_size=6), st.sampled_from((b"\x90", b"\x80", b"\x91", b"\xdc\x40\x00"))))
    changed = (
        whole[:at] + piece * data.draw(st.sampled_from((1, 1000, 50_000))) + whole[at + data.draw(st.integers(0, 2)) :]
    )
    unpack_segment(whole)  # whatever is cached by itself is there
    assert allocated_bytes(lambda: unpack_segment(changed), REFUSALS) < 40 * len(changed) + (12 << 20)
