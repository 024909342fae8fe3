"""Plans that are cut: together the parts are the plan, and none should take longer than its signals allow."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from builders import Lines
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.cost.cost_model import VIEW_OPS
from gt.dispatcher.cost.expected_run_time import expected_steps
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.plan_parts import MAX_PARTS, PASSED_NUMBERS, PlanPart, PlanStep, cut_plan, part_starts
from gt.dispatcher.planner.planner import Planned, Planner
from gt.dispatcher.planner.policy import resolve
from gt.ir.instruction import INPUT, MOVE, OUTPUT, SCALAR, Plan, Segment
from gt.ir.instruction_bytes import pack_plan, unpack_plan
from gt.sharding.config import Config
from gt.sharding.placement import uniform_mesh
from gt.turns import finish

TIMES = st.floats(0.0, 1.0) | st.just(0.0)
LIMITS = st.floats(0.001, 2.0) | st.just(inf)


@given(st.lists(st.tuples(TIMES, LIMITS), min_size=1, max_size=60))
def test_each_part_takes_what_all_in_it_allow_or_is_one_instruction(steps: list[tuple[float, float]]) -> None:
    """Parts are as long as they may be: none could have the first instruction of the next one too."""
    seconds, limits = zip(*steps, strict=True)
    starts = finish(part_starts([PlanStep(at, *each) for at, each in enumerate(steps)]))
    least = 2 * sum(seconds) / MAX_PARTS
    assert starts[0] == 0
    assert starts == sorted({*starts})
    for begin, end in zip(starts, [*starts[1:], len(steps)], strict=True):
        took = [each for each in seconds[begin:end] if each]
        most = min([limit for each, limit in steps[begin:end] if each], default=inf)
        allowed = max(least, most)
        assert len(took) <= 1 or sum(took) <= allowed * (1 + 1e-9)
        if end < len(steps):
            assert sum(took) + seconds[end] > max(least, min(most, limits[end])) * (1 - 1e-9)


@given(st.lists(TIMES, min_size=1, max_size=2000), st.floats(1e-9, 1.0))
@settings(max_examples=cases(125))
def test_there_are_never_more_parts_than_may_be(seconds: list[float], limit: float) -> None:
    assert len(finish(part_starts([PlanStep(at, each, limit) for at, each in enumerate(seconds)]))) <= MAX_PARTS + 1


def training(signal: str = "net") -> Segment:
    """A step of a small network, with a view, a scalar and a value that survives and is read on."""
    lines = Lines()
    x, w, v = lines.input(8, 4), lines.input(6, 4), lines.input(8, 6)
    rate = lines.scalar("f")
    turned = lines.op("permute", w, axes=(1, 0), signal=(signal,))
    y = lines.op("matmul", x, turned, signal=(signal,))
    z = lines.op("relu", y, signal=(signal,))
    g = lines.op("mul", z, v, signal=(signal,))
    grad = lines.op("matmul", lines.op("permute", g, axes=(1, 0)), x, signal=(signal,), phase="backward")
    new = lines.op("sub", w, lines.op("mul", grad, rate, phase="update"), phase="update")
    total = lines.op("sum", g, axes=(0, 1), keepdims=False)
    return lines.segment(z, new, total, lines.op("exp", z))


def planned(config: dict[str, Any], workers: int) -> tuple[Planner, Planned]:
    read = Config.from_plain(config)
    mesh = uniform_mesh(1, read.mesh_for(workers), tuple(range(workers)))
    planner, segment = Planner(mesh, resolve(read, mesh)), training()
    residents = tuple(ResidentPlacement(mesh.replicated, at == 1) for at in range(3))
    return planner, planner.plan(segment, residents)


def cut(planner: Planner, plan: Plan) -> tuple[PlanPart, ...]:
    return finish(cut_plan(plan, planner.policy, planner.mesh, planner.known_speeds))


SHARDED: list[dict[str, Any]] = [
    {},
    {"sharding_config": {"net": {"strategy": "data_parallel"}}},
    {"sharding_config": {"net": {"strategy": "fully_sharded"}}},
    {"mesh": {"model": 2}, "sharding_config": {"net": {"strategy": "tensor_parallel", "dimension": 0}}},
]


@pytest.mark.parametrize("limit", ["1us", "4us", "10us"])
@pytest.mark.parametrize("config", SHARDED)
def test_the_parts_together_are_the_plan(config: dict[str, Any], limit: str) -> None:
    """Each instruction is in one part, in the plan's order, on the same values in the same layouts; what survives has its
    number, and what an earlier part has computed is there until nobody reads it any more."""
    planner, whole = planned({**config, "max_plan": limit}, 2 if config else 1)
    plan, parts = whole.plan, cut(planner, whole.plan)
    assert len(parts) > 1
    there: dict[int, int] = {}  # what is stored, as the whole plan's output
    survivors: dict[int, int] = {}
    relocated: list[tuple[int, int]] = []
    done = 0
    read: set[int] = set()
    for part in parts:
        assert str(unpack_plan(pack_plan(part.plan))) == str(part.plan)
        known = [source << 2 | INPUT if source >= 0 else there[~source] << 2 for source in part.inputs]
        for position, reference in enumerate(known):
            assert part.plan.inputs[position] == plan.operand(reference)
            assert part.plan.input_layouts[position] == plan.layout(reference)
        outputs: list[int] = []
        for own in part.plan.instructions:
            operands = tuple(_whole(r, known, outputs, part) for r in own.inputs)
            if done < len(plan.instructions):
                its = plan.instructions[done]
                assert (own.op, operands, own.attributes) == (its.op, its.inputs, its.attributes)
                assert part.plan.tags[own.tag] == plan.tags[its.tag]
                outputs += its.outputs
                done += 1
            else:  # what takes the place of an input was computed before
                assert own.op == MOVE
                outputs.append(operands[0] >> 2)
            for n, number in zip(own.outputs, outputs[-len(own.outputs) :], strict=True):
                assert part.plan.layouts[n] == plan.layouts[number]
        for number, index in part.plan.survivors:
            there[part.base + number] = outputs[index]
            if part.base + number < PASSED_NUMBERS:
                survivors[part.base + number] = outputs[index]
        for at in part.ends:
            read.add(~part.inputs[at])
            del there[~part.inputs[at]]
        assert not read & {*there}, "what ended is not there"
        relocated += [(part.inputs[at], outputs[index]) for at, index in part.plan.relocated]
    assert done == len(plan.instructions)
    assert survivors == dict(plan.survivors)
    assert {*relocated} == {*plan.relocated}
    assert {*there} == {*survivors}, "nothing is left that only parts read"
    last = {position: number for number, part in enumerate(parts) for position in part.last}
    assert last.keys() == set(range(len(plan.inputs)))
    for number, part in enumerate(parts):
        assert all(last[source] >= number for source in part.inputs if source >= 0)


def _whole(r: int, known: list[int], outputs: list[int], part: PlanPart) -> int:
    """The whole plan's reference to an operand of a part."""
    kind, index = r & 3, r >> 2
    if kind == SCALAR:
        return part.scalars[index] << 2 | SCALAR
    return known[index] if kind == INPUT else outputs[index] << 2 | OUTPUT


