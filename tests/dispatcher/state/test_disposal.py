"""What is not needed any more is freed in turns, each of which frees a bounded number of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from builders import chain
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from marking_dispatcher import service, settled_mark
from one_dispatcher import RULES, started

from gt.dispatcher.jobs.job_scheduler import SERVICE
from gt.dispatcher.state.disposal import DISPOSED_PER_TURN, freed_in_turns
from gt.dispatcher.state.events import JobTurn, Lost, Received
from gt.dispatcher.state.shared_state import MAX_FREED_AT_ONCE
from gt.dispatcher.upkeep import DISPOSAL
from gt.ir.instruction import Segment
from gt.wire import messages as m

freed: list[int] = []
"""The parts that were freed since the last look."""


class Part:
    """A part that says when it is freed."""

    def __del__(self) -> None:
        freed.append(1)


def parts(count: int) -> tuple[Any, ...]:
    return tuple(Part() for _ in range(count))


@settings(max_examples=cases(60))
@given(
    st.lists(
        st.one_of(st.integers(0, 9000), st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3000)), max_size=4)),
        max_size=4,
    )
)
def test_a_turn_frees_a_bounded_number_of_parts_and_the_last_one_all(drawn: list[Any]) -> None:
    """Of tables and of definitions, large and small."""
    things: list[Mapping[int, Any] | Sequence[Any]] = []
    count = 0
    for each in drawn:
        if isinstance(each, int):
            things.append(dict(enumerate(parts(each))))
            count += each
        else:
            things.append([Segment((), "", (), parts(first), parts(second), ()) for first, second in each])
            count += sum(map(sum, each))
    freed.clear()
    left = count
    for _ in freed_in_turns(things):
        assert len(freed) <= DISPOSED_PER_TURN
        left -= len(freed)
        freed.clear()
    assert left - len(freed) == 0
    assert not things


@pytest.mark.parametrize("how", ["drop", "leave", "mark"])
def test_definitions_and_plans_are_freed_in_turns(how: str) -> None:
    """When they are dropped, when their session leaves, and when the last mark that has them is dropped."""
    each = service(2, config=RULES) if how == "mark" else started()
    each.define(2, chain(2 * MAX_FREED_AT_ONCE))
    each.run(2, 50, [1])
    each.done()
    if how == "mark":
        settled_mark(each)
        each.say("c", m.Drop(2))
    each.idle = False
    jobs = each.core.plan_selection.jobs
    assert not jobs.has(SERVICE, DISPOSAL)
    if how == "leave":
        each.event(Lost(b"c", "gone"))
    elif how == "drop":
        each.event(Received(b"c", m.Drop(2)))
    else:
        each.event(Lost(b"c", "gone"))
    assert jobs.has(SERVICE, DISPOSAL)
    while each.core.busy:
        each.event(JobTurn())
    assert not each.core.service.disposed


def test_a_small_definition_is_freed_at_once() -> None:
    each = started()
    each.idle = False
    each.event(Received(b"c", m.Drop(1)))
    assert not each.core.plan_selection.jobs.has(SERVICE, DISPOSAL)
