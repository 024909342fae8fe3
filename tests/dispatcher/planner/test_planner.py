"""Plans: golden ones for the forms that people know, and for random programs that every row in them is legal."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from builders import Lines
from effort import PROVED, cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.move_path import move_layouts
from gt.dispatcher.planner.planner import Planned, Planner
from gt.dispatcher.planner.policy import resolve
from gt.dispatcher.planner.reshape_rules import reshape_aligned
from gt.dispatcher.planner.sharding_rules import AxisSplit, ShardingOption, sharding_options
from gt.ir.dtypes import float32, float64, int64
from gt.ir.instruction import MOVE, OUTPUT, SCALAR, Plan, Segment, ref
from gt.ir.instruction_bytes import pack_plan
from gt.ir.spec import spec
from gt.sharding.config import Config
from gt.sharding.partition import moved_bytes
from gt.sharding.placement import (
    REPLICATE,
    Layout,
    Partial,
    Placement,
    Replicate,
    Shard,
    format_layout,
    parse_layout,
    uniform_mesh,
)
from gt.worker.base.backend import backend
from gt.worker.program.compiler import compile_plan

UP, DOWN = ("net", "up"), ("net", "down")
PAIR: dict[str, Any] = {
    "sharding_config": {
        "up": {"strategy": "tensor_parallel", "dimension": 0},
        "down": {"strategy": "tensor_parallel", "dimension": 1},
    }
}
BATCH: dict[str, Any] = {"sharding_config": {"net": {"strategy": "data_parallel"}}}


def planner(config: dict[str, Any], workers: int) -> Planner:
    """A planner over equal workers."""
    read = Config.from_plain(config)
    mesh = uniform_mesh(1, read.mesh_for(workers), tuple(range(workers)))
    return Planner(mesh, resolve(read, mesh))


def written(planned: Planned) -> list[str]:
    return str(planned.plan).splitlines()


def moves(planned: Planned) -> list[str]:
    return [line for line in written(planned) if " = move " in line]


def linear(lines: Lines, x: int, w: int, b: int | None, signal: tuple[str, ...]) -> int:
    """x @ w.T + b, as a linear layer writes it."""
    y = lines.op("matmul", x, lines.op("permute", w, axes=(1, 0), signal=signal), signal=signal)
    return y if b is None else lines.op("add", y, b, signal=signal)


def two_layers() -> Segment:
    """Forward and backward of down(relu(up(x))): survivors are the result and both weights' gradients."""
    lines = Lines()
    x, w1, w2 = lines.input(32, 64), lines.input(128, 64), lines.input(64, 128)

    def back(name: str, *operands: int, signal: tuple[str, ...], **attributes: Any) -> int:
        return lines.op(name, *operands, signal=signal, phase="backward", **attributes)

    def turned(x: int, signal: tuple[str, ...]) -> int:
        return back("permute", x, axes=(1, 0), signal=signal)

    h = lines.op("relu", linear(lines, x, w1, None, UP), signal=UP)
    w2t = lines.op("permute", w2, axes=(1, 0), signal=DOWN)
    y = lines.op("matmul", h, w2t, signal=DOWN)
    g = lines.op("full", lines.scalar("f"), shape=(32, 64), dtype=float32, phase="backward")
    gw2 = turned(back("matmul", turned(h, DOWN), g, signal=DOWN), DOWN)
    gh = back("mul", back("matmul", g, turned(w2t, DOWN), signal=DOWN), h, signal=UP)
    gw1 = turned(back("matmul", turned(x, UP), gh, signal=UP), UP)
    gw1 = back("follow", gw1, w1, signal=UP)
    return lines.segment(y, gw1, back("follow", gw2, w2, signal=DOWN))


# data parallel


