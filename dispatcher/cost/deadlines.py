"""Finds the signals whose deadlines a plan is expected to miss, according to its estimate.

The program is only warned; the plan does not depend on it.
"""

from __future__ import annotations

from collections.abc import Generator

from gt.ir.instruction import Plan
from gt.sharding.placement import Mesh
from gt.turns import INSTRUCTIONS_PER_TURN

from .cost_model import Speeds
from .plan_estimate import step_seconds


def missed_deadlines(plan: Plan, mesh: Mesh, speeds: Speeds) -> Generator[None, None, dict[tuple[str, float], float]]:
    """For each signal of a plan (with its deadline) that is expected to take longer: the expected seconds, those of its
    instructions and moves on the slowest rank. Worked out in turns."""
    hoped = [tag.hints.deadlines for tag in plan.tags]
    if not any(hoped):
        return {}
    steps = yield from step_seconds(plan, mesh, speeds)
    taken: dict[tuple[str, float], float] = {}
    for at, (instruction, seconds) in enumerate(zip(plan.instructions, steps, strict=True)):
        if at and not at % INSTRUCTIONS_PER_TURN:
            yield
        for each in set(hoped[instruction.tag]):
            taken[each] = taken.get(each, 0.0) + seconds
    return {each: seconds for each, seconds in taken.items() if seconds > each[1]}
