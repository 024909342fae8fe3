"""What a client holds beside a run: counted by entry, it is what one finds by looking at each tensor."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.session_plans.held_memory import held_beside
from gt.dispatcher.state.plan_cache import Entry, SharedStorage
from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.sharding.placement import REPLICATE
from gt.turns import finish
from gt.wire import messages as m

RESIDENT = ResidentPlacement((REPLICATE,))
SPECS = (spec(float32, (4,)), spec(float32, (2,)))
ROOTS = (SharedStorage(SPECS[0], RESIDENT.layout), SharedStorage(SPECS[1], RESIDENT.layout))
ENTRIES = (
    *(Entry(each, 1, RESIDENT) for each in SPECS),
    *(Entry(each, 1, RESIDENT, root=root) for each in SPECS for root in ROOTS),
    Entry(SPECS[0], 1, RESIDENT, ("WorkerLost", "gone")),
)


@given(st.lists(st.sampled_from(ENTRIES), min_size=1, max_size=8), st.data())
@settings(max_examples=cases(300), deadline=None)
def test_it_is_the_memory_of_each_tensor_that_is_no_input(entries: list[Entry], data: st.DataObject) -> None:
    """Memory that tensors share counts once; an input may be written to when nobody looks at its memory any more."""
    table = dict(enumerate(entries))
    ids = st.lists(st.sampled_from(sorted(table)), max_size=4)
    inputs, freed = data.draw(ids), [*data.draw(ids), 99]
    dying = sorted({at for at in range(len(inputs)) if data.draw(st.booleans())})
    turns = held_beside(SimpleNamespace(table=table), m.Run(1, 100, inputs, [], dying, freed))  # type: ignore[arg-type]
    held, lot = finish(turns)

    def memory(number: int) -> tuple[Any, Any]:
        entry = table[number]
        owner = entry.root or entry
        return (entry.root or number), (owner.spec, owner.layout if entry.root else entry.resident.layout)

    left = [number for number, entry in table.items() if number not in freed and entry.fault is None]
    own: dict[Any, int] = {}
    for at, number in enumerate(inputs):
        place, size = memory(number)
        if size == (table[number].spec, table[number].resident.layout):
            own.setdefault(place, at)
    places = dict(map(memory, left))
    assert held == Counter(size for place, size in places.items() if place not in own)
    stay = {memory(number)[0] for number in left if number not in {inputs[at] for at in dying}}
    assert lot[0] == {at for place, at in own.items() if place not in stay}
    assert lot[1] == set(range(len(inputs))) - {*own.values()}