def test_data_parallel_linear() -> None:
    """A batch that is cut stays cut through a linear layer whose parameters are whole: nothing moves."""
    lines = Lines()
    x, w, b = lines.input(64, 16), lines.input(8, 16), lines.input(8)
    made = planner(BATCH, 2)
    whole = made.mesh.replicated
    planned = made.plan(
        lines.segment(linear(lines, x, w, b, ("net",))),
        (ResidentPlacement((Shard(0),)), ResidentPlacement(whole, True), ResidentPlacement(whole, True)),
    )
    assert written(planned) == [
        "%0 f32[16,8] R = permute $1 R {axes=(1,0)}",
        "%1 f32[64,8] S0 = matmul $0 S0, %0 R",
        "%2 f32[64,8] S0 = add %1 S0, $2 R",
    ]
    assert planned.survivors == (ResidentPlacement((Shard(0),)),)
    assert planned.inputs[1] == ResidentPlacement(whole, param=True, bound=True)


def test_data_parallel_gradient_is_reduced_once() -> None:
    """The weight's gradient is a partial sum over the batch, reduced once and only where it meets the weight."""
    lines = Lines()
    x, g, w = lines.input(64, 16), lines.input(64, 8), lines.input(8, 16)
    xt = lines.op("permute", x, axes=(1, 0), signal=("net",), phase="backward")
    gw = lines.op("permute", lines.op("matmul", xt, g, signal=("net",)), axes=(1, 0), signal=("net",))
    made = planner(BATCH, 2)
    cut, whole = ResidentPlacement((Shard(0),)), ResidentPlacement(made.mesh.replicated, True, True)
    planned = made.plan(lines.segment(lines.op("follow", gw, w, signal=("net",))), (cut, cut, whole))
    assert written(planned) == [
        "%0 f32[16,64] S1 = permute $0 S0 {axes=(1,0)}",
        "%1 f32[16,8] P(sum) = matmul %0 S1, $1 S0",
        "%2 f32[8,16] P(sum) = permute %1 P(sum) {axes=(1,0)}",
        "%3 f32[8,16] R = move %2 P(sum)",
        "%4 f32[8,16] R = follow %3 R, $2 R",
    ]


# tensor parallel


def test_column_and_row_pair_forward() -> None:
    """A column-parallel layer into a row-parallel one: the weights are cut where they are, and one all-reduce joins."""
    lines = Lines()
    x, w1, b1, w2, b2 = (
        lines.input(32, 64),
        lines.input(128, 64),
        lines.input(128),
        lines.input(64, 128),
        lines.input(64),
    )
    h = lines.op("relu", linear(lines, x, w1, b1, UP), signal=UP)
    y = linear(lines, h, w2, b2, DOWN)
    made = planner(PAIR, 2)
    resident = ResidentPlacement(made.mesh.replicated, True)
    segment = lines.segment(y)
    first = made.plan(segment, (ResidentPlacement(made.mesh.replicated), resident, resident, resident, resident))
    planned = made.plan(segment, first.inputs)
    assert written(planned) == [
        "%0 f32[64,128] S1 = permute $1 S0 {axes=(1,0)}",
        "%1 f32[32,128] S1 = matmul $0 R, %0 S1",
        "%2 f32[32,128] S1 = add %1 S1, $2 S0",
        "%3 f32[32,128] S1 = relu %2 S1",
        "%4 f32[128,64] S0 = permute $3 S1 {axes=(1,0)}",
        "%5 f32[32,64] P(sum) = matmul %3 S1, %4 S0",
        "%6 f32[32,64] R = move %5 P(sum)",
        "%7 f32[32,64] R = add %6 R, $4 R",
    ]


def test_column_and_row_pair_backward() -> None:
    """Forward and backward of a pair: one all-reduce in all, and each gradient is made where its parameter is."""
    made = planner(PAIR, 2)
    segment = two_layers()
    whole = made.mesh.replicated
    first = made.plan(
        segment, (ResidentPlacement(whole), ResidentPlacement(whole, True), ResidentPlacement(whole, True))
    )
    planned = made.plan(segment, first.inputs)
    assert moves(planned) == ["%17 f32[32,64] R = move %4 P(sum)"]
    assert planned.survivors == (
        ResidentPlacement(whole),
        ResidentPlacement((Shard(0),), param=True, bound=True),
        ResidentPlacement((Shard(1),), param=True, bound=True),
    )
    assert [resident.layout for resident in planned.inputs] == [whole, (Shard(0),), (Shard(1),)]


