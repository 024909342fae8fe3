"""Sessions that come back from the dispatcher before: what the next one goes on with, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from marking_dispatcher import IMPROVABLE, pass_time, restore
from one_dispatcher import RULES, Service
from saved_sessions import ALICE, BOB, KEY, Saved, comes_back, goes_on, left, marked, session

from gt.dispatcher.session_plans.plan_selection import SWITCH_AT
from gt.dispatcher.state.events import Lost
from gt.dispatcher.state.mark_bytes import read_card
from gt.ir.instruction_bytes import pack_plan, unpack_plan
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.wire.principals import Origin

OTHER = bytes(16)
SLOW, FAST = ({"host": f"host{speed}", "speed": [speed * 1e9, speed * 1e9]} for speed in (1, 3))


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
