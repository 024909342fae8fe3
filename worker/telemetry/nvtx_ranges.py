"""NVTX ranges for profilers: while a worker launches work, the range names the signal and op that it does so for.

Only with GT_NVTX=1, since ranges take time, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from gt.worker.program.compiler import Action, Program, ProgramStep, Slots


class NvtxRange(NamedTuple):
    """The functions that begin a range, with its name, and end it."""

    push: Callable[[str], object]
    pop: Callable[[], object]


def with_ranges(program: Program, marks: NvtxRange) -> Program:
    """The same program, each of whose actions has a range."""
    blocks, actions = [], []
    for block, acts, starts in zip(program.blocks, program.actions, program.starts, strict=True):
        steps = list(block)
        wrapped = []
        for at, (action, start) in enumerate(zip(acts, starts, strict=True)):
            stop = starts[at + 1] if at + 1 < len(starts) else len(steps)
            wrapped.append(_within(action, _name(program, steps[start:stop]), marks))
            if steps[start].action is action:
                steps[start] = replace(steps[start], action=wrapped[-1])
        blocks.append(steps)
        actions.append(wrapped)
    return replace(program, blocks=blocks, actions=actions)


def _name(program: Program, steps: Sequence[ProgramStep]) -> str:
    """'mlp/hidden: matmul', or of a chain 'mlp/hidden: sub…mul (5)'."""
    signal = "/".join(program.plan.tags[steps[-1].instruction.tag].signal)
    ops = [step.instruction.op for step in steps]
    what = ops[0] if len(ops) == 1 else f"{ops[0]}…{ops[-1]} ({len(ops)})"
    return f"{signal}: {what}" if signal else what


def _within(action: Action, name: str, marks: NvtxRange) -> Action:
    push, pop = marks

    def ranged(slots: Slots) -> None:
        push(name)
        try:
            action(slots)
        finally:
            pop()

    return ranged
