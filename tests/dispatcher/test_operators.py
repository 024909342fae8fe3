"""What operators order: sessions that are paused, go on, end, or have another share; who may, and what is recorded of it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from marking_dispatcher import lose, service
from one_dispatcher import Service, configure, started

from gt.dispatcher.operators.audit import MAX_PRINCIPALS, MAX_RECORDS, MAX_REFUSALS, AuditRecord, AuditTrail
from gt.dispatcher.operators.orders import ENDED_TEXT, PAUSED_NOTICE, RESUMED_NOTICE
from gt.dispatcher.pacing.priority import BATCH
from gt.dispatcher.state.events import ConfigRead, Tick
from gt.dispatcher.state.message_state import WAITING_OPERATOR
from gt.dispatcher.state.records import ClientRecord
from gt.wire import messages as m
from gt.wire.principals import OBSERVER, OPERATOR, Origin, Principal

CAPABILITIES = ("cancel", "control sessions", "drain", "reload", "restart", "take over")


def operated(each: Service) -> Service:
    """A service with an operator "op"."""
    each.core.facts["capabilities"].extend(CAPABILITIES)
    each.origins["op"] = Origin(Principal("key op", frozenset({OPERATOR})), 77)
    each.hello("op", "watcher")
    each.told.clear()
    return each


def order(each: Service, action: str, value: str = "", watcher: str = "op", client: str = "c") -> Any:
    """What is answered."""
    each.say(watcher, m.ControlSession(5, session(each, client).number, action, value))
    (answer,) = each.hears(watcher, m.Answer, m.Failed)
    assert answer.request == 5
    return answer


def session(each: Service, client: str = "c") -> ClientRecord:
    return each.core.service.clients[client.encode()]


def issued(each: Service) -> int:
    return len(each.hears("w0", m.Execute, m.Store, m.Collect))


def test_a_paused_session_waits_without_an_error_and_goes_on() -> None:
    """It is told once, and nothing that it asks for begins; others and its pings go on."""
    each = operated(started(1))
    each.client("d")
    assert order(each, "pause").facts["paused"] is True
    assert order(each, "pause").facts["paused"] is True
    assert [told.text for told in each.hears("c", m.Notice)] == [PAUSED_NOTICE]
    each.run(1, 2, [1])
    each.put(3)
    each.say("c", m.Fetch(1, 2), m.Ping(), m.Free([]))
    each.put(1, "d")
    assert issued(each) == 1, "what the other one asks for"
    assert session(each).head is WAITING_OPERATOR
    assert not each.hears("c")
    assert order(each, "resume").facts["paused"] is False
    assert [told.text for told in each.hears("c", m.Notice)] == [RESUMED_NOTICE]
    assert issued(each) == 3


def test_a_session_that_waits_for_its_turn_is_paused_there() -> None:
    """Its turn passes, and it takes no place."""
    each = operated(started(1))
    each.client("d")
    each.put(1, "d")
    each.define(1, client="d")
    for client in ("c", "d"):
        each.run(1, 2, [1], client)
        each.say("w0", m.Done(each.core.service.order, [10**8]))
    each.hears("w0")
    for n in range(3):
        each.run(1, 10 + n, [1])
        each.run(1, 10 + n, [1], "d")
    order(each, "pause")
    for _ in range(4):
        each.done()
    assert session(each).head is WAITING_OPERATOR
    assert not session(each, "d").queue
    order(each, "resume")
    each.done()
    assert not session(each).queue


@given(st.lists(st.sampled_from(["pause", "resume", "run", "fetch", "cancel", "done", "tick"]), max_size=25))
def test_whatever_is_paused_when_everything_is_issued_once_in_order(steps: list[str]) -> None:
    """Unless it is cancelled, a pause delays and drops nothing."""
    each = operated(started(1))
    base, orders, fetches, cancelled = 10, 0, 0, False
    for step in [*steps, "resume", *["done"] * 40]:
        if step in ("pause", "resume"):
            order(each, step)
        elif step == "run":
            each.run(1, base, [1])
            base += 1
        elif step == "fetch":
            each.say("c", m.Fetch(base, 1))
            fetches += 1
        elif step == "cancel":
            each.say("op", m.Cancel(1, session(each).number))
            each.hears("op")
            cancelled = True
        elif step == "done":
            each.done()
        else:
            each.event(Tick())
        told = each.hears("w0", m.Execute)
        if not cancelled:
            assert [execute.base for execute in told] == [*range(10 + orders, 10 + orders + len(told))]
        orders += len(told)
    assert cancelled or orders == base - 10
    assert not session(each).queue


def test_a_session_that_goes_back_stays_as_it_was_ordered() -> None:
    """Paused, and with its class and weight: also those that it has said itself."""
    each = operated(service(2))
    order(each, "pause")
    order(each, "priority", "batch")
    order(each, "weight", "2.5")
    lose(each, "w0")
    assert each.hears("c", m.Rewind)
    after = session(each)
    assert (after.paused, after.priority, after.weight) == (True, BATCH, 2.5)


def test_class_and_weight_hold_for_the_next_plan() -> None:
    each = operated(started(1))
    assert order(each, "priority", "batch").facts["priority"] == "batch"
    assert order(each, "weight", "3").facts["weight"] == 3.0
    paced = each.core.service.pacer.sessions[session(each).number]
    assert (paced.priority, paced.weight) == (BATCH, 3.0)
    for action, value in (("priority", "urgent"), ("weight", "0"), ("weight", "nan"), ("weight", "x"), ("kill", "")):
        assert isinstance(order(each, action, value), m.Failed)
    assert (paced.priority, paced.weight) == (BATCH, 3.0)


def test_a_program_cannot_take_back_what_was_ordered() -> None:
    """Neither by a config nor by one that it sends again after a loss; what was not ordered it may say."""
    each = operated(started(1))
    order(each, "priority", "batch")
    configure(each, {"priority": "interactive", "weight": 2})
    assert (session(each).priority, session(each).weight) == (BATCH, 2.0)
    order(each, "weight", "0.5")
    configure(each, {"priority": "interactive", "weight": 4})
    assert (session(each).priority, session(each).weight) == (BATCH, 0.5)


def test_an_ended_session_is_told_why() -> None:
    each = operated(started(1))
    number = session(each).number
    assert order(each, "end").facts["client"] == number
    (told,) = each.hears("c", m.Goodbye)
    assert told == m.Goodbye("SessionError", ENDED_TEXT)
    assert not each.core.service.clients
    each.say("c", m.Fetch(1, 1))
    assert each.hears("c") == [told], "it may not have heard of it, as its connection was cut"
    each.say("op", m.ControlSession(6, number, "end", ""))
    (failed,) = each.hears("op", m.Failed)
    assert "not there" in failed.text


def test_the_config_is_read_by_the_shell_and_answered_then() -> None:
    each = operated(started(1))
    for error in ("", "gt.yaml:1: no such key"):
        each.say("op", m.ReloadConfig(9))
        assert not each.hears("op", m.Answer, m.Failed)
        assert [asked.request for asked in each.core.orders.rereads] == [9]
        each.event(ConfigRead(error))
        (answer,) = each.hears("op", m.Answer, m.Failed)
        assert answer == (m.Failed(9, "ConfigError", error) if error else m.Answer(9, {}))
    assert [record.outcome for record in each.core.orders.audit.take()] == ["done", "failed"]


ALL_ORDERS = (
    m.Cancel(1, 1), m.ControlSession(1, 1, "end", ""), m.Drain(1, 0, True), m.Drain(1, 0, False), m.HandOver(1, True, True),
    m.ReloadConfig(1), m.TakeOver(1),
)  # fmt: skip


def test_an_observer_is_refused_and_that_is_recorded() -> None:
    """Whatever its monitor shows; and of a service that does not offer it, so is an operator."""
    each = operated(started(1))
    each.origins["sees"] = Origin(Principal("key sees", frozenset({OBSERVER})))
    each.hello("sees", "watcher")
    each.hears("sees")
    for message in ALL_ORDERS:
        each.say("sees", message)
        (failed,) = each.hears("sees", m.Answer, m.Failed)
        assert failed.text.startswith("only an operator ")
        (record,) = each.core.orders.audit.take()
        assert (record.who, record.outcome) == ("key sees", "refused")
    assert b"c" in each.core.service.clients
    assert not each.core.orders.rereads
    each.core.facts["capabilities"].clear()
    assert isinstance(order(each, "pause"), m.Failed)


def test_what_is_done_is_recorded_and_a_question_is_not() -> None:
    each = operated(started(2))
    each.hello("op2", "watcher")
    order(each, "weight", "2")
    each.say("op", m.Drain(1, 1, False), m.Drain(1, 1, True), m.Cancel(1, 99))
    records = each.core.orders.audit.take()
    assert [(each.action, each.subject, each.value, each.outcome) for each in records] == [
        ("weight", "client 1", "2", "done"),
        ("drain", "worker 1", "", "failed"),
        ("drain", "worker 1", "", "done"),
        ("cancel", "client 99", "", "failed"),
    ]
    assert {(each.who, each.process) for each in records} == {("key op", "77")}


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.booleans(), st.floats(0, 50)), max_size=200))
def test_refusals_push_out_no_other_record_and_all_are_counted(steps: list[tuple[str, bool, float]]) -> None:
    """What is done is always recorded; refusals of a principal at most so often, and the rest as numbers."""
    trail, now = AuditTrail(), 0.0
    counted = dict.fromkeys("ab", 0)
    done = 0
    for who, refused, later in steps:
        now += later
        trail.note(AuditRecord(who, "1", "end", "client 1", "", "refused" if refused else "done", ""), now)
        counted[who] += 1
        done += not refused
    told = trail.take()
    assert sum(each.outcome == "done" for each in told) == done
    for who in "ab":
        left = trail.refusals[who].untold if who in trail.refusals else 0
        assert sum(1 + each.untold for each in told if each.who == who) + left == counted[who]


def test_the_trail_is_bounded() -> None:
    trail = AuditTrail()
    for n in range(MAX_PRINCIPALS * 4):
        for _ in range(MAX_REFUSALS + 5):
            trail.note(AuditRecord(f"key {n}", "1", "end", "client 1", "", "refused", "x" * 10_000), float(n))
    assert len(trail.refusals) <= MAX_PRINCIPALS + 1
    assert len(trail.records) == MAX_RECORDS
    assert trail.lost > 0
    assert max(len(each.text) for each in trail.take()) == 500
