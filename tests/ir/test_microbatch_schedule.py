"""The orders in which stages run microbatches: as published, sound, and refused where they would not be."""

from __future__ import annotations

import pytest
from builders import Lines
from hypothesis import given
from hypothesis import strategies as st

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planned, Planner
from gt.dispatcher.planner.policy import resolve
from gt.ir.instruction import Segment
from gt.ir.instruction_bytes import pack_plan, unpack_plan
from gt.ir.microbatch_schedule import order
from gt.sharding.config import Config
from gt.sharding.placement import REPLICATE, At, uniform_mesh

LAYERS = 4


def chain(*, backward: bool = True) -> Segment:
    """Four layers x @ w, and the gradients of their weights."""
    lines = Lines()
    x = lines.input(16, 8)
    weights = [lines.input(8, 8) for _ in range(LAYERS)]
    values = [x]
    for index, w in enumerate(weights):
        values.append(lines.op("matmul", values[-1], w, signal=("net", f"layer{index}")))
    if not backward:
        return lines.segment(values[-1])
    g = values[-1]
    out = []
    for index in reversed(range(LAYERS)):
        where = {"signal": ("net", f"layer{index}"), "phase": "backward"}
        xt = lines.op("permute", values[index], axes=(1, 0), **where)  # type: ignore[arg-type]
        gw = lines.op("matmul", xt, g, **where)  # type: ignore[arg-type]
        out.append(lines.op("follow", gw, weights[index], phase="backward"))
        wt = lines.op("permute", weights[index], axes=(1, 0), **where)  # type: ignore[arg-type]
        g = lines.op("matmul", g, wt, **where)  # type: ignore[arg-type]
    return lines.segment(*out)


def piped(stages: int, microbatches: int, schedule: str = "1f1b", segment: Segment | None = None) -> Planned:
    rule = {
        "strategy": "pipeline_parallel", "stages": [[n] for n in range(stages)], "microbatches": microbatches,
        "schedule": schedule,
    }  # fmt: skip
    config = Config.from_plain({"sharding_config": {"net": rule}})
    mesh = uniform_mesh(1, config.mesh_for(stages), tuple(range(stages)))
    residents = (ResidentPlacement((REPLICATE,)), *[ResidentPlacement((REPLICATE,), param=True)] * LAYERS)
    made = Planner(mesh, resolve(config, mesh))
    segment = segment or chain()
    first = made.plan(segment, residents)
    return made.plan(segment, first.inputs)


def shown(planned: Planned, stage: int) -> str:
    """F0 F1 B0 ...: the matrix products of one stage, as it runs them, one letter for each sweep of a microbatch."""
    plan, seen = planned.plan, []
    for at, microbatch in order(plan, (stage,)):
        instruction = plan.instructions[at]
        layout = plan.layouts[instruction.outputs[0]]
        if instruction.op == "matmul" and layout[0] == At(stage):
            letter = "F" if plan.tags[instruction.tag].phase == "forward" else "B"
            seen.append(f"{letter}{microbatch}")
    return " ".join(dict.fromkeys(seen))


def test_1f1b_is_as_published() -> None:
    """Four microbatches over two stages: the first runs one ahead, the last alternates at once."""
    planned = piped(2, 4)
    assert planned.hindered == ""
    assert shown(planned, 0) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert shown(planned, 1) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_gpipe_runs_all_forward_first() -> None:
    assert {shown(piped(2, 3, "gpipe"), stage) for stage in range(2)} == {"F0 F1 F2 B0 B1 B2"}


def test_a_stage_holds_as_many_microbatches_as_stages_follow() -> None:
    """What 1f1b is for: activations of at most so many microbatches wait for their backward sweep."""
    planned = piped(4, 8)
    for stage in range(4):
        waiting = most = 0
        for sweep in shown(planned, stage).split():
            waiting += 1 if sweep[0] == "F" else -1
            most = max(most, waiting)
        assert most == 4 - stage


@given(st.integers(1, 4), st.integers(2, 5), st.sampled_from(["1f1b", "gpipe"]))
def test_every_instruction_runs_after_what_it_reads(stages: int, microbatches: int, schedule: str) -> None:
    """On every stage each microbatch of a value is made before it is read, and everything is made once."""
    plan = piped(stages, microbatches, schedule).plan
    for stage in range(stages):
        items = list(order(plan, (stage,)))
        assert len(items) == len(set(items))
        place = {item: n for n, item in enumerate(items)}
        maker = {number: at for at, instruction in enumerate(plan.instructions) for number in instruction.outputs}
        for (at, microbatch), n in place.items():
            for r in plan.instructions[at].inputs:
                if r & 3 == 0:
                    made = maker[r >> 2]
                    assert place.get((made, microbatch), place.get((made, 0))) < n  # type: ignore[operator]


def test_stages_are_contiguous_and_even() -> None:
    """Four equal layers over two stages: two each, in the order of the program, and each weight lives on its stage."""
    assert [resident.layout for resident in piped(2, 2).inputs[1:]] == [(At(0),), (At(0),), (At(1),), (At(1),)]
    assert [resident.layout for resident in piped(4, 2).inputs[1:]] == [(At(n),) for n in range(4)]


def test_forward_alone_runs_as_gpipe_and_says_why() -> None:
    planned = piped(2, 4, segment=chain(backward=False))
    assert planned.hindered == "forward and backward came in different segments"
    assert planned.plan.pipeline is not None
    assert planned.plan.pipeline.schedule == "gpipe"


def test_a_value_that_goes_back_down_hinders_1f1b() -> None:
    """A weight that is used again after a later one takes the activations back to its stage."""
    lines = Lines()
    x = lines.input(16, 8)
    weights = [lines.input(8, 8) for _ in range(LAYERS)]
    y = x
    for index, w in enumerate([*weights, weights[0]]):
        y = lines.op("matmul", y, w, signal=("net", f"layer{index % LAYERS}"))
    planned = piped(2, 4, segment=lines.segment(y))
    assert planned.hindered.startswith("a value goes from @1 to @0 in the forward sweep, at model.py:5")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_pipelined_plan_reads_back_as_it_was_packed(schedule: str) -> None:
    plan = piped(2, 3, schedule).plan
    assert unpack_plan(pack_plan(plan)) == plan
