"""What a dispatcher writes of its sessions, for the one after it."""

from __future__ import annotations

from typing import Any

import pytest
from marking_dispatcher import FAULT, mark_due
from one_dispatcher import RULES, Service
from saved_sessions import KEY, Saved, marked, session

from gt.dispatcher.state.events import DropSession, Lost, SessionWritten, WriteSession
from gt.wire import messages as m

# writing


@pytest.mark.parametrize("first", ["file", "workers"])
def test_a_mark_is_durable_once_all_have_written_it(first: str) -> None:
    """Also the dispatcher itself."""
    each = Saved().dispatcher({}, {})
    session(each)
    each.core.marks.file_work.clear()
    mark = mark_due(each)
    (work,) = each.core.marks.file_work
    assert isinstance(work, WriteSession)
    assert work.state is each.core.service.clients[b"c"].recovery.taking
    assert (work.card.key, work.card.principal, work.card.mark) == (KEY, "this process", mark.mark)
    if first == "file":
        each.event(SessionWritten(mark.mark, None, 5))
        assert not each.hears("c", m.Durable)
    each.say("w0", m.MarkTaken(mark.mark, [], 7_000_000_000))
    each.say("w1", m.MarkTaken(mark.mark, [], 0))
    if first == "workers":
        assert not each.hears("c", m.Durable)
        each.event(SessionWritten(mark.mark, None, 8_000_000_000))
    assert [told.mark for told in each.hears("c", m.Durable)] == [mark.mark]
    (kept,) = each.core.service.clients[b"c"].recovery.marks
    assert kept.seconds == (7.0 if first == "file" else 8.0), "the slowest counts"
    each.event(SessionWritten(mark.mark, None, 5))
    assert not each.hears("c", m.Durable), "once"


def test_a_file_that_cannot_be_written_ends_marks() -> None:
    """The client is told, and what was written of the mark is removed."""
    saved = Saved()
    each = saved.dispatcher({}, {})
    session(each)
    saved.work(each)
    mark = mark_due(each).mark
    each.event(SessionWritten(mark, ("SnapshotError", "no space left"), 0))
    assert [told.text for told in each.hears("c", m.Unkept)] == ["no space left"]
    assert each.hears("w0", m.DropMark) == [m.DropMark(mark)]
    for worker in ("w0", "w1"):
        each.say(worker, m.MarkTaken(mark, [], 0))
    assert not each.hears("c", m.Durable)
    saved.work(each)
    assert saved.files == {}
    assert DropSession(KEY, 0, last=True) in saved.done


def test_a_mark_that_a_worker_cannot_write_has_no_file() -> None:
    saved = Saved()
    each = saved.dispatcher({}, {})
    session(each)
    mark = mark_due(each).mark
    each.say("w1", m.MarkTaken(mark, FAULT, 0))
    assert each.hears("c", m.Unkept)
    assert [type(work) for work in saved.work(each)][-3:] == [WriteSession, DropSession, DropSession]
    assert saved.files == {}


@pytest.mark.parametrize(
    ("saves", "facts"), [(False, {"session_key": KEY, "resends": True}), (True, {"resends": True})]
)
def test_nothing_is_written_of_sessions_that_cannot_come_back(saves: bool, facts: dict[str, Any]) -> None:
    """Because there is no folder, or the client has no key: then workers alone have marks."""
    each = Service(0, config=RULES, expected=2, **({"cards": ()} if saves else {}))
    for name in ("w0", "w1"):
        each.join(name, marks=True)
    each.client("c", **facts)
    each.put(1)
    each.done()
    mark = mark_due(each).mark
    for worker in ("w0", "w1"):
        each.say(worker, m.MarkTaken(mark, [], 0))
    assert each.hears("c", m.Durable)
    each.event(Lost(b"c", "it ended"))
    assert each.core.marks.file_work == []


def test_files_go_with_their_marks_and_sessions() -> None:
    saved = Saved()
    each = saved.dispatcher({}, {})
    session(each)
    saved.work(each)
    assert set(saved.files) == {(KEY, 0)}, "how its mesh is shaped"
    first = marked(saved, each)
    assert set(saved.files) == {(KEY, 0), (KEY, first)}
    each.run(1, 50, [1])
    each.done()
    second = marked(saved, each)
    assert set(saved.files) == {(KEY, 0), (KEY, second)}
    each.event(Lost(b"c", "it ended"))
    saved.work(each)
    assert saved.files == {}


def test_nothing_is_written_of_a_session_that_has_just_ended() -> None:
    """By a bug in the very message that made its mesh."""

    def bug(*_: Any) -> Any:
        each.core.service.reshaped.append(each.core.service.clients[b"c"])
        raise KeyError("a bug")

    saved = Saved()
    each = saved.dispatcher({}, {})
    session(each)
    saved.work(each)
    each.core.queues.handlers[m.Options] = bug
    each.say("c", m.Options({}))
    assert each.hears("c", m.Goodbye)
    saved.work(each)
    assert saved.files == {}
