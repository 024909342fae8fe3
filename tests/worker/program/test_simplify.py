"""What a worker leaves out of a plan: what nobody reads, layouts of layouts, and layouts that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import Lines

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import Policy
from gt.ir.instruction import Plan
from gt.sharding.placement import REPLICATE, Layout, Shard, uniform_mesh
from gt.worker.base.backend import backend
from gt.worker.program.compiler import compile_plan
from gt.worker.program.simplify import simplified


def planned(lines: Lines, *survivors: int, workers: int = 1, layout: Layout = (REPLICATE,)) -> Plan:
    mesh = uniform_mesh(workers, {"workers": workers}, tuple(range(workers)))
    return Planner(mesh, Policy(mesh, {})).plan(lines.segment(*survivors), (ResidentPlacement(layout),)).plan


def lines_of(plan: Plan) -> list[tuple[str, Any]]:
    """The ops of the plan as it is computed, with their attributes."""
    return [(instruction.op, instruction.attributes) for instruction in simplified(plan).instructions]


def values(plan: Plan, x: Any) -> list[Any]:
    """What survives of a plan on one worker."""
    program = compile_plan(plan, uniform_mesh(1, {"workers": 1}, (0,)), 0, backend("cpu"))
    slots: list[Any] = [x, *[None] * (program.slots - 1)]
    for action in program.actions[0]:
        action(slots)
    return [slots[slot] for _, slot in program.survivors]


def test_what_nobody_reads_is_left_out_with_what_it_alone_reads() -> None:
    lines = Lines()
    x = lines.input(2, 3)
    lines.op("exp", lines.op("neg", x))
    plan = planned(lines, lines.op("abs", x))
    assert [op for op, _ in lines_of(plan)] == ["abs"]


def test_a_transpose_of_a_transpose_is_what_it_was() -> None:
    """Its readers read that one; a result of the plan is made all the same, by one instruction."""
    lines = Lines()
    x = lines.input(2, 3)
    back = lines.op("permute", lines.op("permute", x, axes=(1, 0)), axes=(1, 0))
    read, kept = planned(lines, lines.op("neg", back)), planned(lines, back)
    assert [op for op, _ in lines_of(read)] == ["neg"]
    assert lines_of(kept) == [("permute", {"axes": (0, 1)})]
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(values(read, data)[0], -data)
    np.testing.assert_array_equal(values(kept, data)[0], data)


def test_permutes_and_reshapes_of_their_kind_are_one() -> None:
    lines = Lines()
    x = lines.input(2, 3, 4)
    turned = lines.op("permute", lines.op("permute", x, axes=(1, 2, 0)), axes=(2, 1, 0))
    flat = lines.op("reshape", lines.op("reshape", x, shape=(6, 4)), shape=(3, 8))
    plan = planned(lines, turned, flat)
    assert lines_of(plan) == [("permute", {"axes": (0, 2, 1)}), ("reshape", {"shape": (3, 8)})]
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(values(plan, data)[0], data.transpose(0, 2, 1))
    np.testing.assert_array_equal(values(plan, data)[1], data.reshape(3, 8))


@pytest.mark.parametrize("op", ["permute", "reshape"])
def test_shards_stay_where_they_are(op: str) -> None:
    """Of a tensor that is cut, the layout of what is read instead is the one that the reader was planned for."""
    lines = Lines()
    x = lines.input(4, 6)
    there, back = ({"axes": (1, 0)}, {"axes": (1, 0)}) if op == "permute" else ({"shape": (4, 2, 3)}, {"shape": (4, 6)})
    plan = planned(
        lines, lines.op("neg", lines.op(op, lines.op(op, x, **there), **back)), workers=2, layout=(Shard(0),)
    )
    (line,) = simplified(plan).instructions
    assert line.op == "neg"
    assert plan.layout(line.inputs[0]) == plan.layouts[line.outputs[0]] == (Shard(0),)
