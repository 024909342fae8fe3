"""Planning a segment as a whole: what it finds is the best there is, and wherever it is taken values stay."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest
from builders import Lines
from effort import PROVED, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from law.__main__ import case, judged, network_case
from law.running import Discarded

from gt.dispatcher.cost.plan_estimate import estimate_plan
from gt.dispatcher.planner import plan_search as searching
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planned, Planner, PlanningPass
from gt.dispatcher.planner.policy import resolve
from gt.ir.instruction import Segment
from gt.sharding.config import Config
from gt.sharding.placement import REPLICATE, Shard, uniform_mesh
from gt.turns import finish

CONFIGS: tuple[dict[str, Any], ...] = (
    {"sharding_config": {"elsewhere": {"strategy": "data_parallel"}}},
    {"sharding_config": {"net": {"strategy": "data_parallel"}}},
    {"sharding_config": {"net": {"strategy": "fully_sharded"}}},
    {"sharding_config": {"net": {"strategy": "tensor_parallel", "dimension": 0}}},
)


def planner(config: dict[str, Any], workers: int) -> Planner:
    """A planner over equal workers."""
    read = Config.from_plain(config)
    mesh = uniform_mesh(1, read.mesh_for(workers), tuple(range(workers)))
    return Planner(mesh, resolve(read, mesh))


def found(made: Planner, segment: Segment, residents: tuple[ResidentPlacement, ...]) -> Planned | None:
    """What searching as a whole finds."""
    *_, last = made.search(segment, residents, made.plan(segment, residents))
    return last


def retaken(one: PlanningPass) -> Planned:
    """The plan of a pass by its script."""
    turns = one.turns()
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def moved(made: Planner, planned: Planned) -> int:
    return estimate_plan(planned.plan, made.mesh, made.known_speeds).moved


def seconds(made: Planner, planned: Planned) -> float:
    return estimate_plan(planned.plan, made.mesh, made.known_speeds).seconds


def crossed() -> Segment:
    """A matrix that is cut by rows, multiplied by itself turned around three times and summed up by columns."""
    lines = Lines()
    x, w = lines.input(512, 512), lines.input(512, 512)
    h = x
    for _ in range(3):
        h = lines.op("matmul", lines.op("permute", h, axes=(1, 0), signal=("net",)), w, signal=("net",))
    return lines.segment(lines.op("sum", h, axes=(0,), keepdims=False, signal=("net",)))


@st.composite
def segments(draw: st.DrawFn) -> tuple[Segment, tuple[ResidentPlacement, ...]]:
    """A few instructions over large matrices, on which moves cost something, at homes that are cut in some way."""
    lines = Lines()
    residents = [REPLICATE, Shard(0), Shard(1)]
    known = [lines.input(256, 256) for _ in range(draw(st.integers(1, 3)))]
    at = tuple(ResidentPlacement((draw(st.sampled_from(residents)),)) for _ in known)
    for _ in range(draw(st.integers(2, 5))):
        op = draw(st.sampled_from(["add", "matmul", "permute", "relu"]))
        x, y = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        if op == "permute":
            known.append(lines.op(op, x, signal=("net",), axes=(1, 0)))
        else:
            known.append(lines.op(op, x, *([] if op == "relu" else [y]), signal=("net",)))
    return lines.segment(known[-1]), at


@settings(max_examples=cases(60), deadline=None)
@given(drawn=segments(), config=st.sampled_from(CONFIGS), workers=st.integers(2, 4))
def test_no_combination_of_choices_is_better(
    drawn: tuple[Segment, tuple[ResidentPlacement, ...]], config: dict[str, Any], workers: int
) -> None:
    """Of a short segment all combinations are tried: a search of any width finds the cheapest, one of `SEARCH_WIDTH` none worse
    than what it began with, and both agree with the account."""
    segment, residents = drawn
    made = planner(config, workers)
    known = made.plan(segment, residents)
    costs = {}
    start = finish(made.start(made.policy, segment, residents))
    for script in itertools.product(range(4), repeat=len(segment.instructions)):
        one, faithful = start.copy(), True
        for index, (instruction, branch) in enumerate(zip(segment.instructions, script, strict=True)):
            decisions = one.branches(index, instruction)
            if branch >= len(decisions):
                break
            faithful = faithful and (not branch or decisions[branch].faithful)
            one.take(instruction, decisions[branch])
        else:
            one.settle_survivors(known.survivors)
            if faithful:
                costs[script] = one.seconds, one.moved
    usual, limit = costs[(0,) * len(segment.instructions)]
    least = min(seconds for seconds, _ in costs.values())
    best = [
        script
        for script, (seconds, moved) in costs.items()
        if seconds <= least * (1 + 1e-9)
        and (moved <= limit or seconds < (1 - searching.LEAST_GAIN_OF_MORE_BYTES) * usual)
    ]
    narrow = found(made, segment, residents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "SEARCH_WIDTH", 1 << 20)
        better = found(made, segment, residents)
    PROVED["short segments whose choices were all tried against the search"] += 1
    if better is None:
        assert not best or least >= (1 - searching.LEAST_GAIN) * usual
    elif best:
        assert str(better.plan) in {str(retaken(start.restarted(script, known.survivors)).plan) for script in best}
    assert better is None or seconds(made, better) < seconds(made, known)
    if better is not None and moved(made, better) > moved(made, known) * 1.01:  # whose shards may be uneven
        assert seconds(made, better) < (1 - searching.LEAST_GAIN_OF_MORE_BYTES) * seconds(made, known) * 1.01
    assert narrow is None or seconds(made, narrow) < seconds(made, known)


def test_a_move_at_first_that_saves_computing_later() -> None:
    """Taken one by one, what moves nothing comes first, and every worker computes two whole products; as a whole, none does."""
    made, segment = planner(CONFIGS[1], 4), crossed()
    residents = (ResidentPlacement((Shard(0),)), ResidentPlacement(made.mesh.replicated, True, True))
    better = found(made, segment, residents)
    assert better is not None
    products = [instruction for instruction in better.plan.instructions if instruction.op == "matmul"]
    assert all(isinstance(better.plan.layout(r)[0], Shard) for i in products for r in i.inputs[:1])
    assert seconds(made, better) < 0.5 * seconds(made, made.plan(segment, residents))


def test_it_comes_in_small_turns() -> None:
    """A turn follows one path over one instruction: whoever plans can do other things in between."""
    made, segment = planner(CONFIGS[1], 4), crossed()
    residents = (ResidentPlacement((Shard(0),)), ResidentPlacement(made.mesh.replicated, True, True))
    turns = list(made.search(segment, residents, made.plan(segment, residents)))
    assert len(turns) >= len(segment.instructions)
    assert all(turn is None for turn in turns[:-1])


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> list[Planned]:
    """Every plan is at once the better one, if there is any; what was found."""
    usual, better = Planner.plan_in_turns, []

    def plan(
        self: Planner, segment: Segment, residents: tuple[ResidentPlacement, ...]
    ) -> Generator[None, None, Planned]:
        known = yield from usual(self, segment, residents)
        if self.searchable(segment, known):
            *_, last = self.search(segment, residents, known)
            if last is not None:
                better.append(last)
                return last
        return known

    monkeypatch.setattr(Planner, "plan_in_turns", plan)
    return better


def test_better_plans_do_not_change_values(always: list[Planned]) -> None:
    """The law, with every segment planned as a whole."""
    for seed in range(max(9, cases(18))):  # among which some segment has a better plan
        for subject, places in (case(seed), *([network_case(seed)] if seed % 4 == 0 else [])):
            try:
                for _ in judged(subject, places):
                    PROVED["programs and networks whose segments were all planned as a whole"] += 1
            except Discarded:
                pass
    assert always, "some segment has a better plan"


def test_what_is_chosen_alone_is_the_first_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who plans op by op asks for the best choice alone, who searches for several: the first of these is that one."""
    usual, compared = Planner.plan_in_turns, []

    def plan(
        self: Planner, segment: Segment, residents: tuple[ResidentPlacement, ...]
    ) -> Generator[None, None, Planned]:
        known = yield from usual(self, segment, residents)
        assert retaken(finish(self.start(self.policy, segment, residents))) == known
        compared.append(segment)
        return known

    monkeypatch.setattr(Planner, "plan_in_turns", plan)
    for seed in range(max(4, cases(24))):
        for subject, places in (case(seed), *([network_case(seed)] if seed % 4 == 0 else [])):
            with suppress(Discarded):
                for _ in judged(subject, places):
                    PROVED["programs and networks whose choices were compared with those of a search"] += 1
    assert compared
