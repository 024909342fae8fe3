"""Sessions that share workers: how much each has in flight, and whose plan is issued next (`dispatcher/pacing`)."""

from __future__ import annotations

import pytest
from builders import Lines
from one_dispatcher import VECTOR, Service, started

from gt.dispatcher.limits.limit_table import LimitTable, PrincipalLimits
from gt.dispatcher.pacing.priority import AUTO, BATCH, Entitlement, Priority
from gt.dispatcher.state.events import NewLimits
from gt.dispatcher.state.message_state import WAITING_SHARE
from gt.dispatcher.state.shared_state import CREDITS_AT_ONCE, MESH_CREDITS
from gt.ir.instruction import Segment
from gt.sharding.options import PRIORITIES
from gt.wire import messages as m
from gt.wire.principals import OWN_PROCESS

LONG = 10**8
"""The nanoseconds of a long plan."""


def shared(**seconds: int) -> Service:
    """A worker that two sessions use, c and d, whose plans are known to take so many nanoseconds."""
    each = started(1)
    each.client("d")
    each.put(1, "d")
    each.define(1, client="d")
    for client, nanoseconds in seconds.items():
        for base in (2, 3):
            each.run(1, base, [1], client)
            each.say("w0", m.Done(each.core.service.order, [nanoseconds]))
    each.hears("w0")
    each.hears("c")
    return each


def issued(each: Service) -> list[int]:
    """Whose plans the worker was sent since the last time."""
    return [told.client for told in each.hears("w0", m.Execute)]


def head(each: Service, client: str) -> object:
    return each.core.service.clients[client.encode()].head


def test_limits_hold_from_the_next_turn_on() -> None:
    """Weights, what is reserved and the class, of sessions that are there and of those that come."""
    each = shared(c=1000, d=1000)
    pacer, clients = each.core.service.pacer, each.core.service.clients
    each.event(NewLimits(LimitTable({OWN_PROCESS.principal.name: PrincipalLimits(2.0, 0.25, priority="batch")})))
    each.client("e")
    each.put(1, "e")
    for client in "cde":
        number = clients[client.encode()].number
        assert pacer.kind(number) == "batch"
        assert pacer.sessions[number].entitlement == Entitlement(2.0, 0.25, BATCH)
    each.event(NewLimits(LimitTable({})))
    assert all(known.entitlement == Entitlement() for known in pacer.sessions.values())


def test_the_service_s_config_says_it_for_who_says_nothing() -> None:
    each = Service(1, config={"priority": "batch", "weight": 3})
    each.hello("c", "client", bulk=b"bulk-c")
    each.hello("d", "client", bulk=b"bulk-d", priority="normal", weight=2.0)
    known = [each.core.service.clients[peer] for peer in (b"c", b"d")]
    assert [(client.priority, client.weight) for client in known] == [(BATCH, 3.0), (Priority.NORMAL, 2.0)]


def in_signals(*signals: str) -> Segment:
    """A chain of operations, each in one of these signals."""
    lines = Lines()
    value = lines.input(*VECTOR.shape)
    for signal in signals:
        value = lines.op("neg", value, signal=(signal,) if signal else ())
    return lines.segment(value)


def test_a_plan_has_the_class_that_all_its_signals_say() -> None:
    """The most urgent one; the session's where a part says none, where an operator has ordered that, and at most what the
    principal is granted."""
    rules = {"ask": {"priority": "interactive"}, "scan": {"priority": "batch"}}
    each = started(1, config={"priority": "normal", "sharding_config": rules})
    segments = {2: ("ask",), 3: ("scan", "scan"), 4: ("scan", "ask"), 5: ("ask", "")}
    for number, signals in segments.items():
        each.define(number, in_signals(*signals))
    pacer, client = each.core.service.pacer, each.core.service.clients[b"c"]

    def classes(base: int) -> list[str]:
        found = []
        for number in (2, 3, 4, 5, 1):
            each.run(number, base + 10 * number, [1])
            found.append(pacer.kind(client.number))
            each.done()
        return found

    assert classes(100) == ["interactive", "batch", "interactive", "normal", "normal"]
    each.event(NewLimits(LimitTable({OWN_PROCESS.principal.name: PrincipalLimits(priority="normal")})))
    assert classes(200) == ["normal", "batch", "normal", "normal", "normal"]
    each.event(NewLimits(LimitTable({})))
    client.ordered = frozenset({"priority"})
    assert classes(300) == ["normal"] * 5