def test_parameters_move_once() -> None:
    """The first plan takes the parameters to where their rules want them; from there on none moves again."""
    made = planner(PAIR, 2)
    segment = two_layers()
    whole = made.mesh.replicated
    first = made.plan(
        segment, (ResidentPlacement(whole), ResidentPlacement(whole, True), ResidentPlacement(whole, True))
    )
    assert moves(first) == [
        "%0 f32[128,64] S0 = move $1 R",
        "%4 f32[64,128] S1 = move $2 R",
        "%19 f32[32,64] R = move %6 P(sum)",
    ]
    assert first.plan.relocated == ((1, 0), (2, 4))
    second = made.plan(segment, first.inputs)
    assert second.plan.relocated == ()
    assert not [line for line in moves(second) if "$" in line]
    assert second.inputs == first.inputs


def test_a_parameter_keeps_its_first_claim() -> None:
    """A parameter that two rules would place stays where the first put it; the second gets a copy."""
    lines = Lines()
    x, w = lines.input(32, 64), lines.input(64, 64)
    first = linear(lines, x, w, None, UP)
    segment = lines.segment(linear(lines, first, w, None, DOWN))
    made = planner(PAIR, 2)
    whole = made.mesh.replicated
    planned = made.plan(segment, (ResidentPlacement(whole), ResidentPlacement(whole, True)))
    assert planned.inputs[1] == ResidentPlacement((Shard(0),), param=True, bound=True)
    assert made.plan(segment, planned.inputs).inputs == planned.inputs


def test_data_and_tensor_parallel_on_two_axes() -> None:
    """On a mesh of data × model the batch is cut along one axis, the weights along the other."""
    rules = {"net": {"strategy": "data_parallel"}, **PAIR["sharding_config"]}
    made = planner({"mesh": {"data": 2, "model": 2}, "sharding_config": rules}, 4)
    whole = made.mesh.replicated
    segment = two_layers()
    first = made.plan(
        segment,
        (ResidentPlacement((Shard(0), REPLICATE)), ResidentPlacement(whole, True), ResidentPlacement(whole, True)),
    )
    planned = made.plan(segment, first.inputs)
    assert [resident.layout for resident in planned.inputs[1:]] == [(REPLICATE, Shard(0)), (REPLICATE, Shard(1))]
    assert [resident.layout for resident in planned.survivors] == [
        (Shard(0), REPLICATE),
        (REPLICATE, Shard(0)),
        (REPLICATE, Shard(1)),
    ]
    crossing = [line for line in moves(planned) if "P(sum)" in line.split(" = ")[1]]
    assert sorted(line.split(" = ")[1].split()[-1] for line in crossing) == ["P(sum)|S0", "P(sum)|S1", "S0|P(sum)"]


# the explicit form


def test_explicit_shard_on_some_of_the_workers() -> None:
    """What a signal produces is cut among the named workers alone, and computed there; the others hold nothing."""
    lines = Lines()
    x, w = lines.input(8, 6), lines.input(6, 4)
    y = lines.op("relu", lines.op("matmul", x, w, signal=("ffn",)))
    made = planner({"mesh": {"workers": 4}, "sharding_config": {"ffn": {"shard": {"axis": 1, "workers": [0, 2]}}}}, 4)
    planned = made.plan(
        lines.segment(y), (ResidentPlacement(made.mesh.replicated), ResidentPlacement(made.mesh.replicated, True))
    )
    assert written(planned) == [
        "%0 f32[6,4] S1(1,0,1,0) = move $1 R",
        "%1 f32[8,4] S1(1,0,1,0) = matmul $0 R, %0 S1(1,0,1,0)",
        "%2 f32[8,4] S1(1,0,1,0) = relu %1 S1(1,0,1,0)",
    ]


def test_tensors_of_too_few_dimensions_escape_an_explicit_shard() -> None:
    """A rule that cuts dimension 1 says nothing about a vector: it stays whole."""
    lines = Lines()
    y = lines.op("relu", lines.input(8), signal=("ffn",))
    made = planner({"mesh": {"workers": 2}, "sharding_config": {"ffn": {"shard": {"axis": 1, "workers": [0, 1]}}}}, 2)
    assert written(made.plan(lines.segment(y), (ResidentPlacement(made.mesh.replicated),))) == [
        "%0 f32[8] R = relu $0 R"
    ]


