"""Sessions that come back from the dispatcher before: what it writes of them, and what the next one goes on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from marking_dispatcher import FAULT, IMPROVABLE, mark_due, pass_time, restore, time_passes
from one_dispatcher import RULES, Service
from saved_sessions import KEY, Saved, comes_back, goes_on, marked, session

from gt.dispatcher.handlers.handshake import PROGRAM_RATE
from gt.dispatcher.number_file import NumberFile
from gt.dispatcher.session_plans.plan_selection import SWITCH_AT
from gt.dispatcher.state.events import DropSession, Lost, ReadSession, SessionRead, SessionWritten, WriteSession
from gt.dispatcher.state.mark_bytes import SessionCard, read_card
from gt.dispatcher.state.numbers import Numbers, first_numbers
from gt.dispatcher.state.worker_duty import WorkersBefore, process_key
from gt.ir.instruction_bytes import pack_plan, unpack_plan
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.wire.principals import Origin, Principal
from gt.wire.reliable_stream import LEASE_SECONDS

OTHER = bytes(16)
SLOW, FAST = ({"host": f"host{speed}", "speed": [speed * 1e9, speed * 1e9]} for speed in (1, 3))
ALICE, BOB = (Origin(Principal(name), pid) for name, pid in (("alice", 1), ("bob", 2)))


def plan_of_next_run(each: Service, base: int, known: dict[int, bytes], worker: str = "w0", name: str = "c") -> bytes:
    """The bytes of the plan with which a run of the segment is executed, but for its mesh."""
    each.run(IMPROVABLE, base, [2, 3], name)
    for told in each.hears(worker, m.DefinePlan, m.Execute):
        if isinstance(told, m.DefinePlan):
            known[told.plan] = bytes(told.body)
        else:
            found = unpack_plan(known[told.plan])
    each.done()
    return pack_plan(replace(found, mesh=0))


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


# coming back


OPTIONS: dict[str, dict[str, Any]] = {"plain": {}, "tf32": {"tf32": True}, "verify": {"verify": 0.5}}
DETERMINISTIC: dict[str, Any] = {**RULES, "deterministic": True, "blocks": 4}


@pytest.mark.parametrize("runs_before", range(SWITCH_AT + 2))
@pytest.mark.parametrize("options", OPTIONS)
def test_a_session_goes_on_with_the_same_plans(runs_before: int, options: str) -> None:
    """On other workers, which say other speeds: each run after the mark has the plan that it would have had, byte for byte, and
    a better one takes over at the same run."""
    saved = Saved()
    each = saved.dispatcher({}, {})
    session(each)
    each.say("c", m.Options(OPTIONS[options]))
    known: dict[int, bytes] = {}
    before = [plan_of_next_run(each, 100 + 10 * at, known) for at in range(runs_before)]
    each.run(1, 50, [1])
    each.done()
    for told in each.hears("w0", m.DefinePlan):
        known[told.plan] = bytes(told.body)
    mark = marked(saved, each)
    table = {tensor: (entry.spec, entry.resident) for tensor, entry in each.table().items()}
    mesh = each.core.service.clients[b"c"].planner.mesh
    expected = [plan_of_next_run(each, 300 + 10 * at, known) for at in range(SWITCH_AT + 2)]
    if options == "plain":
        assert len({*before, *expected}) == 2, "one before the better one, and that"
    later = saved.dispatcher(SLOW, FAST, names="x")
    goes_on(saved, later, mark)
    client = later.core.service.clients[b"c"]
    assert {tensor: (entry.spec, entry.resident) for tensor, entry in later.table().items()} == table
    assert (client.planner.mesh.weights, client.planner.mesh.sizes) == (mesh.weights, mesh.sizes)
    assert client.planner.mesh.number > mesh.number
    assert not set(client.planner.mesh.members) & set(mesh.members)
    again: dict[int, bytes] = {}
    assert [plan_of_next_run(later, 300 + 10 * at, again, "x0") for at in range(SWITCH_AT + 2)] == expected
    assert later.core.service.counters.recoveries == 1


@pytest.mark.parametrize("config", [None, RULES, DETERMINISTIC], ids=["none", "rules", "deterministic"])
def test_a_session_goes_on_where_it_was(config: Any) -> None:
    """What it says before its answer is of the time before; what it says then waits for its workers."""
    saved = Saved()
    each = saved.dispatcher({}, {}, config=config)
    session(each)
    each.run(1, 10, [1])
    each.done()
    mark = marked(saved, each)
    credited = each.core.service.clients[b"c"].credited
    later = saved.dispatcher(config=config, names="x")
    rewind = comes_back(saved, later, mark)
    later.run(1, 99, [1])
    later.say("c", m.Resume(rewind.session, mark))
    later.run(1, 20, [10])
    assert 99 not in later.table()
    assert 20 not in later.table()
    later.join("x0", marks=True)
    later.join("x1", marks=True)
    (told,) = later.hears("x0", m.RestoreMark)
    assert (told.mark, told.client) == (mark, rewind.session)
    for worker in ("x0", "x1"):
        later.say(worker, m.MarkRestored(mark, rewind.session, []))
    assert set(later.table()) == {1, 2, 3, 10, 20}
    assert later.hears("x0", m.Execute)
    later.done()
    assert [credit.done for credit in later.hears("c", m.Credit)][-1] == credited + 1


def test_a_session_comes_back_again_and_again() -> None:
    """Also where it has no later mark than the one from which it went on."""
    saved = Saved()
    each = saved.dispatcher({}, {})
    session(each)
    mark = marked(saved, each)
    for at in range(3):
        each = saved.dispatcher({}, {}, names=f"x{at}-")
        goes_on(saved, each, mark)
        assert set(saved.files) == {(KEY, 0), (KEY, mark)}
        each.run(1, 10 + at, [1])
        each.done()
        assert set(each.table()) == {1, 2, 3, 10 + at}
    second = marked(saved, each)
    assert second > mark
    assert set(saved.files) == {(KEY, 0), (KEY, second)}
    each = saved.dispatcher({}, {}, names="y")
    goes_on(saved, each, second)
    assert set(each.table()) == {1, 2, 3, 12}


def test_a_mark_that_its_client_did_not_hear_of_is_dropped() -> None:
    """The client goes back to the one before."""
    saved = Saved()
    each = saved.dispatcher({}, {})
    session(each)
    first = marked(saved, each)
    each.run(1, 10, [1])
    each.done()
    each.say("c", m.RequestMark(True))
    saved.work(each)
    assert set(saved.files) == {(KEY, 0), (KEY, first), (KEY, first + 1)}
    later = saved.dispatcher({}, {}, names="x")
    rewind = comes_back(saved, later, first)
    assert set(saved.files) == {(KEY, 0), (KEY, first)}
    assert later.hears("x0", m.DropMark) == [m.DropMark(first + 1)]
    later.say("c", m.Resume(rewind.session, first))
    restore(later, first)
    assert set(later.table()) == {1, 2, 3}


def test_a_session_goes_on_from_a_mark_when_workers_are_lost_later() -> None:
    saved = Saved()
    each = saved.dispatcher({}, {})
    session(each)
    mark = marked(saved, each)
    later = saved.dispatcher({}, {}, names="x")
    goes_on(saved, later, mark)
    later.core.service.workers[b"x1"].facts["supervised"] = True
    later.event(Lost(b"x1", "its process ended", ended=True))
    (rewind,) = later.hears("c", m.Rewind)
    later.join("x2", marks=True)
    later.say("c", m.Resume(rewind.session, mark))
    restore(later, mark)
    later.run(1, 10, [1])
    later.done()
    assert set(later.table()) == {1, 2, 3, 10}


@pytest.mark.parametrize("known", [True, False])
def test_without_a_mark_a_session_begins_again(known: bool) -> None:
    """On a mesh of the weights that the one before had, if it had one."""
    saved = Saved()
    each = saved.dispatcher(SLOW, FAST)
    session(each)
    saved.work(each)
    weights = each.core.service.clients[b"c"].planner.mesh.weights
    assert weights[0][0] < weights[0][1]
    if not known:
        saved.files.clear()
    later = saved.dispatcher(FAST, FAST, names="x")
    rewind = comes_back(saved, later, 0)
    later.say("c", m.Resume(rewind.session, 0))
    assert later.core.service.counters.recoveries == 1
    later.put(1, signal=("net",))
    mesh = later.core.service.clients[b"c"].planner.mesh
    assert (mesh.weights == weights) == known
    assert not later.hears("x0", m.RestoreMark)
    later.run(1, 10, [1])
    later.define(1)
    later.done()
    saved.work(later)
    assert set(saved.files) == {(KEY, 0)}
    (shape,) = read_card(saved.files[KEY, 0]).shapes.values()
    assert shape.weights == mesh.weights


def test_a_session_without_a_mark_may_wait_for_workers() -> None:
    saved = Saved()
    session(each := saved.dispatcher({}, {}))
    saved.work(each)
    later = saved.dispatcher(names="x", expected=1)
    rewind = comes_back(saved, later, 0)
    later.say("c", m.Resume(rewind.session, 0))
    later.put(1)
    later.join("x0", marks=True)
    assert later.core.service.counters.recoveries == 0, "it had two"
    later.join("x1", marks=True)
    assert later.core.service.counters.recoveries == 1
    assert later.hears("x0", m.Store)


def test_a_session_waits_for_as_many_workers_as_it_had() -> None:
    """Also where the dispatcher was told of fewer, which joined later than the others at its first start."""
    saved = Saved()
    session(each := saved.dispatcher({}, {}, expected=1))
    mark = marked(saved, each)
    later = saved.dispatcher({}, names="x", expected=1)
    rewind = comes_back(saved, later, mark)
    later.say("c", m.Resume(rewind.session, mark))
    later.run(1, 10, [1])
    assert not later.hears("x0", m.RestoreMark)
    later.join("x1", marks=True)
    restore(later, mark)
    later.done()
    assert {tensor for tensor, entry in later.table().items() if not entry.fault} == {1, 2, 3, 10}


def test_a_session_whose_workers_do_not_come_is_told_so() -> None:
    """Once the shell has lost its patience."""
    saved = Saved()
    session(each := saved.dispatcher({}, {}))
    mark = marked(saved, each)
    later = saved.dispatcher({}, names="x", expected=1, patience=1.0)
    rewind = comes_back(saved, later, mark)
    later.say("c", m.Resume(rewind.session, mark))
    pass_time(later, 0.5)
    assert not later.hears("c")
    pass_time(later, 0.6)
    assert later.hears("c", m.Unkept)
    assert {entry.fault[0] for entry in later.table().values()} == {"WorkerLost"}


@pytest.mark.parametrize("changed", [False, True])
def test_a_config_that_has_changed_meanwhile_holds_from_then_on(changed: bool) -> None:
    """One that says the same changes nothing, though it was read again."""
    saved = Saved()
    each = saved.dispatcher({}, {})
    session(each)
    each.run(1, 10, [1])
    each.done()
    mark = marked(saved, each)
    other = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "replicate"}}}
    later = saved.dispatcher({}, {}, config=other if changed else RULES, names="x")
    goes_on(saved, later, mark)
    for _ in range(5):
        later.done()
    client = later.core.service.clients[b"c"]
    assert set(later.table()) == {1, 2, 3, 10}
    assert client.config.to_wire() == Config.from_plain(other if changed else RULES).to_wire()
    assert (client.config is later.core.service.config) == changed


def test_sessions_come_back_beside_each_other() -> None:
    """Each to its own."""
    saved = Saved()
    each = saved.dispatcher({}, {})
    session(each)
    session(each, "d", OTHER)
    each.run(1, 10, [1], "d")
    each.done()
    one, two = marked(saved, each), marked(saved, each, "d")
    later = saved.dispatcher({}, {}, names="x")
    goes_on(saved, later, two, "d", OTHER)
    assert set(saved.files) == {(KEY, 0), (KEY, one), (OTHER, 0), (OTHER, two)}
    goes_on(saved, later, one)
    assert set(later.table()) == {1, 2, 3}
    assert set(later.table("d")) == {1, 2, 3, 10}


# what is refused


def left(saved: Saved, mark: bool = True) -> int:
    """A dispatcher that has ended, with a session of Alice; its mark."""
    each = saved.dispatcher({}, {})
    each.origins["c"] = ALICE
    session(each)
    saved.work(each)
    return marked(saved, each) if mark else 0


REFUSED: dict[str, tuple[Origin, dict[str, Any], str, str]] = {
    "unknown mark": (ALICE, {"session_key": KEY, "mark": 99}, "SessionError", "no copy of this session any more"),
    "unknown key": (ALICE, {"session_key": OTHER, "mark": 1}, "SessionError", "no copy of this session any more"),
    "another principal": (BOB, {"session_key": KEY, "mark": 1}, "SessionError", "no copy of this session any more"),
    "another principal, no mark": (BOB, {"session_key": KEY, "mark": 0}, "SessionError", "no copy of this session"),
    "short key": (ALICE, {"session_key": KEY[:-1], "mark": 1}, "ProtocolError", "a session's key has 16 bytes"),
    "key of text": (ALICE, {"session_key": "a" * 16}, "ProtocolError", "a session's key has 16 bytes"),
    "no key": (ALICE, {"mark": 1}, "ProtocolError", "has a key, and the number of a mark"),
    "empty key": (ALICE, {"session_key": b"", "mark": 0}, "ProtocolError", "has a key, and the number of a mark"),
    "mark of text": (ALICE, {"session_key": KEY, "mark": "1"}, "ProtocolError", "the number of a mark"),
    "mark of a truth": (ALICE, {"session_key": KEY, "mark": True}, "ProtocolError", "the number of a mark"),
    "sent below 0": (
        ALICE,
        {"session_key": KEY, "mark": 0, "sent": -1},
        "ProtocolError",
        "how many messages it has sent",
    ),
    "mark below 0": (ALICE, {"session_key": KEY, "mark": -1}, "ProtocolError", "the number of a mark"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_who_cannot_come_back_is_told_why(name: str) -> None:
    """And whose session it is can come back all the same."""
    origin, facts, kind, text = REFUSED[name]
    saved = Saved()
    mark = left(saved)
    assert mark == 1
    files = dict(saved.files)
    later = saved.dispatcher({}, {}, names="x")
    later.origins.update(d=origin, c=ALICE)
    later.hello("d", "client", resends=True, **facts)
    (told,) = later.hears("d")
    assert isinstance(told, m.Goodbye)
    assert told.kind == kind
    assert text in told.text
    assert b"d" not in later.core.service.clients
    saved.work(later)
    assert saved.files == files
    goes_on(saved, later, mark)
    assert set(later.table()) == {1, 2, 3}


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


# numbers and rates


def given(each: Service) -> dict[str, set[int]]:
    """All numbers that a service has given."""
    core = each.core.service
    return {
        "sessions": {client.number for client in core.clients.values()},
        "workers": {worker.number for worker in core.workers.values()},
        "meshes": set(core.meshes),
        "marks": {mark.number for client in core.clients.values() for mark in client.recovery.marks},
        "orders": {core.order},
    }


def test_no_number_comes_twice(tmp_path: Path) -> None:
    """Whatever a dispatcher has given, the next one gives others."""
    saved = Saved()
    seen: dict[str, list[int]] = {}
    for turn in range(4):
        saved.numbers = NumberFile(tmp_path / "marks").numbers
        each = saved.dispatcher({}, {}, names=f"w{turn}-")
        session(each, "d", bytes([turn] * 16))
        each.run(1, 10, [1], "d")
        each.done()
        marked(saved, each, "d")
        for what, numbers in given(each).items():
            assert all(number > max(seen.get(what, [-1])) for number in numbers), what
            seen.setdefault(what, []).extend(numbers)
    assert {what: len(set(numbers)) for what, numbers in seen.items()} == {
        "sessions": 4, "workers": 8, "meshes": 4, "marks": 4, "orders": 4,
    }  # fmt: skip


def test_a_service_that_was_not_there_before_counts_from_the_start(tmp_path: Path) -> None:
    one, other = first_numbers(), NumberFile(tmp_path / "marks").numbers
    assert one.order == other.order == 0
    for a, b in zip(one[:4], other[:4], strict=True):
        assert [next(a) for _ in range(5)] == [next(b) for _ in range(5)]
    assert isinstance(other, Numbers)


def keys(count: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(1, count + 1)]


def test_sessions_that_return_are_not_new_ones() -> None:
    """All of a program's may come at once, in whatever number it had gathered; others are counted as ever, also those that say
    that they return and are not known."""
    burst = PROGRAM_RATE[0]
    cards = [SessionCard(key, ALICE.principal.name, 0, {}, {}) for key in keys(2 * burst)]
    each = Service(0, expected=1, cards=cards)
    for number, key in enumerate(keys(2 * burst)):
        each.origins[f"c{number}"] = ALICE
        each.hello(f"c{number}", "client", resends=True, session_key=key, mark=0)
        assert [type(told) for told in each.hears(f"c{number}")] == [m.Welcome, m.Rewind]
    for number, key in enumerate(keys(3 * burst + 1)[2 * burst :]):
        each.origins[f"d{number}"] = ALICE
        each.hello(f"d{number}", "client", resends=True, session_key=key, mark=0)
        kinds = [type(told) for told in each.hears(f"d{number}")]
        assert kinds == ([m.Welcome, m.Rewind] if number < burst else [m.Goodbye])


def test_a_worker_that_was_being_drained_stays_until_all_sessions_are_back() -> None:
    """They go back on those in service, or on that one, and then it leaves."""
    saved = Saved()
    each = saved.dispatcher({"pid": 7}, {"pid": 8}, {"pid": 9})
    session(each)
    mark = marked(saved, each)
    after = saved.dispatcher(expected=2)
    after.core.service.goes_on(WorkersBefore(2, 0, frozenset({process_key({"pid": 7})})))
    for number in range(3):
        after.join(f"v{number}", marks=True, pid=7 + number)
    assert not after.hears("v0", m.Goodbye)
    rewind = comes_back(saved, after, mark)
    after.say("c", m.Resume(rewind.session, mark))
    ended = after.hears("v0", m.Goodbye)
    restore(after, mark)
    assert after.core.service.clients[b"c"].mesh is not None
    assert set(after.core.service.clients[b"c"].mesh.members) == {4, 5}
    assert [told.kind for told in (*ended, *after.hears("v0", m.Goodbye))] == [m.DRAINED]