def test_a_plan_of_a_class_waits_as_sessions_of_that_class_do() -> None:
    """Of a session whose plans are batch work in one signal, those have their turns when nobody else waits."""
    rules = {"scan": {"priority": "batch"}}
    each = started(1, config={"sharding_config": rules})
    for client in "de":
        each.client(client)
        each.put(1, client)
        each.define(1, client=client)
    each.define(2, in_signals("scan"))
    for client, number in (("c", 2), ("d", 1), ("e", 1)):
        for base in (10, 11):
            each.run(number, base, [1], client)
            each.say("w0", m.Done(each.core.service.order, [LONG]))
    each.hears("w0")
    numbers = {name: each.core.service.clients[name.encode()].number for name in "cde"}
    each.run(1, 20, [1], "e")
    for name, number in (("c", 2), ("d", 1), ("e", 1)):
        each.run(number, 30, [1], name)
    order = []
    while running := issued(each):
        order += running
        finish(each, LONG)
    assert order[-1] == numbers["c"]
    assert {*order} == {*numbers.values()}


def finish(each: Service, nanoseconds: int) -> None:
    """The worker finishes the oldest plan."""
    each.say("w0", m.Done(min(each.core.service.issued), [nanoseconds]))


def test_a_fetch_waits_for_what_runs_and_not_for_what_another_session_has_queued() -> None:
    """One long plan of a worker that several sessions use is in flight, and the other session has the next turn."""
    each = shared(c=LONG, d=1000)
    for n in range(10):
        each.run(1, 10 + n, [1])
    c = each.core.service.clients[b"c"].number
    assert issued(each) == [c]
    assert head(each, "c") is WAITING_SHARE
    each.run(1, 10, [1], "d")
    each.say("d", m.Fetch(1, 10))
    assert not each.hears("w0", m.Execute, m.Collect)
    finish(each, LONG)
    assert [type(told) for told in each.hears("w0")] == [m.Execute, m.Collect, m.Execute]
    finish(each, 1000)
    finish(each, LONG)
    assert issued(each) == [c]


def test_short_plans_are_in_flight_as_many_as_take_some_milliseconds() -> None:
    """Not more than credits allow, and not one by one."""
    each = shared(c=1_000_000, d=1000)
    for n in range(20):
        each.run(1, 10 + n, [1])
    assert len(issued(each)) == 5
    each = shared(c=1000, d=1000)
    for n in range(MESH_CREDITS + 4):
        each.run(1, 10 + n, [1])
    assert len(issued(each)) == MESH_CREDITS


def test_a_worker_of_one_session_alone_is_never_without_a_plan() -> None:
    """Two of its plans are in flight, however long they are."""
    each = started(1)
    each.run(1, 2, [1])
    each.say("w0", m.Done(each.core.service.order, [LONG]))
    each.hears("w0")
    for n in range(4):
        each.run(1, 10 + n, [1])
    assert len(issued(each)) == 2


def test_what_waits_for_its_share_goes_on_when_the_other_session_leaves() -> None:
    """What that one had in flight counts as finished."""
    each = shared(c=LONG, d=LONG)
    each.run(1, 10, [1], "d")
    each.run(1, 10, [1])
    assert head(each, "c") is WAITING_SHARE
    each.say("d", m.Goodbye("", ""))
    assert issued(each)[-1] == each.core.service.clients[b"c"].number


def test_a_session_that_leaves_while_it_waits_leaves_nothing() -> None:
    """Nor does one whose work is cancelled."""
    each = shared(c=LONG, d=LONG)
    each.run(1, 10, [1], "d")
    each.run(1, 10, [1])
    each.run(1, 11, [1])
    each.core.queues.cancel(each.core.service.clients[b"c"])
    assert not each.core.service.clients[b"c"].queue
    each.run(1, 12, [1])
    each.say("c", m.Goodbye("", ""))
    finish(each, LONG)
    assert not each.core.service.pacer.waiting
    assert len(each.core.service.pacer.lanes) == 1


