"""Early answers: the place in a plan from which on a value exists that the client has asked for with the run.

A training step computes its loss, its gradients and an update, and the program fetches the loss. The plan stops for a moment
where that is computed, so that the answer leaves, and goes on: client and worker work at the same time. Which plan it is, and
what it computes, is the same with and without. Nothing is sent here.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from gt.worker.program.compiler import Action, Program

VALUES: Final = (np.ndarray, np.generic)
"""What a slot holds that is no input: anything else is not computed yet, or has no value."""


class AnswerPoint(NamedTuple):
    """Where a program stops: in front of the action `at` of a block, when `slot` holds the value."""

    slot: int
    block: int
    at: int
    actions: list[Action]
    """Those of the block, which are others once the program is optimized."""

    def value(self, slots: list[Any]) -> Any:
        """The value; None if it is not there, as where its instruction has failed."""
        value = slots[self.slot]
        return value if isinstance(value, VALUES) else None


def answer_point(program: Program, output: int) -> AnswerPoint | None:
    """Where the value of an output is there before the program ends. None if no step of it, or several, make it, or the last
    action of a block does."""
    found = program.answers.get(output)
    if found is None or found.actions is not program.actions[found.block]:
        found = program.answers[output] = _answer_point(program, output)
    return found if found.at else None


def _answer_point(program: Program, output: int) -> AnswerPoint:
    nowhere = AnswerPoint(-1, 0, 0, program.actions[0])
    slot = dict(program.survivors).get(output)
    if slot is None or [step.writes for step in chain(*program.blocks)].count(slot) != 1:
        return nowhere
    for block, (steps, actions) in enumerate(zip(program.blocks, program.actions, strict=True)):
        for place, step in enumerate(steps):
            if step.writes == slot:
                at = bisect_right(program.starts[block], place)
                return AnswerPoint(slot, block, at, actions) if at < len(actions) else nowhere
    return nowhere
