"""Sessions that go on over another connection, because their clients have given up the one before."""

from __future__ import annotations

from typing import Any

import pytest
from marking_dispatcher import pass_time, restore, time_passes
from one_dispatcher import Service
from saved_sessions import ALICE, BOB, KEY, Saved, goes_on, left, marked, session

from gt.dispatcher.state.events import Lost, ReadSession, SessionRead
from gt.wire import messages as m
from gt.wire.reliable_stream import LEASE_SECONDS

OTHER = bytes(16)
SLOW, FAST = ({"host": f"host{speed}", "speed": [speed * 1e9, speed * 1e9]} for speed in (1, 3))


# other connections


def here(saved: Saved) -> tuple[Service, int]:
    """A dispatcher with a session of Alice on connection "c", which has a mark and one run after it; that mark."""
    each = saved.dispatcher({}, {})
    each.origins.update({name: ALICE for name in "cde"})
    session(each)
    mark = marked(saved, each)
    each.run(1, 10, [1])
    each.done()
    each.hears("c")
    return each, mark


def takes_over(each: Service, mark: int, name: str = "d") -> m.Rewind:
    """The client says hello on another connection; what it is told there."""
    each.hello(name, "client", bulk=b"bulk-c", resends=True, session_key=KEY, mark=mark, sent=6)
    welcome, rewind = each.hears(name)
    assert (type(welcome), type(rewind)) == (m.Welcome, m.Rewind)
    assert welcome.facts["continues"] is True
    assert (rewind.text, rewind.lost) == ("its client has opened another connection", -1)
    return rewind


@pytest.mark.parametrize("marked_before", [True, False])
def test_a_session_goes_on_by_another_connection(marked_before: bool) -> None:
    """Its client has given up the one before, so that nobody knows what of it was lost: it goes back to the mark that it says,
    and from there on."""
    saved = Saved()
    each, mark = here(saved)
    mark = mark if marked_before else 0
    number = each.core.service.clients[b"c"].number
    rewind = takes_over(each, mark)
    assert rewind.session > number
    assert list(each.core.service.clients) == [b"d"]
    assert each.hears("w0", m.Forget) == [m.Forget(number)]
    each.say("d", m.Resume(rewind.session, mark))
    restore(each, mark)
    assert set(each.table("d")) == ({1, 2, 3} if mark else set())
    if mark:
        each.run(1, 10, [1], "d")
        each.done()
        assert set(each.table("d")) == {1, 2, 3, 10}
    time_passes(each, LEASE_SECONDS + 1)
    assert list(each.core.service.clients) == [b"d"]


def test_what_comes_late_on_the_connection_before_has_no_effect() -> None:
    """Neither is its sender told that it has broken the protocol, nor does the end of that connection end the session."""
    saved = Saved()
    each, mark = here(saved)
    rewind = takes_over(each, mark)
    each.run(1, 11, [1], "c")
    each.say("c", m.Resume(rewind.session, mark), m.Goodbye("", ""))
    assert not each.hears("c")
    each.event(Lost(b"c", "its process ended", ended=True))
    each.say("d", m.Resume(rewind.session, mark))
    restore(each, mark)
    assert set(each.table("d")) == {1, 2, 3}
    assert each.core.service.counters.refused == 0
    assert each.core.disconnect.moved == [(b"c", b"d")]


def test_a_connection_may_be_given_up_while_the_session_goes_back() -> None:
    """Once more before the client has answered, and once more while workers restore the mark."""
    saved = Saved()
    each, mark = here(saved)
    takes_over(each, mark)
    second = takes_over(each, mark, "e")
    each.say("e", m.Resume(second.session, mark))
    third = takes_over(each, mark, "c")
    each.say("c", m.Resume(third.session, mark))
    restore(each, mark)
    assert set(each.table()) == {1, 2, 3}
    assert list(each.core.service.clients) == [b"c"]


def test_a_connection_may_be_given_up_while_the_mark_is_read() -> None:
    """The next dispatcher reads it again for the other connection, and drops no file of it."""
    saved = Saved()
    mark = left(saved)
    later = saved.dispatcher({}, {}, names="x")
    later.origins.update(c=ALICE, d=ALICE)
    later.hello("c", "client", resends=True, session_key=KEY, mark=mark)
    (first,) = later.core.marks.file_work
    late = saved.read(first)
    later.hello("d", "client", resends=True, session_key=KEY, mark=mark)
    later.event(late)
    saved.work(later)
    (rewind,) = later.hears("d", m.Rewind)
    later.say("d", m.Resume(rewind.session, mark))
    restore(later, mark)
    assert set(later.table("d")) == {1, 2, 3}
    assert (KEY, mark) in saved.files


def test_a_client_that_was_never_welcomed_begins_anew() -> None:
    """Of what it says first the answer was lost, so it has no mark and nothing else of a session."""
    saved = Saved()
    each, _ = here(saved)
    each.hello("d", "client", bulk=b"bulk-c", resends=True, session_key=KEY)
    (welcome,) = each.hears("d")
    assert "continues" not in welcome.facts
    assert list(each.core.service.clients) == [b"d"]
    assert not each.table("d")


