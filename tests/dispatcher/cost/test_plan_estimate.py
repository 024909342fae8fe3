"""Accounts of plans written by hand, beside figures worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gt.dispatcher.cost.cost_model import DeviceProfile, LinkProfile, Speeds
from gt.dispatcher.cost.plan_estimate import PlanEstimate, estimate_plan
from gt.ir.dtypes import float32
from gt.ir.infer import infer
from gt.ir.instruction import INPUT, MOVE, OUTPUT, Instruction, Pipeline, Plan, Tag, ref
from gt.ir.spec import Spec, spec
from gt.sharding.placement import Layout, Mesh, parse_layout, uniform_mesh

LINKS = (LinkProfile(1000.0, 10.0), LinkProfile(4000.0, 1.0))
TWO = uniform_mesh(1, {"data": 2}, (0, 1))
GRID = uniform_mesh(1, {"data": 2, "model": 2}, (0, 1, 2, 3))


class Written:
    """A plan written line by line."""

    def __init__(self) -> None:
        self.inputs: list[Spec] = []
        self.input_layouts: list[Layout] = []
        self.instructions: list[Instruction] = []
        self.values: list[Spec] = []
        self.layouts: list[Layout] = []

    def input(self, layout: str, *shape: int) -> int:
        self.inputs.append(spec(float32, shape))
        self.input_layouts.append(parse_layout(layout))
        return ref(INPUT, len(self.inputs) - 1)

    def op(self, layout: str, name: str, *operands: int, **attributes: Any) -> int:
        given = [(self.values if r & 3 == OUTPUT else self.inputs)[r >> 2] for r in operands]
        (result,) = (given[0],) if name == MOVE else infer(name, given, attributes)
        number = len(self.values)
        self.instructions.append(Instruction(name, range(number, number + 1), operands, attributes, 0))
        self.values.append(result)
        self.layouts.append(parse_layout(layout))
        return ref(OUTPUT, number)

    def estimate_plan(
        self,
        *survivors: int,
        mesh: Mesh = TWO,
        devices: tuple[DeviceProfile, ...] = (),
        pipeline: Pipeline | None = None,
    ) -> PlanEstimate:
        plan = Plan(
            mesh.number, tuple(self.inputs), tuple(self.input_layouts), "", (Tag(("net",), "forward", "model.py:7"),),
            tuple(self.instructions), tuple(self.values), tuple(self.layouts),
            tuple((r >> 2, r >> 2) for r in survivors), (), pipeline,
        )  # fmt: skip
        device = DeviceProfile(100.0, 50.0, 0.5)
        speeds = Speeds(LINKS[-len(mesh.sizes) :], devices or (device,) * len(mesh.members))
        return estimate_plan(plan, mesh, speeds)


def test_a_contraction_over_a_cut_dimension_and_its_all_reduce() -> None:
    lines = Written()
    x, w = lines.input("S1", 4, 6), lines.input("S0", 6, 5)
    y = lines.op("P(sum)", "matmul", x, w)
    whole = lines.op("R", MOVE, y)
    found = lines.estimate_plan(whole)
    (move,) = found.moves
    assert (move.collective, move.axes, move.tag.site) == ("all-reduce", ("data",), "model.py:7")
    assert (move.total, move.most) == (160, 80)  # each receives the other's 4 × 5 sums
    assert move.seconds == pytest.approx(1.0 + 80 / 4000)
    # each multiplies 4 × 3 by 3 × 5: 120 flops; it touches 4 · (12 + 15 + 20) bytes, which takes longer
    assert found.computing == pytest.approx((0.5 + 188 / 50,) * 2)
    assert found.seconds == pytest.approx(0.5 + 188 / 50 + 1.02)
    # inputs of 48 and 60 bytes, the partial sum and the sum of 80 each
    assert found.inputs == (108, 108)
    assert found.peak == (268, 268)
    assert found.moved == 160


def test_a_value_is_held_until_its_last_reader() -> None:
    lines = Written()
    x = lines.input("R", 10)
    y = lines.op("R", "neg", x)
    z = lines.op("R", "neg", y)  # y dies here
    last = lines.op("R", "neg", z)
    assert lines.estimate_plan(last).peak == (120, 120)
    assert lines.estimate_plan(y, last).peak == (160, 160)


def test_a_view_takes_nothing_and_keeps_what_it_looks_at() -> None:
    lines = Written()
    x = lines.input("R", 10, 2)
    y = lines.op("R", "neg", x)
    t = lines.op("R", "permute", y, axes=(1, 0))
    z = lines.op("R", "neg", y)
    total = lines.op("R", "add", t, lines.op("R", "permute", z, axes=(1, 0)))
    assert lines.estimate_plan(total).peak == (4 * 80, 4 * 80)


def test_whoever_holds_the_whole_takes_its_part_without_a_collective() -> None:
    lines = Written()
    (move,) = lines.estimate_plan(lines.op("S0", MOVE, lines.input("R", 8))).moves
    assert (move.collective, move.axes, move.total, move.most, move.seconds) == ("", (), 0, 0, 0.0)


def test_an_axis_of_one_worker_exchanges_nothing() -> None:
    lines = Written()
    (move,) = lines.estimate_plan(
        lines.op("R", MOVE, lines.input("S0", 8)), mesh=uniform_mesh(1, {"data": 1}, (0,))
    ).moves
    assert (move.collective, move.seconds) == ("", 0.0)


def test_a_move_is_as_slow_as_the_slowest_of_its_axes() -> None:
    lines = Written()
    x = lines.input("S0|S1", 4, 4)
    found = lines.estimate_plan(lines.op("S0|R", MOVE, x), lines.op("R|R", MOVE, x), mesh=GRID)
    model, both = found.moves
    assert (model.axes, both.axes) == (("model",), ("data", "model"))
    assert (model.total, model.most) == (64, 16)
    assert model.seconds == pytest.approx(1.0 + 16 / 4000)
    assert both.seconds == pytest.approx(2 * 10.0 + 48 / 1000)
    assert found.steps == (model.seconds, both.seconds)


def test_a_dimension_that_a_second_axis_cuts_too_shifts_along_the_first() -> None:
    lines = Written()
    (move,) = lines.estimate_plan(lines.op("S0|S0", MOVE, lines.input("R|S0", 8)), mesh=GRID).moves
    # ranks hold [0, 4) and [4, 8), and get [0, 2), [2, 4), [4, 6), [6, 8): two of them from elsewhere
    assert (move.collective, move.axes, move.total, move.most) == ("all-to-all", ("model",), 16, 8)


def test_in_a_move_whoever_is_there_first_waits_for_those_it_exchanges_with_alone() -> None:
    lines = Written()
    x = lines.input("R|S0", 100, 1)
    y = lines.op("R|S0", "neg", x)
    fast, slow = DeviceProfile(100.0, 400.0, 0.0), DeviceProfile(100.0, 100.0, 0.0)
    found = lines.estimate_plan(lines.op("R|R", MOVE, y), mesh=GRID, devices=(fast, slow, fast, fast))
    move = 1.0 + 200 / 4000
    assert found.computing == (1.0, 4.0, 1.0, 1.0)
    assert found.finished == pytest.approx((4.0 + move, 4.0 + move, 1.0 + move, 1.0 + move))
    assert found.steps == pytest.approx((4.0, move))


def test_uneven_and_empty_parts_count_as_they_are() -> None:
    lines = Written()
    y = lines.op("S0(3,0)", "neg", lines.input("S0(3,0)", 5))
    found = lines.estimate_plan(y)
    assert found.inputs == (20, 0)
    assert found.peak == (40, 0)
    assert found.computing == (0.5 + 40 / 50, 0.0)


def test_stages_of_a_pipeline_work_at_the_same_time_and_hold_a_microbatch_at_a_time() -> None:
    lines = Written()
    x = lines.op("@0|S0", MOVE, lines.input("@0|R", 100))
    y = lines.op("@0|S0", "neg", x)
    z = lines.op("@1|S0", "neg", lines.op("@1|S0", MOVE, y))
    whole = lines.op("@1|R", MOVE, z)
    found = lines.estimate_plan(
        whole, mesh=uniform_mesh(1, {"stages": 2}, (0, 1)), pipeline=Pipeline(4, 0, (0, 1), "gpipe")
    )  # fmt: skip
    cut, send, join = found.moves
    assert (cut.collective, join.collective, cut.total, join.total) == ("", "", 0, 0)
    assert (send.collective, send.axes, send.times) == ("send", ("stages",), 4)
    assert (send.total, send.most) == (400, 400)
    one, trip = 0.5 + 200 / 50, 1.0 + 100 / 4000  # a microbatch is 25 elements of 4 bytes, read and written
    assert send.seconds == pytest.approx(4 * trip)
    # the second stage starts when the first microbatch has come, and then has work until the last
    leaves = [(n + 1) * one + n * 100 / 4000 for n in range(4)]
    arrives = 0.0
    for each in leaves:
        arrives = max(arrives, each + trip) + one
    assert found.finished == pytest.approx((leaves[-1] + 100 / 4000, arrives + 0.5 + 800 / 50))
    assert found.computing == pytest.approx((4 * one, 4 * one + 0.5 + 800 / 50))
    # x, of which the microbatches are views, and one microbatch; four results of a microbatch, one that came, the whole
    assert found.peak == (500, 800)


def test_contributions_of_microbatches_are_added_as_they_come() -> None:
    lines = Written()
    x = lines.op("S1|S0", MOVE, lines.input("S1|R", 8, 2))
    total = lines.op("S0|P(sum)", "sum", x, axes=(0,), keepdims=False)
    whole = lines.op("R|R", MOVE, lines.op("S0|R", MOVE, total))
    found = lines.estimate_plan(whole, pipeline=Pipeline(2, 0, (0, 1), "gpipe"))
    assert [(move.collective, move.times) for move in found.moves] == [("", 1), ("", 1), ("all-gather", 1)]
    # of each microbatch a sum of 16 + 4 bytes, added to one of 4
    assert found.computing == pytest.approx((2 * (0.5 + 20 / 50) + 2 * (0.5 + 8 / 50),) * 2)
    # the input's half, the running sum, and then the whole
    assert found.peak == (32 + 4 + 8,) * 2
