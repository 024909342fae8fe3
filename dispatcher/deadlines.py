"""Which signals should take longer in a plan than the program hopes: by the account, before the plan runs.

Nothing follows but a word to the program. What the plan is does not depend on it.
"""

from __future__ import annotations

from gt.instruction import Plan
from gt.placement import Mesh

from .account import account
from .cost import Speeds


def late(plan: Plan, mesh: Mesh, speeds: Speeds) -> dict[tuple[str, float], float]:
    """For each signal of a plan, with its deadline, that should take longer: the seconds that it should take, which are those of
    its instructions and moves on the slowest rank."""
    hoped = [tag.hints.deadlines for tag in plan.tags]
    if not any(hoped):
        return {}
    taken: dict[tuple[str, float], float] = {}
    for instruction, seconds in zip(plan.instructions, account(plan, mesh, speeds).steps, strict=True):
        for each in set(hoped[instruction.tag]):
            taken[each] = taken.get(each, 0.0) + seconds
    return {each: seconds for each, seconds in taken.items() if seconds > each[1]}