@pytest.mark.parametrize("why", ["another mark", "no marks"])
def test_a_session_that_cannot_go_back_is_let_go(why: str) -> None:
    """Its client has given up the connection, so nobody will ask for it any more."""
    saved = Saved()
    each, mark = here(saved)
    if why == "no marks":
        each.core.marks.give_up(each.core.service.clients[b"c"], "a full disk")
    each.hello("d", "client", resends=True, session_key=KEY, mark=mark + (why == "another mark"))
    (told,) = each.hears("d")
    assert (told.kind, "no copy of this session any more" in told.text) == ("SessionError", True)
    assert not each.core.service.clients


@pytest.mark.parametrize("facts", [{"mark": 1}, {"mark": 0}, {}])
def test_nobody_else_takes_a_session_over(facts: dict[str, Any]) -> None:
    """Also whoever knows its key is told so, if it is another user; the session goes on as it was."""
    saved = Saved()
    each, _ = here(saved)
    each.origins["d"] = BOB
    each.hello("d", "client", resends=True, session_key=KEY, **facts)
    (told,) = each.hears("d")
    assert (told.kind, told.text) == ("SessionError", "this session is another user's")
    each.run(1, 11, [1])
    each.done()
    assert set(each.table()) == {1, 2, 3, 10, 11}


@pytest.mark.parametrize("fails", ["the file", "the client", "the client begins again"])
def test_a_mark_that_is_not_gone_back_to_is_dropped(fails: str) -> None:
    """Because it cannot be read, or its client is gone meanwhile, or does not want it."""
    saved = Saved()
    mark = left(saved)
    later = saved.dispatcher({}, {}, names="x")
    later.origins["c"] = ALICE
    later.hello("c", "client", resends=True, session_key=KEY, mark=mark)
    (welcome,) = later.hears("c", m.Welcome)
    (work,) = later.core.marks.file_work
    later.core.marks.file_work.clear()
    assert work == ReadSession(welcome.number, KEY, mark)
    read = saved.read(work)
    if fails == "the file":
        read = SessionRead(work.client, None, ("SnapshotError", "it has holes"))
    elif fails == "the client":
        later.event(Lost(b"c", "it ended"))
    else:
        later.say("c", m.Resume(welcome.number, 0))
    later.event(read)
    if fails == "the file":
        (told,) = later.hears("c", m.Goodbye)
        assert (told.kind, told.text) == ("SessionError", "the session cannot go on: it has holes")
    saved.work(later)
    assert set(saved.files) == ({(KEY, 0)} if fails == "the client begins again" else set())
    assert [told.mark for worker in ("x0", "x1") for told in later.hears(worker, m.DropMark)] == [mark]


def test_an_answer_of_the_file_comes_once() -> None:
    saved = Saved()
    mark = left(saved)
    later = saved.dispatcher({}, {}, names="x")
    later.origins["c"] = ALICE
    later.hello("c", "client", resends=True, session_key=KEY, mark=mark)
    (welcome,) = later.hears("c", m.Welcome)
    read = saved.read(ReadSession(welcome.number, KEY, mark))
    later.event(read)
    later.event(read)
    assert len(later.hears("c", m.Rewind)) == 1
    later.say("c", m.Resume(welcome.number, mark))
    later.event(read)
    assert not later.hears("c", m.Rewind)
    assert len(later.core.service.clients[b"c"].recovery.marks) == 1


@pytest.mark.parametrize("keeper", [True, False])
def test_who_does_not_come_back_is_given_up(keeper: bool) -> None:
    """After the lease; a worker removes the files of the others, the next one if there is none."""
    saved = Saved()
    mark = left(saved)
    later = saved.dispatcher(*[{}] * (2 if keeper else 0), names="x")
    pass_time(later, 0.0)
    time_passes(later, LEASE_SECONDS - 0.1)
    saved.work(later)
    assert set(saved.files) == {(KEY, 0), (KEY, mark)}
    time_passes(later, 0.2)
    saved.work(later)
    assert saved.files == {}
    if not keeper:
        later.join("x0", marks=True)
        pass_time(later, 0.0)
    assert later.hears("x0", m.DropMark) == [m.DropMark(mark)]
    assert any("1 sessions of the dispatcher before did not come back" in line for line in later.log)
    later.origins["c"] = ALICE
    later.hello("c", "client", resends=True, session_key=KEY, mark=mark)
    (told,) = later.hears("c")
    assert "no copy of this session any more" in told.text


def test_whoever_is_back_is_not_given_up() -> None:
    saved = Saved()
    mark = left(saved)
    later = saved.dispatcher({}, {}, names="x")
    later.origins["c"] = ALICE
    goes_on(saved, later, mark)
    pass_time(later, 0.0)
    time_passes(later, LEASE_SECONDS + 1)
    saved.work(later)
    assert {(KEY, 0), (KEY, mark)} <= set(saved.files)
    assert not any("did not come back" in line for line in later.log), later.log
