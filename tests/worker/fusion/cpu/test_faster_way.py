"""Which of two ways a program takes: the one that takes less time, also when that changes; and its bits are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from builders import Lines
from hypothesis import given
from hypothesis import strategies as st

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import Policy
from gt.sharding.placement import REPLICATE, uniform_mesh
from gt.worker.base.backend import backend
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.execution.optimize import fused, on_cpu
from gt.worker.fusion.cpu.faster_way import MEMORY, TRIAL_PERIOD, FasterWay
from gt.worker.program.compiler import compile_plan

SIDE = 208
"""Products of so large matrices are cut in two."""


class Hours:
    """A clock that goes on by what each run takes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.way = FasterWay(lambda: self.now)

    def runs(self, count: int, seconds: Callable[[int], float]) -> list[int]:
        """The ways of so many runs, each of which takes that many seconds by its way."""
        taken = []
        for _ in range(count):
            taken.append(self.way.begin())
            self.now += seconds(taken[-1])
            self.way.end()
        return taken


@given(st.sampled_from([0, 1]), st.floats(1e-6, 1.0), st.floats(1.05, 10.0))
def test_the_faster_way_is_taken_and_the_other_one_tried(faster: int, seconds: float, ratio: float) -> None:
    clock = Hours()

    def takes(way: int) -> float:
        return seconds if way == faster else seconds * ratio

    assert sum(clock.runs(2 * MEMORY, takes)) == MEMORY, "both as often at first"
    later = clock.runs(10 * TRIAL_PERIOD, takes)
    assert later.count(1 - faster) == 10
    clock.runs(60 * TRIAL_PERIOD, lambda way: takes(1 - way))
    assert clock.runs(10 * TRIAL_PERIOD, lambda way: takes(1 - way)).count(faster) == 10, "when it has changed"


@given(st.lists(st.booleans(), min_size=8 * TRIAL_PERIOD, max_size=8 * TRIAL_PERIOD))
def test_runs_that_the_machine_kept_waiting_change_nothing(late: list[bool]) -> None:
    """As long as they are the smaller part of those by which a way is judged."""
    clock = Hours()
    clock.runs(2 * MEMORY, lambda way: 1.0 + way)
    spent = [0, 0]
    for each in late:
        way = clock.way.begin()
        spent[way] += 1
        clock.now += 1.0 + way + 100 * (each and spent[way] % MEMORY < MEMORY // 2)
        clock.way.end()
    assert spent[1] <= len(late) // TRIAL_PERIOD + 1


def test_the_bits_are_the_same_both_ways() -> None:
    """Of a program with a product that is cut in two: it runs both ways, and afterwards nothing of that is left."""
    lines = Lines()
    x, w = lines.input(SIDE, SIDE), lines.input(SIDE, SIDE)
    made = lines.op("matmul", lines.op("tanh", lines.op("matmul", x, w)), lines.op("permute", w, axes=(1, 0)))
    mesh = uniform_mesh(1, {"workers": 1}, (0,))
    residents = tuple(ResidentPlacement((REPLICATE,)) for _ in lines.inputs)
    plan = Planner(mesh, Policy(mesh, {})).plan(lines.segment(made), residents).plan
    shared: list[bool] = []

    class Pool(ThreadPool):
        def run(self, part: Callable[[int], None]) -> None:
            shared.append(self.helps)
            super().run(part)

    pool = Pool(2)
    cold = compile_plan(plan, mesh, 0, replace(backend("cpu"), thread_pool=pool))
    hot = fused(cold, on_cpu(pool))
    assert len(hot.actions[0]) == len(hot.starts[0]) == len(cold.actions[0]) + 2
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((SIDE, SIDE), dtype=np.float32) for _ in range(2)]
    found = set()
    for program in (cold, *[hot] * (2 * MEMORY)):
        slots = [*inputs, *[None] * (program.slots - 2)]
        for action in program.actions[0]:
            action(slots)
        found.add(slots[program.survivors[0][1]].tobytes())
        assert pool.helps
    assert len(found) == 1
    assert len(shared) == 2 + 2 * MEMORY, "each product of every other run, and of the cold one"


def test_no_program_is_timed_whose_products_are_small_or_that_has_one_thread() -> None:
    for side, threads in ((20, 2), (SIDE, 1)):
        lines = Lines()
        x, w = lines.input(side, side), lines.input(side, side)
        made = lines.op("matmul", x, w)
        mesh = uniform_mesh(1, {"workers": 1}, (0,))
        residents = tuple(ResidentPlacement((REPLICATE,)) for _ in lines.inputs)
        plan = Planner(mesh, Policy(mesh, {})).plan(lines.segment(made), residents).plan
        pool = ThreadPool(threads)
        cold = compile_plan(plan, mesh, 0, replace(backend("cpu"), thread_pool=pool))
        assert len(fused(cold, on_cpu(pool)).actions[0]) == len(cold.actions[0])
