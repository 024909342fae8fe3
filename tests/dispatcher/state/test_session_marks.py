"""The copy of a tensor table for a mark: it reads as the table did, in however many parts it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.state.session_marks import COPIED_PER_TURN, TableCopy

KINDS: Any = ["some", "other"]
"""In place of entries, which a copy does not look at."""


@given(st.integers(0, 3 * COPIED_PER_TURN), st.integers(1, 1 << 40), st.data())
@settings(max_examples=20, deadline=None)
def test_a_copy_reads_as_the_table_did(count: int, stride: int, data: st.DataObject) -> None:
    """Whoever takes its turns, one or several in turns, and whatever becomes of the table afterwards."""
    table = {n * stride % (1 << 61): KINDS[n % 2] for n in range(count)}
    before, copy = dict(table), TableCopy(table)
    takers = [copy.turns() for _ in range(data.draw(st.integers(1, 3)))]
    while not copy.over:
        next(data.draw(st.sampled_from(takers)))
    table.clear()
    assert copy == before
    assert [*copy] == [*before]
    assert [*copy.items()] == [*before.items()]
    assert [*copy.values()] == [*before.values()]
    assert len(copy) == len(before)
    assert len(copy.values()) == len(before)
    assert all(len(part) <= COPIED_PER_TURN for part in copy.parts)
    for tensor in [*before][:: 1 + count // 10]:
        assert copy[tensor] == before[tensor]
    assert -1 not in copy
    with pytest.raises(KeyError):
        copy[-1]


def test_a_copy_that_is_stopped_takes_no_more_turns() -> None:
    copy = TableCopy(dict.fromkeys(range(2 * COPIED_PER_TURN), KINDS[0]))
    turns = copy.turns()
    next(turns)
    copy.stop()
    assert not [*turns]
    assert len(copy) == COPIED_PER_TURN
