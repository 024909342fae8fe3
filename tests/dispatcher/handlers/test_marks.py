"""Marks of sessions: when they are taken, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
from marking_dispatcher import FAULT, lose, mark_due, pass_time, service, time_passes

from gt.dispatcher.handlers.marks import DISPATCHER, MARK_SECONDS, MAX_MARK_SECONDS
from gt.dispatcher.state.events import Lost, SessionWritten
from gt.dispatcher.state.mark_wait import LEAST_SECONDS
from gt.sharding.config import Config
from gt.wire import messages as m


def test_a_mark_is_taken_when_time_has_passed_and_something_was_done() -> None:
    each = service()
    taken = mark_due(each)
    assert taken == m.TakeMark(1, 1, each.core.service.clients[b"c"].planner.mesh.number)
    pass_time(each, 25.0)
    assert not each.hears("w0", m.TakeMark), "one at a time"
    each.say("w0", m.MarkTaken(1, [], 1000))
    assert each.hears("c", m.Durable) == [m.Durable(1, 2, 1)]
    pass_time(each, 25.0)
    assert not each.hears("w0", m.TakeMark), "nothing was done since"
    each.run(1, 10, [1])
    time_passes(each, 25.0)
    assert [told.mark for told in each.hears("w0", m.TakeMark)] == [2]


def test_marks_of_programs_that_keep_nothing_are_not_taken() -> None:
    each = service()
    each.client("d")
    each.put(1, "d")
    each.done()
    pass_time(each, 0.0)
    pass_time(each, 25.0)
    taken = [told for worker in ("w0", "w1") for told in each.hears(worker, m.TakeMark)]
    assert [told.client for told in taken] == [1]
    each.say("d", m.RequestMark(True))
    assert not each.hears("w1", m.TakeMark)


@pytest.mark.parametrize(("took", "pause"), [(0.001, MARK_SECONDS), (0.1, 5.0), (3.0, MAX_MARK_SECONDS)])
def test_marks_take_a_fiftieth_of_the_time(took: float, pause: float) -> None:
    each = service()
    mark = mark_due(each)
    each.say("w0", m.MarkTaken(mark.mark, [], int(took * 1e9)))
    each.run(1, 10, [1])
    pass_time(each, pause - 0.01)
    assert not each.hears("w0", m.TakeMark)
    each.say("w0", m.Ping())
    pass_time(each, 0.02)
    assert each.hears("w0", m.TakeMark)


def test_a_client_that_keeps_much_gets_a_mark_at_once() -> None:
    each = service()
    each.say("c", m.RequestMark(True))
    assert len(each.hears("w0", m.TakeMark)) == 1
    each.say("c", m.RequestMark(True))
    assert not each.hears("w0", m.TakeMark), "it is under way"


def test_a_mark_waits_for_puts_that_land_and_holds_up_others() -> None:
    """Otherwise a program that puts without a pause would never get one."""
    each = service()
    each.put(2, bulk=True)
    each.say("c", m.RequestMark(True))
    assert not each.hears("w0", m.TakeMark)
    each.put(3, bulk=True)
    assert "waiting for a mark" in each.core.service.clients[b"c"].head
    each.say("w0", m.Landed(1, 2))
    told = each.hears("w0")
    assert [type(message) for message in told] == [m.TakeMark, m.Store]
    each.say("w0", m.Landed(1, 3), m.MarkTaken(1, [], 0))
    (durable,) = each.hears("c", m.Durable)
    assert (durable.position, durable.done) == (3, 2)


def test_every_worker_of_the_mesh_takes_part() -> None:
    rules = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
    each = service(config=rules)
    mark = mark_due(each)
    assert each.hears("w1", m.TakeMark) == [mark]
    each.say("w1", m.MarkTaken(mark.mark, [], 0), m.MarkTaken(mark.mark, [], 0))
    assert not each.hears("c", m.Durable)
    each.say("w0", m.MarkTaken(mark.mark, [], 0))
    assert each.hears("c", m.Durable)


def test_a_worker_that_the_session_has_left_may_end_while_it_writes() -> None:
    """The mark cannot be whole any more, so another one is taken where the session is now."""
    rules: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
    each = service(config=rules)
    mark = mark_due(each)
    each.say("w0", m.MarkTaken(mark.mark, [], 0))
    each.say("c", m.Configure(7, Config.from_plain({**rules, "mesh": {"data": 1}}).to_wire()))
    each.done()
    assert each.hears("c", m.Answer) == [m.Answer(7, {"mesh": {"data": 1}})]
    each.told.clear()
    lose(each, "w1")
    assert not each.hears("c", m.Rewind)
    pass_time(each, MARK_SECONDS)
    told = each.hears("w0", m.DropMark, m.TakeMark)
    assert [type(message) for message in told] == [m.DropMark, m.TakeMark]
    each.say("w0", m.MarkTaken(told[1].mark, [], 0))
    assert len(each.hears("c", m.Durable)) == 1


def test_the_earlier_mark_stays_until_the_client_is_done_with_it() -> None:
    each = service()
    first = mark_due(each)
    each.say("w0", m.MarkTaken(first.mark, [], 0))
    each.run(1, 10, [1])
    each.say("c", m.Settled(first.mark), m.RequestMark(True))
    (second,) = each.hears("w0", m.TakeMark)
    each.say("w0", m.MarkTaken(second.mark, [], 0))
    assert not each.hears("w0", m.DropMark)
    each.say("c", m.Settled(second.mark))
    assert each.hears("w0", m.DropMark) == [m.DropMark(first.mark)]
    each.event(Lost(b"c", "it ended"))
    assert each.hears("w0", m.DropMark) == [m.DropMark(second.mark)]


def test_a_mark_that_cannot_be_written_ends_marks_and_is_said_once() -> None:
    each = service()
    mark = mark_due(each)
    each.say("w0", m.MarkTaken(mark.mark, FAULT, 0))
    assert each.hears("c", m.Unkept) == [m.Unkept("worker 0: no space left")]
    assert each.hears("w0", m.DropMark) == [m.DropMark(mark.mark)]
    each.run(1, 10, [1])
    pass_time(each, 25.0)
    each.say("c", m.RequestMark(True))
    assert not each.hears("w0", m.TakeMark)
    assert not each.hears("c", m.Unkept)
    assert sum("has no marks" in line for line in each.log) == 1


def test_a_mark_is_not_waited_for_for_ever() -> None:
    """While it is written there is no other, so a worker that lives and does not write it ends marks."""
    each = service()
    mark = mark_due(each)
    each.say("w1", m.MarkTaken(mark.mark, [], 0))
    time_passes(each, LEAST_SECONDS - 1)
    assert not each.hears("c", m.Unkept)
    time_passes(each, 10)
    assert each.hears("c", m.Unkept) == [m.Unkept("worker 0 has not written its part of a mark within 60 s")]
    assert each.hears("w0", m.DropMark) == [m.DropMark(mark.mark)]
    each.say("w0", m.MarkTaken(mark.mark, [], 0))
    assert not each.hears("c", m.Durable)


def test_whoever_goes_on_with_files_is_waited_for() -> None:
    """A worker that is short of cores, or writes the marks of many others first: not if it beats alone."""
    each = service()
    each.hello("pulse", "pulse", address="ipc:///w0")
    mark = mark_due(each)
    for steps in range(20):
        each.say("pulse", m.FileProgress(steps, idle=False))
        time_passes(each, LEAST_SECONDS - 10)
    assert not each.hears("c", m.Unkept)
    each.say("pulse", m.FileProgress(19, idle=False))
    time_passes(each, 20)
    assert each.hears("c", m.Unkept)
    assert each.hears("w0", m.DropMark) == [m.DropMark(mark.mark)]


def test_an_answer_waits_for_the_end_of_the_plan_that_its_worker_computes() -> None:
    """But no longer for that of a worker which has finished another plan since, and says nothing."""
    each = service()
    each.hello("pulse", "pulse", address="ipc:///w0")
    mark_due(each)
    each.say("pulse", m.FileProgress(5, idle=True))
    each.run(1, 10, [1])
    each.run(1, 20, [10])
    time_passes(each, 10 * LEAST_SECONDS)
    assert not each.hears("c", m.Unkept)
    for turn in range(8):
        assert not each.hears("c", m.Unkept), turn
        each.done()
        each.run(1, 30 + turn, [10])
        time_passes(each, LEAST_SECONDS / 7)
    assert each.hears("c", m.Unkept)


def test_the_dispatcher_itself_is_waited_for_while_it_writes_files() -> None:
    each = service()
    for number in range(10):
        each.event(SessionWritten(1000 + number, None, 0))
        assert each.core.service.file_progress[DISPATCHER].steps == number + 1


def test_workers_without_a_folder_keep_no_marks() -> None:
    each = service(marks=False)
    pass_time(each, 0.0)
    pass_time(each, MARK_SECONDS)
    (unkept,) = each.hears("c", m.Unkept)
    assert "without a folder" in unkept.text
    assert not each.hears("w0", m.TakeMark)


def test_another_worker_removes_a_mark_of_which_no_member_is_left() -> None:
    """The files of all workers are in one folder, and who was killed cannot remove its own."""
    each = service()
    mark = mark_due(each)
    lose(each, "w0")
    assert each.hears("w1", m.DropMark) == [m.DropMark(mark.mark)]


def test_the_next_worker_removes_a_mark_of_which_no_worker_is_left() -> None:
    each = service(1)
    mark = mark_due(each)
    lose(each, "w0")
    each.join("w9")
    pass_time(each, 0.0)
    assert not each.hears("w9", m.DropMark), "it has no folder"
    each.join("w8", marks=True)
    pass_time(each, 0.0)
    assert each.hears("w8", m.DropMark) == [m.DropMark(mark.mark)]
    pass_time(each, 1.0)
    assert not each.hears("w8", m.DropMark), "once"


def test_marks_do_not_pile_up_where_the_client_notes_none() -> None:
    """As when it waits for the answer to a request that was before them all: others would be no use, and workers keep what they
    have."""
    each = service()
    for number in (1, 2):
        each.run(1, 10 * number, [1])
        each.done()
        pass_time(each, 0.0)
        time_passes(each, MAX_MARK_SECONDS)
        (taken,) = each.hears("w0", m.TakeMark)
        each.say("w0", m.MarkTaken(taken.mark, [], 0))
    each.run(1, 30, [1])
    each.done()
    time_passes(each, MAX_MARK_SECONDS)
    assert not each.hears("w0", m.TakeMark)
    each.say("c", m.Settled(2))
    time_passes(each, MAX_MARK_SECONDS)
    assert [taken.mark for taken in each.hears("w0", m.TakeMark)] == [3]
