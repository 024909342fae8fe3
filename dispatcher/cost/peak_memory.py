"""The memory that a plan takes: exactly, worker by worker, or as an upper bound, in time that does not depend on their number.

A plan that cannot fit is refused before it starts. A value lives from the instruction that computes it to its last reader;
survivors live to the end; inputs live from the beginning to the end, or to their last reader if they die with the run. A view
takes no memory but keeps alive what it looks at, within a plan and between plans. Temporary memory of kernels is not counted.
"""

from __future__ import annotations

import itertools
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from gt.ir.instruction import INPUT, MOVE, OUTPUT, SCALAR, Instruction, Plan, Tag, ref
from gt.ir.microbatch_schedule import Item, order, repeats, waves
from gt.ir.spec import Spec, spec
from gt.sharding.partition import bounds, box, extent, present
from gt.sharding.placement import Layout, Mesh, Partial, Replicate, Shard
from gt.turns import INSTRUCTIONS_PER_TURN, ITEMS_PER_TURN, finish

from .cost_model import VIEW_OPS, Speeds

_NBYTES: Final = attrgetter("nbytes")

Sizes = np.ndarray[Any, Any]
"""Bytes, with a row for each rank and a column for each microbatch."""
N = TypeVar("N", int, Sizes)

Held = Mapping[tuple[Spec, Layout], int]
"""The number of tensors of each kind."""


class Lot(NamedTuple):
    """What becomes of a run's inputs, by position."""

    dying: frozenset[int] = frozenset()
    """The inputs whose memory is free after their last reader."""
    lent: frozenset[int] = frozenset()
    """The inputs that take no memory because they look at memory that is counted elsewhere."""


USUAL_LOT: Final = Lot()


@lru_cache(maxsize=4096)
def parts_of(value: Spec, layout: Layout, mesh: Mesh) -> tuple[Spec | None, ...]:
    """What every rank holds of a value."""
    boxes = (box(value.shape, layout, mesh, rank) for rank in range(len(mesh.members)))
    return tuple(None if part is None else spec(value.dtype, extent(part)) for part in boxes)


@lru_cache(maxsize=4096)
def local_bytes(value: Spec, layout: Layout, mesh: Mesh) -> Sizes:
    """For each rank, the bytes of its part. The array is read-only."""
    sizes = np.array([0 if part is None else part.nbytes for part in parts_of(value, layout, mesh)], np.int64)
    sizes.flags.writeable = False
    return sizes


@lru_cache(maxsize=4096)
def largest_part(value: Spec, layout: Layout, mesh: Mesh) -> int:
    """An upper bound of the bytes that any rank holds; exact if no dimension is cut twice."""
    shape = list(value.shape)
    for axis, placement in enumerate(layout):
        if isinstance(placement, Shard):
            weights = mesh.weights[axis] if placement.weights is None else placement.weights
            cuts = bounds(shape[placement.dim], weights)
            shape[placement.dim] = max(b - a for a, b in itertools.pairwise(cuts))
    return spec(value.dtype, tuple(shape)).nbytes


def shortage(
    plan: Plan, mesh: Mesh, speeds: Speeds, held: Held, lot: Lot, rule_of: Callable[[Tag], str]
) -> Generator[None, None, str]:
    """Why a plan cannot run when so much else is held; empty if it can, as far as is known. Worked out in turns.

    `rule_of` says where the rule for a tag is written.
    """
    capacity = min(device.capacity or sys.maxsize for device in speeds.devices)
    whole = yield from _summed(held, lambda value, _: value.nbytes, 0)
    if whole + (sum(map(_NBYTES, plan.inputs)) + sum(map(_NBYTES, plan.values))) * _times(plan) <= capacity:
        return ""  # however it is cut
    largest_held = yield from _summed(held, lambda value, at: largest_part(value, at, mesh), 0)
    if largest_held + (yield from peak_at_most_in_turns(plan, mesh, lot)) <= capacity:
        return ""
    nothing = np.zeros(len(mesh.members), np.int64)
    here = yield from _summed(held, lambda value, at: local_bytes(value, at, mesh), nothing)
    total = here + (yield from peak_by_rank_in_turns(plan, mesh, lot))
    over = [total[rank] - (device.capacity or sys.maxsize) for rank, device in enumerate(speeds.devices)]
    rank = int(np.argmax(over))
    pool = [at for at, device in enumerate(speeds.devices) if device.pool == speeds.devices[rank].pool >= 0]
    if over[rank] <= 0 or (pool and sum(over[at] for at in pool) <= 0):
        return ""  # what others of a host leave of its memory, this one may have
    most = max(range(len(plan.values)), key=[*map(_NBYTES, plan.values)].__getitem__)
    largest = plan.instructions[bisect_right(plan.instructions, most, key=lambda i: i.outputs.start) - 1]
    tag, value = plan.tags[largest.tag], max((plan.values[n] for n in largest.outputs), key=lambda x: x.nbytes)
    signal, rule = "/".join(tag.signal), rule_of(tag)
    return (
        f"worker {mesh.members[rank]} would hold {total[rank]:,} bytes of {speeds.devices[rank].capacity:,}; "
        f"the largest result is {value} of {largest.op} in {f'signal {signal}' if signal else 'no signal'} ({tag.site}), "
        f"{f'with the rule at {rule}' if rule else 'for which there is no rule'}; "
        "use more workers, or a rule that cuts what it holds"
    )


