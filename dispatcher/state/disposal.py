"""Frees what is not needed any more in turns, where there is much of it: tensor tables, definitions and plans.

Python frees what an object has together with it, some 0.1 to 1.5 µs for each part. So the parts are first held by lists, a turn's
worth each, and these are dropped one after the other. Who else still has such an object can go on reading it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple

from gt.ir.instruction import Segment

from .plan_cache import CachedPlan, PackedPlan, SavedPlan

DISPOSED_PER_TURN: Final = 512
"""How many parts are freed in one turn."""

Worked = Segment | CachedPlan | SavedPlan


class LooseParts(NamedTuple):
    """Parts that were taken from something which stays, as entries from a tensor table."""

    parts: list[Any]


Disposable = Mapping[int, Any] | LooseParts | Sequence[Worked]


def length_of(thing: Worked) -> int:
    """How many instructions it has."""
    if isinstance(thing, Segment):
        return len(thing.instructions)
    return 0 if isinstance(thing.planned, PackedPlan) else len(thing.planned.plan.instructions)


def freed_in_turns(things: list[Disposable]) -> Iterator[None]:
    """Frees tensor tables, parts of them, and lists of definitions and plans, in turns, until none is left."""
    held: list[list[Any]] = []
    while things:
        yield from _take_apart(things.pop(), held)
        yield
        while held:
            held.pop()
            yield


def _take_apart(thing: Disposable, held: list[list[Any]]) -> Iterator[None]:
    """Holds the parts of something in lists, in turns."""
    if isinstance(thing, Mapping):
        yield from _hold(held, thing)
        yield from _hold(held, thing.values())
        return
    if isinstance(thing, LooseParts):
        yield from _hold(held, thing.parts)
        return
    for each in thing:
        for parts in _parts(each):
            yield from _hold(held, parts)


def _hold(held: list[list[Any]], parts: Iterable[Any]) -> Iterator[None]:
    """Holds some parts, as many in one turn as are freed in one; few of them with those before."""
    parts = iter(parts)
    while True:
        room = DISPOSED_PER_TURN - len(held[-1]) if held else 0
        if room <= 0:
            held.append([])
            room = DISPOSED_PER_TURN
            yield
        before = len(held[-1])
        held[-1] += islice(parts, room)
        if len(held[-1]) < before + room:
            return


def _parts(thing: Worked) -> Iterator[Iterable[Any]]:
    """What a definition or a plan has many of."""
    if isinstance(thing, Segment):
        yield from (thing.instructions, thing.values, thing.inputs, thing.tags)
        return
    if isinstance(thing, CachedPlan):
        yield from (thing.changes.made, thing.changes.offsets, thing.changes.viewed)
        yield from map(attrgetter("views"), thing.changes.viewed)
        for each in thing.parts:
            plan = each.part.plan
            yield from (plan.instructions, plan.values, plan.layouts, plan.survivors, plan.inputs, plan.tags)
    for planned in (thing.planned, thing.better):
        if planned is not None and not isinstance(planned, PackedPlan):
            plan = planned.plan
            yield from (plan.instructions, plan.values, plan.layouts, plan.survivors, plan.inputs, plan.tags)
            yield from (planned.survivors, planned.inputs)