# what follows a parameter


def test_an_optimizer_works_where_the_parameter_is() -> None:
    """A step of SGD with momentum over a cut parameter moves nothing, and all it makes stays with the parameter."""
    lines = Lines()
    w, g, m = (lines.input(128, 64) for _ in range(3))
    rate, beta = lines.scalar("f"), lines.scalar("f")
    velocity = lines.op("add", lines.op("mul", m, beta, phase="update"), g, phase="update")
    stepped = lines.op("sub", w, lines.op("mul", velocity, rate, phase="update"), phase="update")
    made = planner(PAIR, 2)
    resident = ResidentPlacement((Shard(0),), True, True)
    planned = made.plan(lines.segment(velocity, stepped), (resident, resident, resident))
    assert written(planned) == [
        "%0 f32[128,64] S0 = mul $2 S0, #1",
        "%1 f32[128,64] S0 = add %0 S0, $1 S0",
        "%2 f32[128,64] S0 = mul %1 S0, #0",
        "%3 f32[128,64] S0 = sub $0 S0, %2 S0",
    ]
    assert planned.survivors[-1] == resident


def test_follow_takes_a_value_to_its_parameter() -> None:
    """`follow` places the first operand as the second is, and the result follows that parameter from then on."""
    lines = Lines()
    g, w = lines.input(16, 8), lines.input(16, 8)
    made = planner(PAIR, 2)
    planned = made.plan(
        lines.segment(lines.op("follow", g, w)),
        (ResidentPlacement((Shard(1),)), ResidentPlacement((Shard(0),), True, True)),
    )
    assert written(planned) == ["%0 f32[16,8] S0 = move $0 S1", "%1 f32[16,8] S0 = follow %0 S0, $1 S0"]
    assert planned.survivors == (ResidentPlacement((Shard(0),), True, True),)


def test_a_tagged_parameter_is_born_in_its_place() -> None:
    """A parameter made in a tensor-parallel signal is cut at once, and claimed by that signal."""
    lines = Lines()
    w = lines.op("normal", lines.scalar("i"), lines.scalar("i"), shape=(128, 64), dtype=float32, signal=UP)
    planned = planner(PAIR, 2).plan(lines.segment(lines.op("tag", w, param=True, signal=UP)), ())
    assert planned.survivors == (ResidentPlacement((Shard(0),), param=True, bound=True),)


def test_a_parameter_is_never_partial() -> None:
    """A parameter made of contributions is reduced where it is tagged, so that what follows it has somewhere to go."""
    lines = Lines()
    x = lines.input(6, 6)
    w = lines.op("tag", lines.op("matmul", x, x), param=True)
    segment = lines.segment(lines.op("relu", lines.op("follow", x, w)))
    planned = planner(PAIR, 2).plan(segment, (ResidentPlacement((Shard(1),)),))
    assert planned.survivors == (ResidentPlacement((REPLICATE,), param=True),)
    made = planner(BATCH, 2)
    planned = made.plan(segment, (ResidentPlacement((Shard(0),)),))
    check_legal(made, segment, planned, (ResidentPlacement((Shard(0),)),))


# what is never asked for


def test_without_rules_nothing_is_cut() -> None:
    """Operations outside of all signals, over whole tensors, stay whole on every worker and move nothing."""
    planned = planner(PAIR, 4).plan(unruled(), (ResidentPlacement((REPLICATE,)), ResidentPlacement((REPLICATE,), True)))
    assert not moves(planned)
    assert set(planned.plan.layouts) == {(REPLICATE,)}
    assert {resident.layout for resident in (*planned.survivors, *planned.inputs)} == {(REPLICATE,)}


def unruled() -> Segment:
    lines = Lines()
    x, w = lines.input(32, 64), lines.input(64, 64)
    h = lines.op("relu", linear(lines, x, w, None, ("elsewhere",)))
    p = lines.op("softmax", lines.op("cat", h, h, axis=1), axis=1)
    r = lines.op("normal", lines.scalar("i"), lines.scalar("i"), shape=(32, 128), dtype=float32)
    return lines.segment(lines.op("sum", lines.op("mul", p, r), axes=(0,), keepdims=False), h)