def _summed(held: Held, nbytes: Callable[[Spec, Layout], N], total: N) -> Generator[None, None, N]:
    """The bytes of all that is held and this `total`, added up in turns."""
    for at, ((value, layout), count) in enumerate(held.items(), 1):
        if not at % ITEMS_PER_TURN:
            yield
        total = total + count * nbytes(value, layout)
    return total


def inputs_by_rank(plan: Plan, mesh: Mesh, lot: Lot = USUAL_LOT) -> Sizes:
    """For each rank, the bytes of its parts of the inputs."""
    space = len(mesh.sizes)
    found = np.zeros(len(mesh.members), np.int64)
    for (value, layout), count in _own_inputs(plan, lot).items():
        found += count * local_bytes(value, layout[:space], mesh)
    return found


def _own_inputs(plan: Plan, lot: Lot) -> Counter[tuple[Spec, Layout]]:
    """How many inputs of each kind take memory of their own."""
    own = Counter(zip(plan.inputs, plan.input_layouts, strict=True))
    own.subtract((plan.inputs[index], plan.input_layouts[index]) for index in lot.lent)
    return own


def peak_by_rank(plan: Plan, mesh: Mesh, lot: Lot = USUAL_LOT) -> Sizes:
    """For each rank, the most bytes that it holds at once while it runs the plan, inputs included."""
    return finish(peak_by_rank_in_turns(plan, mesh, lot))


def peak_by_rank_in_turns(plan: Plan, mesh: Mesh, lot: Lot = USUAL_LOT) -> Generator[None, None, Sizes]:
    """The same, a little at each turn."""
    times, ranks = _times(plan), len(mesh.members)
    timed = mesh.timed(times)
    places = [mesh.coordinates(rank) for rank in range(ranks)]
    alike: dict[int, list[int]] = {}  # ranks of one stage do the same in the same order: without a pipeline all
    for rank, here in enumerate(places):
        alike.setdefault(here[plan.pipeline.axis] if plan.pipeline else 0, []).append(rank)
    inputs, peak = inputs_by_rank(plan, mesh, lot), np.empty(ranks, np.int64)
    known = yield from waves(plan)
    for some in alike.values():

        def sizes(r: int, some: list[int] = some) -> Sizes:
            operand = plan.operand(r)
            assert isinstance(operand, Spec), "a scalar takes no memory"
            return local_bytes(operand, plan.layout(r), timed).reshape(ranks, times)[some]

        peak[some] = yield from _most_held(plan, order(plan, places[some[0]], known), sizes, inputs[some], lot.dying)
    return peak


def peak_at_most(plan: Plan, mesh: Mesh, lot: Lot = USUAL_LOT) -> int:
    """An upper bound of the bytes that any rank holds at once while it runs the plan, inputs included."""
    return finish(peak_at_most_in_turns(plan, mesh, lot))


def peak_at_most_in_turns(plan: Plan, mesh: Mesh, lot: Lot = USUAL_LOT) -> Generator[None, None, int]:
    """The same, a little at each turn."""
    times = _times(plan)
    timed = mesh.timed(times)
    stages = range(mesh.sizes[plan.pipeline.axis]) if plan.pipeline else range(1)
    found, known = 0, (yield from waves(plan))
    for stage in stages:
        here = tuple(stage if plan.pipeline and axis == plan.pipeline.axis else 0 for axis in range(len(mesh.sizes)))

        def size(operand: Spec, layout: Layout, here: tuple[int, ...] = here) -> int:
            along = layout[plan.pipeline.axis : plan.pipeline.axis + 1] if plan.pipeline else ()
            some = present(along, here[plan.pipeline.axis : plan.pipeline.axis + 1]) if plan.pipeline else True
            return largest_part(operand, layout, timed) if some else 0

        def sizes(r: int, size: Callable[[Spec, Layout], int] = size) -> Sizes:
            operand = plan.operand(r)
            assert isinstance(operand, Spec), "a scalar takes no memory"
            return np.full((1, times), size(operand, plan.layout(r)), np.int64)

        inputs = np.array([sum(n * size(*each) for each, n in _own_inputs(plan, lot).items())], np.int64)
        most = yield from _most_held(plan, order(plan, here, known), sizes, inputs, lot.dying)
        found = max(found, int(most[0]))
    return found


