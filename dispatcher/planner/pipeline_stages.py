"""The stage of a pipeline to which each instruction belongs, where a rule spreads a stretch of a program over stages.

Parameters that already live on a stage decide it for their readers. The first time there are none: then the units of the
stretch (its nested signals, or else its parameters) are dealt out contiguously, in the order of the program, so that the stage
with the most parameters has as few as possible. Pure functions of a segment; no layouts are chosen here.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from gt.ir.instruction import OUTPUT, Segment, ref
from gt.sharding.placement import At

from .choice_key import ValueState
from .policy import Policy, RequestedPlacement


def stages_of(segment: Segment, policy: Policy, inputs: Mapping[int, ValueState]) -> list[int | None]:
    """For each instruction, the position of its stage on the pipeline's axis; None where no rule puts it on one.

    Where signals tell stages apart, a backward instruction is on the stage of the signal whose gradient it computes.
    """
    places = [_piped(policy, tag.signal) for tag in segment.tags]
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
    stage = _dealt(units, fixed, len(stages))
    return [stages[stage[unit]] if unit in stage else None for unit in reads]


def _piped(policy: Policy, signal: tuple[str, ...]) -> tuple[RequestedPlacement, int, int] | None:
    """The pipeline rule that applies to a signal, its mesh axis, and how many names of the path it takes to match."""
    for length in range(1, len(signal) + 1):
        for axis, request in enumerate(policy.requests(signal[:length])):
            if request is not None and request.strategy == "pipeline_parallel":
                return request, axis, length
    return None


def _dealt(units: Mapping[Hashable, int], fixed: Mapping[Hashable, int], stages: int) -> dict[Hashable, int]:
    """A stage for each unit: that of its parameters; else that of the unit before; else dealt out evenly."""
    if not fixed:
        bounds = _balanced(list(units.values()), stages)
        return {unit: sum(index >= bound for bound in bounds) for index, unit in enumerate(units)}
    found: dict[Hashable, int] = {}
    now = 0
    for unit in units:
        now = found[unit] = fixed.get(unit, now)
    return found


def _balanced(sizes: Sequence[int], stages: int) -> list[int]:
    """Where to cut `sizes` into `stages` contiguous parts so that the largest sum is as small as possible.

    Among equally good cuts, the parts have as equal a number of units as possible.
    """
    count = len(sizes)
    sums = [0]
    for size in sizes:
        sums.append(sums[-1] + size)
    # best[k][end]: (largest sum, largest number of units) of the first `end` units in k + 1 stretches, and the last cut
    best = [[((sums[end], end), 0) for end in range(count + 1)]]
    for _ in range(1, stages):
        before = best[-1]
        best.append(
            [
                min(
                    ((max(before[cut][0][0], sums[end] - sums[cut]), max(before[cut][0][1], end - cut)), cut)
                    for cut in range(end + 1)
                )
                for end in range(count + 1)
            ]
        )
    cuts: list[int] = []
    end = count
    for table in reversed(best[1:]):
        end = table[end][1]
        cuts.append(end)
    return cuts[::-1]


def _ndim(segment: Segment, reference: int) -> int:
    operand = segment.operand(reference)
    return 0 if isinstance(operand, str) else operand.ndim


def _size(segment: Segment, reference: int) -> int:
    operand = segment.operand(reference)
    return 0 if isinstance(operand, str) else operand.size