def test_survivors_are_never_partial() -> None:
    """A value that outlives the plan is reduced at its end: nobody ever fetches or stores a contribution."""
    lines = Lines()
    x = lines.input(64, 16)
    total = lines.op("sum", x, axes=(0, 1), keepdims=False)
    planned = planner(BATCH, 2).plan(
        lines.segment(total, lines.op("permute", x, axes=(1, 0))), (ResidentPlacement((Shard(0),)),)
    )
    assert written(planned) == [
        "%0 f32[] P(sum) = sum $0 S0 {axes=(0,1), keepdims=False}",
        "%1 f32[16,64] S1 = permute $0 S0 {axes=(1,0)}",
        "%2 f32[] R = move %0 P(sum)",
    ]
    assert planned.survivors[0] == ResidentPlacement((REPLICATE,))


def test_a_large_reduction_is_one_all_reduce() -> None:
    """However large, an all-reduce is one move: the workers choose how, and the bytes are those of the way they choose."""
    lines = Lines()
    x, w = lines.input(256, 64), lines.input(64, 256)
    made = planner(BATCH, 4)
    planned = made.plan(
        lines.segment(lines.op("matmul", x, w)), (ResidentPlacement((Shard(1),)), ResidentPlacement((Shard(0),)))
    )
    assert written(planned) == [
        "%0 f32[256,256] P(sum) = matmul $0 S1, $1 S0",
        "%1 f32[256,256] R = move %0 P(sum)",
    ]
    shape, mesh = (256, 256), made.mesh
    at_once = moved_bytes(shape, 4, (Partial(),), (REPLICATE,), mesh)
    halves = [(Partial(),), (Shard(0),), (REPLICATE,)]
    steps = [moved_bytes(shape, 4, a, b, mesh) for a, b in pairwise(halves)]
    assert at_once == (sum(total for total, _ in steps), sum(most for _, most in steps))


def test_what_else_changes_does_not_come_between_a_large_all_reduce() -> None:
    """Of several axes that change, first what needs nobody, then the all-reduce alone, then what gathers; small values
    do it all at once."""
    before, after = parse_layout("P(sum)|R|S0"), parse_layout("R|S1|R")
    large, small = spec(float32, (256, 256)), spec(float32, (4, 4))
    steps = ["P(sum)|S1|S0", "R|S1|S0", "R|S1|R"]
    assert [format_layout(step) for step in move_layouts(large, before, after, False)] == steps
    assert list(move_layouts(small, before, after, False)) == [after]


# any program


def stripped(placement: Placement | None) -> Placement | None:
    return Shard(placement.dim) if isinstance(placement, Shard) else placement


def check_legal(made: Planner, segment: Segment, planned: Planned, residents: tuple[ResidentPlacement, ...]) -> None:
    """Every instruction of a plan has a legal row on every axis of the mesh, and moves make nothing partial."""
    plan, mesh = planned.plan, made.mesh
    assert plan.input_layouts == tuple(resident.layout for resident in residents)
    for instruction in plan.instructions:
        outputs = [plan.layouts[n] for n in instruction.outputs]
        inputs = [None if r & 3 == SCALAR else plan.layout(r) for r in instruction.inputs]
        for layout, value in zip(outputs, (plan.values[n] for n in instruction.outputs), strict=True):
            check_layout(layout, value.ndim, len(mesh.sizes))
        if instruction.op == MOVE:
            (before,) = inputs
            assert before is not None
            for old, new in zip(before, outputs[0], strict=True):
                assert new == old or not isinstance(new, Partial)
            continue
        operands = tuple(plan.operand(r) for r in instruction.inputs)
        results = tuple(plan.values[n] for n in instruction.outputs)
        for axis in range(len(mesh.sizes)):
            placed = [layout[axis] for layout in (*outputs, *inputs) if layout is not None]
            weights = {p.weights for p in placed if isinstance(p, Shard)}
            assert len(weights) <= 1, "one instruction is cut in one way"
            cut = AxisSplit(next(iter(weights), None) or mesh.weights[axis])
            row = ShardingOption(
                tuple(stripped(layout[axis]) for layout in outputs),  # type: ignore[misc]
                tuple(None if layout is None else stripped(layout[axis]) for layout in inputs),
            )
            assert row in sharding_options(instruction.op, instruction.attributes, operands, results, cut), (
                instruction.op,
                row,
            )
        if instruction.op == "reshape":
            assert reshape_aligned(operands[0].shape, inputs[0], results[0].shape, outputs[0], mesh)  # type: ignore[arg-type, union-attr]
    check_homes(segment, planned, residents)
    for rank in range(len(mesh.members)):
        compile_plan(plan, mesh, rank, backend("cpu"))