def test_a_signal_s_limit_holds_for_plans_with_work_of_it() -> None:
    """The innermost signal that says something decides; what no rule speaks of is as long as it likes."""
    config = Config.from_plain(
        {"max_plan": 1.0, "sharding_config": {"net": {"max_plan": "3us"}, "net/head": {"max_plan": 2.0}}}
    )
    mesh = uniform_mesh(1, {"data": 1}, (0,))
    policy = resolve(config, mesh)
    lines = Lines()
    x = lines.input(4)
    for signal in (("net",), ("net", "head"), ("other",)):
        lines.op("neg", x, signal=signal)
    tags = lines.segment().tags
    assert [policy.seconds_for(tag) for tag in tags] == [3e-6, 2.0, 1.0]


@pytest.mark.parametrize("config", SHARDED)
def test_a_cut_follows_from_plan_config_and_speeds_alone(config: dict[str, Any]) -> None:
    """And every part with more than one instruction should take no longer than it may; a plan that is short is not cut."""
    limit = 12e-6
    planner, whole = planned({**config, "max_plan": limit}, 2 if config else 1)
    parts = cut(planner, whole.plan)
    assert cut(planner, whole.plan) == parts
    for part in parts:
        seconds = finish(expected_steps(part.plan, planner.mesh, planner.known_speeds))
        computed = [i for i, took in zip(part.plan.instructions, seconds, strict=True) if took and i.op not in VIEW_OPS]
        assert len(computed) == 1 or sum(seconds) <= limit
    for unlimited in ({**config, "max_plan": 60.0}, config):
        planner, whole = planned(unlimited, 2 if config else 1)
        assert cut(planner, whole.plan) == ()
