"""What a session holds beside a run, and whether a plan fits into memory beside it; counted in turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from itertools import islice
from typing import Final

from gt.dispatcher.cost.peak_memory import Lot, shortage
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.records import ClientRecord
from gt.ir.instruction import Plan
from gt.ir.spec import Spec
from gt.sharding.placement import Layout
from gt.turns import ITEMS_PER_TURN, emptied
from gt.wire import messages as m

ENTRIES_PER_TURN: Final = 4096
"""How many tensors of a session are counted in one turn."""


def shortage_beside(client: ClientRecord, planner: Planner, plan: Plan, run: m.Run) -> Generator[None, None, str]:
    """Why a plan does not fit beside everything else that its client holds; empty if it fits. Worked out in turns."""
    held, lot = yield from held_beside(client, run)
    found = yield from shortage(plan, planner.mesh, planner.known_speeds, held, lot, planner.policy.rule_of)
    yield from emptied(held)
    return found


def _memory(number: int, entry: Entry) -> tuple[int, tuple[Spec, Layout]]:
    """Which memory a tensor takes, its own or one that it shares with others, and how much."""
    if entry.root is None:
        return number, (entry.spec, entry.resident.layout)
    return ~id(entry.root), (entry.root.spec, entry.root.layout)


def _counted(table: Mapping[int, Entry], freed: set[int]) -> Generator[None, None, Counter[Entry]]:
    """The entries of a table without those of some tensors, and how often it has each. Counted in turns, in which
    nobody changes the table: the run that needs it waits."""
    counts: Counter[Entry] = Counter()
    entries, gone = iter(table.values()), [*freed]
    for at in range(0, len(table), ENTRIES_PER_TURN):
        if at:
            yield
        counts.update(islice(entries, ENTRIES_PER_TURN))
    for at in range(0, len(gone), ENTRIES_PER_TURN):
        yield
        counts.subtract(filter(None, map(table.get, gone[at : at + ENTRIES_PER_TURN])))
    return counts


def held_beside(client: ClientRecord, run: m.Run) -> Generator[None, None, tuple[Counter[tuple[Spec, Layout]], Lot]]:
    """What a client holds besides the inputs of a run, and what becomes of those inputs. Counted in turns, and what is counted
    with is freed in turns.

    Entries are interned, so there are mostly few of them however many tensors there are: those are counted, not looked at one by
    one.
    """
    table, freed = client.table, {*run.freed}
    dying = {run.inputs[position] for position in run.dying} - freed
    counts = yield from _counted(table, freed)
    ending = Counter(map(table.__getitem__, dying))
    held: Counter[tuple[Spec, Layout]] = Counter()
    shared: dict[int, tuple[Spec, Layout]] = {}
    users: Counter[int] = Counter()
    for at, (entry, count) in enumerate(counts.items(), 1):
        if not at % ITEMS_PER_TURN:
            yield
        if not count or entry.fault is not None:
            continue
        key, memory = _memory(0, entry)
        if entry.root is None:
            held[memory] += count
        else:
            shared[key] = memory
            users[key] += count - ending[entry]
    own: dict[int, int] = {}
    for position, number in enumerate(run.inputs):
        if not (position + 1) % ITEMS_PER_TURN:
            yield
        entry = table[number]
        key, memory = _memory(number, entry)
        if memory != (entry.spec, entry.resident.layout) or key in own:
            continue
        own[key] = position
        if entry.root is not None:
            shared.pop(key, None)
        elif number not in freed and entry.fault is None:
            held[memory] -= 1
            if held[memory] <= 0:
                del held[memory]
            users[key] = number not in dying
    while shared:
        for _ in range(min(len(shared), ITEMS_PER_TURN)):
            held[shared.popitem()[1]] += 1
        yield
    lot = Lot(
        frozenset(position for key, position in own.items() if not users[key]),
        frozenset(range(len(run.inputs))) - {*own.values()},
    )
    yield from emptied(users)
    yield from emptied(counts)
    return held, lot