def test_a_plan_that_waits_for_its_share_is_picked_once() -> None:
    """A run counts once for its plan, however often its turn is looked for."""
    each = shared(c=LONG, d=LONG)
    each.run(1, 10, [1], "d")
    (cached,) = each.core.service.clients[b"c"].plans.values()
    before = cached.runs
    each.run(1, 10, [1])
    for _ in range(3):
        each.core.queues.pump(each.core.service.clients[b"c"])
    finish(each, LONG)
    assert cached.runs == before + 1


def test_who_waits_for_its_share_is_credited_in_lumps() -> None:
    """It has more to send than it may yet, so a credit for each plan would only wake it. At the end it hears of all."""
    each = shared(c=LONG, d=LONG)
    count = CREDITS_AT_ONCE + 3
    before = each.core.service.clients[b"c"].credited
    for n in range(count):
        each.run(1, 10 + n, [1])
    lumps = []
    for ended in range(1, count + 1):
        finish(each, LONG)
        lumps += [(ended, credit.done - before) for credit in each.hears("c", m.Credit)]
    assert lumps == [(CREDITS_AT_ONCE, CREDITS_AT_ONCE), (count, count)]


def test_the_end_of_a_plan_looks_at_no_queue_that_waits_on_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only at that of whose turn it is, and at queues that waited for something else; and each plan has its turn."""
    each = shared(c=LONG, d=LONG)
    for n in range(3):
        for client in "cd":
            each.run(1, 10 + n, [1], client)
    service, looked, pump = each.core.service, list[int](), each.core.queues.pump
    monkeypatch.setattr(each.core.queues, "pump", lambda client: (looked.append(client.number), pump(client)))
    numbers = [service.clients[name].number for name in (b"c", b"d")]
    order, waited_on = issued(each), 0
    while service.issued:
        waited = {*service.pacer.waiting}
        looked.clear()
        finish(each, LONG)
        turns = issued(each)
        assert not (waited - {*turns}) & {*looked}
        waited_on += len(waited - {*turns})
        order += turns
    assert waited_on
    assert [order.count(number) for number in numbers] == [3, 3]


def test_measurements_are_the_first_members() -> None:
    """Each member reports; one of them is believed, so that a report costs the same on any number of workers."""
    each = started(2, config={"mesh": {"workers": 2}, "sharding_config": {"x": {"strategy": "replicate"}}})
    each.run(1, 10, [1])
    (cached,) = each.core.service.clients[b"c"].plans.values()
    each.say("w1", m.Done(each.core.service.order, [7_000_000]))
    assert cached.run_time.nanoseconds != 7_000_000
    each.say("w0", m.Done(each.core.service.order, [3_000_000]))
    assert cached.run_time.nanoseconds == 3_000_000


def test_reports_that_nobody_measured_leave_the_cost_model_s_word() -> None:
    """As from a GPU, whose plans are not over when they are reported, or from a put among plans."""
    each = started(1)
    each.run(1, 10, [1])
    (cached,) = each.core.service.clients[b"c"].plans.values()
    before = cached.run_time.nanoseconds
    for nanoseconds in ([], [0], [0, 0], [5, 5, 5, 5, 0]):
        each.run(1, 11, [1])
        each.say("w0", m.Done(each.core.service.order, nanoseconds))
        each.say("c", m.Free([11]))
    assert cached.run_time.nanoseconds == before


def test_a_session_says_its_class_and_weight_when_it_joins() -> None:
    """What is not allowed counts as not said: it is a matter of the session alone."""
    each = Service(1)
    for name, facts in (
        ("a", {"priority": "batch", "weight": 4.0}),
        ("b", {}),
        ("c", {"priority": "root", "weight": 1e9}),
        ("d", {"priority": ["batch"], "weight": float("nan")}),
    ):
        each.client(name, **facts)
        each.put(1, name)
    paced = [each.core.service.pacer.sessions[number] for number in sorted(each.core.service.by_number)]
    assert [(session.priority, session.weight) for session in paced] == [(BATCH, 4.0), *[(AUTO, 1.0)] * 3]
    assert [*map(str, Priority)] == [*PRIORITIES]
