"""A better plan for a segment as a whole: choices that cost more at first and save more later.

The planner's first plan takes each instruction's best choice by itself. This module searches the same choices by
dynamic programming along the segment. A *path* is a prefix of the segment with its choices made. Of two paths that
leave all values that are still read in the same states, only the cheaper is kept; of the rest, the cheapest `SEARCH_WIDTH`
are. So the search is exact as long as no more than `SEARCH_WIDTH` different states are open, and makes at most `SEARCH_WIDTH` ×
`MAX_BRANCHES` choices per instruction. It proceeds in small turns, so that the dispatcher can do other things in between.
It keeps the resident placements that the known plan gives to survivors and inputs, and respects the signals. A plan
that saves less than the share `LEAST_GAIN`, or moves more bytes and saves less than `LEAST_GAIN_OF_MORE_BYTES`, is not adopted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from gt.ir.instruction import OUTPUT, SCALAR, Segment, ref

if TYPE_CHECKING:
    from .placement_walk import PlacementWalk
    from .planner import Planned, PlanningPass

SEARCH_WIDTH: Final = 8
"""The most paths that are followed at once."""
LEAST_GAIN: Final = 0.01
"""The share of its time that a better plan must save."""

LEAST_GAIN_OF_MORE_BYTES: Final = 0.1
"""The same for a plan that moves more bytes."""


class _Path(NamedTuple):
    so_far: PlacementWalk
    script: tuple[int, ...]


def better_plan(start: PlanningPass, known: Planned) -> Iterator[Planned | None]:
    """Search a segment from its beginning. Yields None after every turn and at the end a plan better than `known`, if there is
    one."""
    segment = start.segment
    usual, paths = start.copy(), [_Path(start.copy(), ())]
    for index, (instruction, dead) in enumerate(zip(segment.instructions, _last_read(segment), strict=True)):
        usual.take(instruction, usual.decision(index, instruction))
        found: dict[tuple[int, ...], _Path] = {}
        for before, script in paths:
            yield None
            for branch, decision in enumerate(before.branches(index, instruction)):
                if branch and not decision.faithful:
                    continue
                after = before.copy()
                after.take(instruction, decision)
                for r in dead:
                    after.forget_value(r)
                key = tuple(after.states.values())
                if key not in found or after.seconds < found[key].so_far.seconds:
                    found[key] = _Path(after, (*script, branch))
        paths = sorted(found.values(), key=_seconds)[:SEARCH_WIDTH]
    usual.settle_survivors(known.survivors)
    for path in paths:
        yield None
        path.so_far.settle_survivors(known.survivors)
    for path in sorted(paths, key=_seconds):
        if path.so_far.seconds >= (1 - LEAST_GAIN) * usual.seconds:
            break
        if path.so_far.moved > usual.moved and path.so_far.seconds >= (1 - LEAST_GAIN_OF_MORE_BYTES) * usual.seconds:
            continue
        planned = yield from start.restarted(path.script, known.survivors).turns()
        if planned.inputs == known.inputs:
            yield planned
            return
    yield None


def _seconds(path: _Path) -> float:
    return path.so_far.seconds


def _last_read(segment: Segment) -> list[tuple[int, ...]]:
    """For each instruction, the values that nobody reads after it and that end with the segment or already have a
    resident placement."""
    alive = {ref(OUTPUT, number) for number in segment.survivors}
    found = []
    for instruction in reversed(segment.instructions):
        touched = {r for r in instruction.inputs if r & 3 != SCALAR} | {ref(OUTPUT, n) for n in instruction.outputs}
        found.append(tuple(touched - alive))
        alive |= touched
    return found[::-1]