def _most_held(
    plan: Plan, items: Iterable[Item], sizes: Callable[[int], Sizes], inputs: Sizes, mortal: frozenset[int]
) -> Generator[None, None, Sizes]:
    """The most bytes held at once by each of some ranks that all execute `items`, starting with `inputs`, of which those at
    the positions in `mortal` are freed after their last reader."""
    root: dict[Item, Item] = {}
    """What each view looks at, by reference and microbatch."""

    def place(r: int, time: int) -> Item:
        item = (r, time if repeated(plan, r) else 0)
        return root.get(item, item)

    last: dict[Item, int] = {}
    held: list[list[Item]] = []
    for at, (position, time) in enumerate(items):
        if at and not at % INSTRUCTIONS_PER_TURN:
            yield
        instruction = plan.instructions[position]
        made = ref(OUTPUT, instruction.outputs[0])
        change = in_time(plan, instruction)
        for r in instruction.inputs:
            if r & 3 != SCALAR:
                times = range(_times(plan)) if change == "join" else (time,)
                last.update({place(r, each): at for each in times})
        if change == "join":
            yield
        fresh = []
        if instruction.op in VIEW_OPS or change == "cut":
            root[made, time if repeated(plan, made) else 0] = place(instruction.inputs[0], time)
        else:
            outputs = [place(ref(OUTPUT, n), time) for n in instruction.outputs]
            fresh = [item for item in outputs if item not in last]  # a sum over microbatches is made with the first
            last.update(dict.fromkeys(outputs, at))
        held.append(fresh)
    kept = {place(ref(OUTPUT, n), 0) for _, n in (*plan.survivors, *plan.relocated)}
    dying: dict[int, list[Item]] = {}
    for count, (item, at) in enumerate(last.items()):
        if count and not count % ITEMS_PER_TURN:
            yield
        if item not in kept and (item[0] & 3 != INPUT or item[0] >> 2 in mortal):
            dying.setdefault(at, []).append(item)
    return (yield from _peak(held, dying, sizes, inputs))


def _peak(
    held: list[list[Item]], dying: Mapping[int, list[Item]], sizes: Callable[[int], Sizes], inputs: Sizes
) -> Generator[None, None, Sizes]:
    """The most bytes held at once, where at each step some values are made and then some die."""
    live, peak = inputs.copy(), inputs.copy()
    for at, fresh in enumerate(held):
        if at and not at % INSTRUCTIONS_PER_TURN:
            yield
        for r, time in fresh:
            live += sizes(r)[:, time]
        np.maximum(peak, live, out=peak)
        for r, time in dying.get(at, ()):
            live -= sizes(r)[:, time]
    return peak


def looks_at(plan: Plan) -> Generator[None, None, dict[int, int]]:
    """For each survivor that is a view, by position: the plan's reference to the value whose memory it looks at. Found in turns.

    Workers copy a survivor that is less than half of that value, so that it has memory of its own.
    """
    root: dict[int, int] = {}
    ops = map(attrgetter("op"), plan.instructions)
    views = itertools.compress(plan.instructions, map(VIEW_OPS.__contains__, ops))
    for count, instruction in enumerate(views, 1):
        if not count % ITEMS_PER_TURN:
            yield
        (first, *_) = instruction.inputs
        root[ref(OUTPUT, instruction.outputs[0])] = root.get(first, first)
    found = {}
    for position, (_, index) in enumerate(plan.survivors if root else ()):
        if position and not position % ITEMS_PER_TURN:
            yield
        at = root.get(ref(OUTPUT, index))
        if at is not None:
            whole = plan.operand(at)
            assert isinstance(whole, Spec), "a view looks at a tensor"
            if whole.nbytes <= 2 * plan.values[index].nbytes:
                found[position] = at
    return found


def _times(plan: Plan) -> int:
    return plan.pipeline.microbatches if plan.pipeline else 1


def repeated(plan: Plan, r: int) -> bool:
    """Whether a tensor of a plan exists once for each microbatch."""
    return _times(plan) > 1 and repeats(plan.layout(r))


def in_time(plan: Plan, instruction: Instruction) -> str:
    """Whether a move is between microbatches: '' (it is not), 'cut', 'join', or 'sum', which adds them up one by one."""
    if instruction.op != MOVE or _times(plan) == 1:
        return ""
    before, after = plan.layout(instruction.inputs[0])[-1], plan.layouts[instruction.outputs[0]][-1]
    if before == after:
        return ""
    return "cut" if isinstance(before, Replicate) else "sum" if isinstance(before, Partial) else "join"
