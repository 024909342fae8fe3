"""Programs of one worker as they are and hot, and whether both have the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from builders import Lines, ran

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import Policy
from gt.sharding.placement import REPLICATE, uniform_mesh
from gt.worker.base.backend import backend
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.execution.optimize import fused, on_cpu
from gt.worker.program.compiler import Program, compile_plan

ONE = uniform_mesh(1, {"workers": 1}, (0,))
CPU = backend("cpu")


def compiled(lines: Lines, *survivors: int) -> tuple[Program, Program]:
    """The program, and the same hot."""
    residents = tuple(ResidentPlacement((REPLICATE,)) for _ in lines.inputs)
    plan = Planner(ONE, Policy(ONE, {})).plan(lines.segment(*survivors), residents).plan
    program = compile_plan(plan, ONE, 0, CPU)
    return program, fused(program, on_cpu(ThreadPool(1)))


def same_bits(program: Program, hot: Program, inputs: list[Any]) -> None:
    with np.errstate(all="ignore"):
        cold, now = ran(program, inputs), ran(hot, inputs)
    for _, slot in program.survivors:
        assert np.asarray(cold[slot]).dtype == np.asarray(now[slot]).dtype
        assert np.asarray(cold[slot]).tobytes() == np.asarray(now[slot]).tobytes()
    assert [x is None for x in cold] == [x is None for x in now], "the same slots are empty"
