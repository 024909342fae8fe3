"""Where a stream repeats: the period is the one that explains most of it, and segments are cut where little lives on."""

from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.client.segment.builder import FLUSH_LENGTH
from gt.client.segment.loop_period import LoopPeriods, best_cut, period_of
from gt.client.session import sessions

few = settings(max_examples=cases(60))
turns = st.lists(st.integers(0, 3), min_size=1, max_size=80)


def repeats_whole(stream: Any, period: int) -> bool:
    return bool(np.array_equal(stream[period:], stream[:-period]))


@few
@given(turns, st.integers(2, 9), st.integers(0, 79))
def test_the_period_of_what_repeats_is_the_least_that_explains_it_all(turn: list[int], times: int, more: int) -> None:
    stream = np.array((turn * (times + 1))[: len(turn) * times + more % len(turn)])
    least = next(p for p in range(1, len(turn) + 1) if repeats_whole(stream, p))
    assert period_of(stream) == least


@few
@given(st.lists(st.integers(0, 5), max_size=60), turns)
def test_what_came_before_the_loop_changes_nothing(before: list[int], turn: list[int]) -> None:
    stream = np.array(before + turn * 80)
    period = period_of(stream)
    assert period
    assert repeats_whole(stream[-80 * len(turn) :], period)


def test_what_never_repeats_has_no_period() -> None:
    assert period_of(np.arange(1000)) == 0
    assert period_of(np.empty(0, np.int64)) == 0
    assert period_of(np.array([1])) == 0
    assert period_of(np.concatenate((np.arange(600), np.arange(500)))) == 0, "once again is not yet a loop"


@few
@given(st.data())
def test_the_cut_is_where_the_fewest_values_live_on(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 24))
    read = st.lists(st.integers(-2, size), max_size=3)
    record: list[tuple[Any, ...]] = [(None, *[at for at in data.draw(read) if at < number]) for number in range(size)]
    alive = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    period = data.draw(st.integers(1, size))

    def crossing(cut: int) -> int:
        later = {at for entry in record[cut:] for at in entry[1:]}
        return sum(alive[made] or made in later for made in range(cut))

    cuts = [crossing(size - period + more) for more in range(period)]
    assert cuts[best_cut(record, alive, period)] == min(cuts)


def test_a_segment_is_whole_turns_and_the_first_cut_is_moved_to_the_quiet_place() -> None:
    periods = LoopPeriods(100)
    loop = [object() for _ in range(7)]

    def record(first: int, size: int) -> list[tuple[Any, ...]]:
        return [(loop[(first + n) % 7], *([n - 1] if (first + n) % 7 and n else [])) for n in range(size)]

    periods.new(record(0, 100), [0] * 99 + [1])
    assert periods.period == 7
    first = periods.length
    assert (100 + first) % 7 == 0, "between two turns nothing lives on"
    periods.new(record(100, first), [0] * first)
    assert periods.length == 98
    periods.known()
    assert (periods.length, periods.history.size) == (98, 0)
    periods.new([(object(),)] * 98, [0] * 98)
    periods.new([(object(),) for _ in range(400)], [0] * 400)
    assert (periods.period, periods.length) == (0, 100)


@pytest.mark.parametrize("length", [3, 7, 43, 300])
def test_a_loop_without_a_fetch_is_defined_a_few_times_whatever_its_length(session: Any, length: int) -> None:
    """Cut every 512 instructions, a loop of 43 would be 43 different segments."""
    x = gt.ones(2)
    ops = [gt.neg, gt.exp, gt.tanh]
    before = gt.stats()["definitions_made"]
    y = x
    for _ in range(20_000 // length):
        for number in range(length):
            y = ops[(number * number) % 3](y)
    y.numpy()
    made = gt.stats()["definitions_made"] - before
    assert made <= 5
    assert sessions.builder().length % sessions.builder().periods.period == 0 or length > FLUSH_LENGTH


def test_why_a_segment_was_not_known_is_counted(session: Any) -> None:
    x = gt.ones(2)
    gt.flush()
    before = gt.stats()["definition_misses"]

    def twice(held: list[Any]) -> None:
        y = x + 1
        held.append(y * 2)
        del y
        gt.flush()

    twice([])
    held: list[Any] = []
    twice(held)
    twice(held)
    after = gt.stats()["definition_misses"]
    assert after.get("new", 0) - before.get("new", 0) == 1
    assert after.get("lifetimes", 0) == before.get("lifetimes", 0)
    y = x + 1
    kept = [y, y * 2]
    gt.flush()
    again = gt.stats()["definition_misses"]
    assert again.get("new", 0) == after.get("new", 0) + 1, "another line is another instruction"
    assert len(kept) == 2
