"""Finds the signals whose deadlines a plan is expected to miss, according to its estimate.

The program is only warned; the plan does not depend on it.
"""

from __future__ import annotations

from gt.ir.instruction import Plan
from gt.sharding.placement import Mesh

from .cost_model import Speeds
from .plan_estimate import estimate_plan


def missed_deadlines(plan: Plan, mesh: Mesh, speeds: Speeds) -> dict[tuple[str, float], float]:
    """For each signal of a plan (with its deadline) that is expected to take longer: the expected seconds, those of its
    instructions and moves on the slowest rank."""
    hoped = [tag.hints.deadlines for tag in plan.tags]
    if not any(hoped):
        return {}
    taken: dict[tuple[str, float], float] = {}
    for instruction, seconds in zip(plan.instructions, estimate_plan(plan, mesh, speeds).steps, strict=True):
        for each in set(hoped[instruction.tag]):
            taken[each] = taken.get(each, 0.0) + seconds
    return {each: seconds for each, seconds in taken.items() if seconds > each[1]}
