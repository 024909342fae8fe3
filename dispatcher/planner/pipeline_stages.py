"""The stage of a pipeline to which each instruction belongs, where a rule spreads a stretch of a program over stages.

Parameters that already live on a stage decide it for their readers. The first time there are none: then the units of the
stretch (its nested signals, or else its parameters) are dealt out contiguously, in the order of the program, so that the stage
with the most parameters has as few as possible. Pure functions of a segment; no layouts are chosen here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gt.ir.instruction import OUTPUT, Segment, ref
from gt.sharding.placement import At
from gt.turns import ITEMS_PER_TURN, NAMES_PER_TURN

from .choice_key import ValueState
from .policy import Policy, RequestedPlacement

ENDS_PER_TURN: Final = 8
"""For how many beginnings of a program the best last cut is looked for in one turn; with 16,384 units each takes 0.1 ms."""
Sizes = np.ndarray[Any, Any]


def stages_of(
    segment: Segment, policy: Policy, inputs: Mapping[int, ValueState]
) -> Generator[None, None, list[int | None]]:
    """For each instruction, the position of its stage on the pipeline's axis; None where no rule puts it on one. Found in turns.

    Where signals tell stages apart, a backward instruction is on the stage of the signal whose gradient it computes.
    """
    places, names = [], 0
    for tag in segment.tags:
        names += 1 + len(tag.signal)
        if names > NAMES_PER_TURN:
            names = 0
            yield
        places.append(_piped(policy, tag.signal))
    rule = next((place for place in places if place is not None), None)
    if rule is None or not rule[0].stages:
        return [None] * len(segment.instructions)
    axis, stages = rule[1], rule[0].stages
    heads = {tag.signal[: place[2]] for tag, place in zip(segment.tags, places, strict=True) if place is not None}
    made = [i.outputs[0] for i in segment.instructions if i.op == "tag" and i.attributes["param"]]
    parameters = {r for r, state in inputs.items() if state.owner is not None and state.spec.ndim}
    parameters |= {ref(OUTPUT, number) for number in made}
    units: dict[Hashable, int] = {}
    fixed: dict[Hashable, int] = {}
    reads: list[Hashable] = []
    counted: set[int] = set()
    now: Hashable = "first"
    for instruction in segment.instructions:
        if reads and not len(reads) % ITEMS_PER_TURN:
            yield
        tag, place = segment.tags[instruction.tag], places[instruction.tag]
        own = [r for r in instruction.inputs if r in parameters]
        unit: Hashable = None
        if place is not None and instruction.op != "tag":
            by_signal = tag.signal[: place[2] + (len(heads) == 1)]
            if len(heads) > 1 or len(tag.signal) > place[2]:
                unit = by_signal
            elif tag.phase == "forward":
                now = unit = next((r for r in own if _ndim(segment, r) >= 2), now)
        reads.append(unit)
        if unit is None or (tag.phase != "forward" and unit not in units and not own):
            continue
        units.setdefault(unit, 0)
        for r in own:
            placement = inputs[r].at[axis] if r in inputs else None
            if isinstance(placement, At) and placement.position in stages:
                fixed.setdefault(unit, stages.index(placement.position))
            if r not in counted:
                counted.add(r)
                units[unit] += _size(segment, r)
    stage = yield from _dealt(units, fixed, len(stages))
    return [stages[stage[unit]] if unit in stage else None for unit in reads]


def _piped(policy: Policy, signal: tuple[str, ...]) -> tuple[RequestedPlacement, int, int] | None:
    """The pipeline rule that applies to a signal, its mesh axis, and how many names of the path it takes to match."""
    for length in range(1, len(signal) + 1):
        for axis, request in enumerate(policy.requests(signal[:length])):
            if request is not None and request.strategy == "pipeline_parallel":
                return request, axis, length
    return None


def _dealt(
    units: Mapping[Hashable, int], fixed: Mapping[Hashable, int], stages: int
) -> Generator[None, None, dict[Hashable, int]]:
    """A stage for each unit: that of its parameters; else that of the unit before; else dealt out evenly."""
    found: dict[Hashable, int] = {}
    if not fixed:
        cuts = yield from balanced([*units.values()], stages)
        for index, unit in enumerate(units):
            if index and not index % ITEMS_PER_TURN:
                yield
            found[unit] = bisect_right(cuts, index)
        return found
    now = 0
    for unit in units:
        now = found[unit] = fixed.get(unit, now)
    return found


def balanced(sizes: Sequence[int], stages: int) -> Generator[None, None, list[int]]:
    """Where to cut `sizes` into `stages` contiguous parts so that the largest sum is as small as possible. Found in turns.

    Among equally good cuts, the parts have as equal a number of units as possible.
    """
    count = len(sizes)
    sums = np.concatenate([[0], np.cumsum(np.array(sizes, np.int64), dtype=np.int64)])
    places = np.arange(count + 1)
    # of the first `end` units in some stretches: the largest sum and the largest number of units, and of all but the first
    # number of stretches, the last cut
    largest, longest = sums, places
    last_cuts: list[Sizes] = []
    for _ in range(1, stages):
        found = np.zeros((3, count + 1), np.int64)
        for end in range(count + 1):
            if not end % ENDS_PER_TURN:
                yield
            by_sum = np.maximum(largest[: end + 1], sums[end] - sums[: end + 1])
            best = np.flatnonzero(by_sum == by_sum.min())
            by_length = np.maximum(longest[best], end - best)
            at = int(by_length.argmin())  # the first of the shortest
            found[:, end] = by_sum[best[at]], by_length[at], best[at]
        largest, longest, cuts = found
        last_cuts.append(cuts)
    found_cuts: list[int] = []
    end = count
    for cuts in reversed(last_cuts):
        end = int(cuts[end])
        found_cuts.append(end)
    return found_cuts[::-1]


def _ndim(segment: Segment, reference: int) -> int:
    operand = segment.operand(reference)
    return 0 if isinstance(operand, str) else operand.ndim


def _size(segment: Segment, reference: int) -> int:
    operand = segment.operand(reference)
    return 0 if isinstance(operand, str) else operand.size
