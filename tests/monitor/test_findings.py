"""What a recording amounts to: every sum follows from the events, whoever else was watching."""

from __future__ import annotations

import dataclasses
import itertools

import event_samples as e
import pytest

from gt.monitor.findings import gather, group_of
from gt.monitor.timeline import MAX_LANES, rows
from gt.wire import telemetry as t

MS = e.MS


def test_the_sums_are_those_of_the_events() -> None:
    events = e.session(4)
    found = gather(events)
    plan = found.plans[3]
    slices = [event for event in events if isinstance(event, t.PlanSlice)]
    assert sum(plan.times.values()) == sum(event.times for event in slices) == 13
    assert sum(plan.compute.values()) == sum(event.compute for event in slices)
    assert (plan.runs, plan.fetches, plan.fetching) == (9, 4, 8 * MS)
    assert (plan.signal, plan.first, plan.last) == ("batch", e.SITE, e.FETCH)
    assert found.moves["all-reduce", "batch", e.SITE].sent == 8 * 2048
    assert found.misses == {("plan", "new", e.SITE): 1}
    assert found.clients[7].peak == 1 << 20
    assert [type(each) for each in found.told] == [t.Failure, t.Decision]


def test_the_span_is_that_of_what_was_done_not_of_who_had_joined_before() -> None:
    found = gather(e.session(4))
    assert found.start == e.START
    assert found.end == e.START + 80 * MS + 30 * MS


def test_time_in_kernels_is_shared_out_as_samples_say_and_is_all_of_it() -> None:
    found = gather(e.session(4))
    times = {place.name: time for place, _, time in found.estimated()}
    assert sum(times.values()) == pytest.approx(sum(found.plans[3].compute.values()))
    assert times["matmul"] == pytest.approx(3 * times["add+relu"])


def test_a_plan_without_a_sample_stands_as_a_whole_at_its_line() -> None:
    found = gather([e.plan_described(), e.plan_slice(e.START)])
    [(place, _, time)] = found.estimated()
    assert (place.name, place.signal, place.site, time) == ("not sampled", "batch", e.SITE, 6 * MS)


def test_counters_of_a_recording_that_was_on_before_count_from_the_first_of_them() -> None:
    late = e.START + 5000 * MS
    events: list[t.Event] = [e.service(late)]
    for at, nbytes in ((late + MS, 1000), (late + 100 * MS, 1600)):
        events += [e.utilisation(at), t.Traffic(at, 0, [1], [nbytes])]
    found = gather(events)
    assert sum(found.time_of(found.workers[0]).values()) == pytest.approx(99 * MS, abs=5)
    assert found.sent(found.workers[0]) == {1: 600}


def test_counters_that_began_with_this_recording_count_whole() -> None:
    found = gather(e.session(4))
    assert sum(found.time_of(found.workers[0]).values()) == pytest.approx(80 * MS, abs=10)
    assert found.sent(found.workers[0]) == {1: 4 * 2048}


@pytest.mark.parametrize(
    ("op", "group"),
    [
        ("matmul", "products"), ("add+relu", "element-wise"), ("sum", "reductions"), ("reshape", "rearranging"),
        ("?", "rearranging"),
    ],
)  # fmt: skip
def test_every_op_has_a_colour(op: str, group: str) -> None:
    assert group_of(op) == group


def test_rows_hold_every_slice_in_order_without_overlaps() -> None:
    found = gather(e.session(6))
    drawn = rows(found)
    assert sum(len(row.pieces) for row in drawn) == sum(map(len, found.tracks.values()))
    assert drawn[0].group == "client 7"
    assert any(row.name == "plans (added up)" for row in drawn)
    for row in drawn:
        for one, other in itertools.pairwise(row.pieces):
            assert one.start + one.duration <= other.start


def test_what_is_too_fine_is_put_together_and_nothing_of_its_time_is_lost() -> None:
    events: list[t.Event] = [e.op_slice(e.START + at * 10_000, duration=4_000) for at in range(5000)]
    events.append(e.op_slice(e.START + 60_000_000, duration=40 * MS))
    found = gather(events)
    [row] = rows(found, limit=200)
    assert len(row.pieces) <= 200
    assert sum(piece.many for piece in row.pieces) == 5001
    filled = sum(piece.duration * piece.fill for piece in row.pieces)
    assert filled == pytest.approx(5000 * 4_000 + 40 * MS, rel=1e-6)
    assert row.pieces[-1].many == 1


def test_what_overlaps_more_often_than_there_are_rows_lies_over_others() -> None:
    found = gather([e.fetched(e.START + at, 100 * MS) for at in range(20)])
    drawn = rows(found)
    assert len(drawn) == MAX_LANES
    assert sum(len(row.pieces) for row in drawn) == 20


def test_a_recording_of_nothing_is_nothing() -> None:
    found = gather([])
    assert (found.span, rows(found), found.estimated()) == (0, [], [])
    assert not any(getattr(found, field.name) for field in dataclasses.fields(found))