def check_layout(layout: Layout, ndim: int, axes: int) -> None:
    assert len(layout) == axes
    assert all(placement.dim < ndim for placement in layout if isinstance(placement, Shard))


def check_homes(segment: Segment, planned: Planned, residents: tuple[ResidentPlacement, ...]) -> None:
    """Survivors and moved inputs are where their homes say, whole, and of the spec that the segment gave them."""
    plan: Plan = planned.plan
    assert tuple(number for number, _ in plan.survivors) == segment.survivors
    for (number, index), resident in zip(plan.survivors, planned.survivors, strict=True):
        assert plan.values[index] is segment.values[number]
        assert plan.layouts[index] == resident.layout
        assert not any(isinstance(placement, Partial) for placement in resident.layout)
    moved = dict(plan.relocated)
    for position, (before, after) in enumerate(zip(residents, planned.inputs, strict=True)):
        assert before.param == after.param
        assert after.bound or not before.bound
        assert (position in moved) == (before.layout != after.layout)
        if position in moved:
            assert plan.layouts[moved[position]] == after.layout


SIGNALS = ((), ("net",), ("net", "up"), ("net", "down"), ("ffn",), ("whole",), ("auto",))
CONFIGS: tuple[tuple[dict[str, Any], int], ...] = (
    (BATCH, 3),
    (PAIR, 2),
    (PAIR, 5),
    ({"sharding_config": {"up": {"strategy": "tensor_parallel"}, "down": {"strategy": "tensor_parallel"}}}, 3),
    ({"mesh": {"workers": 4}, "sharding_config": {"ffn": {"shard": {"axis": 1, "workers": [1, 3]}}}}, 4),
    (
        {"mesh": {"data": 2, "model": 2}, "sharding_config": {"net": {"strategy": "data_parallel"},
         **PAIR["sharding_config"], "ffn": {"shard": {"axis": 0, "workers": [0, 1]}}}},
        4,
    ),
    ({"mesh": {"data": 1, "model": 2}, "sharding_config": {**BATCH["sharding_config"], **PAIR["sharding_config"]}}, 2),
)  # fmt: skip


#: How random programs go on: from two matrices (and vectors, made by reductions) to one more matrix.
Way = Callable[[Lines, st.DrawFn, int, int, dict[str, Any]], int]
WAYS: tuple[Way, ...] = (
    lambda lines, draw, a, b, tags: lines.op("matmul", a, b, **tags),
    lambda lines, draw, a, b, tags: lines.op(draw(st.sampled_from(["add", "sub", "mul", "maximum"])), a, b, **tags),
    lambda lines, draw, a, b, tags: lines.op("permute", a, axes=(1, 0), **tags),
    lambda lines, draw, a, b, tags: lines.op(draw(st.sampled_from(["relu", "exp", "neg"])), a, **tags),
    lambda lines, draw, a, b, tags: lines.op("softmax", a, axis=draw(st.integers(0, 1)), **tags),
    lambda lines, draw, a, b, tags: cut_and_joined(lines, a, b, draw(st.integers(0, 1)), tags),
    lambda lines, draw, a, b, tags: lines.op(
        "reshape", lines.op("reshape", a, shape=(2, 18), **tags), shape=(6, 6), **tags
    ),
    lambda lines, draw, a, b, tags: lines.op("expand", reduced(lines, draw, a, tags), shape=(6, 6), **tags),
    lambda lines, draw, a, b, tags: lines.op("add", a, reduced(lines, draw, b, tags), **tags),
    lambda lines, draw, a, b, tags: lines.op("follow", a, b, **tags),
    lambda lines, draw, a, b, tags: lines.op("tag", a, param=draw(st.booleans()), **tags),
    lambda lines, draw, a, b, tags: lines.op("mul", a, lines.scalar("f"), **tags),
    lambda lines, draw, a, b, tags: lines.op(
        "gather", b, lines.op("cast", a, dtype=int64, **tags), axis=draw(st.integers(0, 1)), **tags
    ),
    lambda lines, draw, a, b, tags: lines.op("where", lines.op("lt", a, b, **tags), a, b, **tags),
    lambda lines, draw, a, b, tags: lines.op("cast", lines.op("cast", a, dtype=float64, **tags), dtype=float32, **tags),
)  # fmt: skip


def cut_and_joined(lines: Lines, a: int, b: int, axis: int, tags: dict[str, Any]) -> int:
    wide = lines.op("cat", a, b, axis=axis, **tags)
    return lines.op("slice", wide, lines.scalar("i"), axes=(axis,), sizes=(6,), steps=(1,), **tags)


def reduced(lines: Lines, draw: st.DrawFn, a: int, tags: dict[str, Any]) -> int:
    name, axis = draw(st.sampled_from(["sum", "max", "prod"])), draw(st.integers(0, 1))
    return lines.op(name, a, axes=(axis,), keepdims=False, **tags)


@st.composite
def programs(draw: st.DrawFn) -> tuple[Segment, list[bool]]:
    """A segment of operations on square matrices under random signals, and which of its inputs are parameters."""
    lines = Lines()
    made = [lines.input(6, 6) for _ in range(draw(st.integers(1, 3)))]
    params = [draw(st.booleans()) for _ in made]
    for _ in range(draw(st.integers(1, 10))):
        tags = {"signal": draw(st.sampled_from(SIGNALS))}
        a, b = draw(st.sampled_from(made)), draw(st.sampled_from(made))
        made.append(draw(st.sampled_from(WAYS))(lines, draw, a, b, tags))
    survivors = st.sets(st.sampled_from([ref(OUTPUT, n) for n in range(len(lines.values))]), min_size=1)
    return lines.segment(*draw(survivors)), params


@given(programs(), st.sampled_from(CONFIGS), st.data())
@settings(max_examples=cases(85))
def test_every_row_of_every_plan_is_legal(program: Any, config: Any, data: st.DataObject) -> None:
    """Whatever a program does, under whatever rules and from wherever its inputs are, each row of its plan is legal."""
    segment, params = program
    made = planner(*config)
    placements: list[Placement] = [REPLICATE, REPLICATE, Shard(0), Shard(1)]
    residents = tuple(
        ResidentPlacement(
            tuple(data.draw(st.sampled_from(placements[: 2 + spec.ndim])) for _ in made.mesh.sizes), param
        )
        for spec, param in zip(segment.inputs, params, strict=True)
    )
    planned = made.plan(segment, residents)
    check_legal(made, segment, planned, residents)
    check_legal(made, segment, made.plan(segment, planned.inputs), planned.inputs)
    PROVED["plans of which each row is legal"] += 2


@given(programs(), st.sampled_from(CONFIGS))
@settings(max_examples=cases(35))
def test_planning_is_deterministic(program: Any, config: Any) -> None:
    """The same segment from the same homes gives the same bytes: in a new planner, again, and with warm memos."""
    segment, params = program
    made = planner(*config)
    residents = tuple(ResidentPlacement(made.mesh.replicated, param) for param in params)
    packed = pack_plan(made.plan(segment, residents).plan)
    assert pack_plan(made.plan(segment, residents).plan) == packed
    assert pack_plan(planner(*config).plan(segment, residents).plan) == packed


@given(programs(), st.sampled_from(CONFIGS))
@settings(max_examples=cases(20))
def test_parameters_settle(program: Any, config: Any) -> None:
    """From the second time on, a program finds its parameters where it left them."""
    segment, params = program
    made = planner(*config)
    first = made.plan(segment, tuple(ResidentPlacement(made.mesh.replicated, param) for param in params))
    second = made.plan(segment, first.inputs)
    assert second.inputs == first.inputs
    assert second.plan.relocated == ()
    assert all(isinstance(p, Replicate) for resident in second.inputs if not resident.param for p in resident.layout)
