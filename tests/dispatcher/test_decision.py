"""Why a session waits: who may ask, what the answer says of each reason, and that it is bounded."""

from __future__ import annotations

from typing import Any

import pytest
from measured_calls import counted_steps
from one_dispatcher import Service, started

from gt.bounds import MAX_PRINCIPAL_UNREAD_BYTES, MAX_UNREAD_BYTES
from gt.dispatcher.limits.limit_table import LimitTable, PrincipalLimits
from gt.dispatcher.operators.decision import MAX_SESSIONS
from gt.dispatcher.state.events import NewLimits, Received, Tick
from gt.monitor.session_wait import lines
from gt.wire import messages as m
from gt.wire.principals import ALL_ROLES, OBSERVER, OPERATOR, USER, Origin, Principal

SESSIONS = 50
MAX_STEPS = 40_000
"""Lines of Python that take about 2 ms."""
LONG = 10**8
"""The nanoseconds of a long plan."""


def come(each: Service, peer: str, user: str) -> int:
    """A client of a user with a tensor and a definition. Returns its number."""
    each.origins[peer] = Origin(Principal(f"user {user}", frozenset({USER})))
    each.client(peer)
    each.put(1, peer)
    each.define(1, client=peer)
    return each.core.service.clients[peer.encode()].number


def ask(each: Service, user: str, client: int, *roles: Any, role: str = "inquirer") -> Any:
    """The answer to a question of a user with these roles."""
    peer = f"{role}-{user}"
    if peer.encode() not in each.core.subscribers.watchers:
        each.origins[peer] = Origin(Principal(f"user {user}", frozenset(roles or {USER})))
        each.hello(peer, role)
        assert each.hears(peer, m.Welcome)
    each.say(peer, m.ExplainSession(1, client))
    return each.hears(peer)[-1]


def shared() -> tuple[Service, int, int]:
    """A worker that runs a long plan of user b while one of user a waits: the service, and their clients' numbers."""
    each = Service(1)
    a, b = come(each, "c", "a"), come(each, "d", "b")
    for peer in "cd":
        each.run(1, 5, [1], peer)
        each.say("w0", m.Done(each.core.service.order, [LONG]))
    each.run(1, 6, [1], "d")
    for base in (6, 7, 8):
        each.run(1, base, [1], "c")
    each.now += 0.25
    return each, a, b


def test_an_operator_is_told_whose_plans_run_and_a_user_only_that_they_are_anothers() -> None:
    each, a, b = shared()
    for who, roles, named in (("root", tuple(ALL_ROLES), True), ("op", (OPERATOR,), True), ("a", (USER,), False)):
        answer = ask(each, who, a, *roles).facts
        whose = f"client {b} of user b" if named else "others"
        assert "\n".join(lines(answer)) == (
            f"client {a} of user a (normal, it said auto) is waiting for its share (250 ms so far): others' plans have their "
            "turns first on workers [0]; 2 messages wait behind that\n"
            f"  worker 0: in flight: 1 plan of {whose} (100 ms); its share there is 50% now\n"
            "  granted: weight 1"
        )


@pytest.mark.parametrize("roles", [(USER,), (OBSERVER,)])
def test_who_is_no_operator_asks_about_their_own_sessions_alone(roles: Any) -> None:
    each, a, b = shared()
    refused = ask(each, "a", b, *roles)
    assert isinstance(refused, m.Failed)
    assert refused.text == f"client {b} is no session of user a, or has ended; an operator may ask about every one"
    assert [one["session"] for one in ask(each, "a", 0, *roles).facts["sessions"]] == [a]
    assert [one["session"] for one in ask(each, "op", 0, OPERATOR).facts["sessions"]] == [a, b]
    assert ask(each, "op", 77, OPERATOR).text == "client 77 is not there (any more)"


def test_an_inquirer_gets_no_events() -> None:
    each, a, _ = shared()
    ask(each, "a", a)
    each.say("inquirer-a", m.Watch(1, 0))
    assert isinstance(each.hears("inquirer-a")[-1], m.Goodbye)
    assert each.core.service.recording is None


def test_a_monitor_asks_on_its_own_connection() -> None:
    each, a, _ = shared()
    assert ask(each, "op", a, OPERATOR, role="watcher").facts["sessions"][0]["session"] == a


def test_each_limit_that_holds_a_session_is_named() -> None:
    """The rate, with the time until it goes on; the queue, with the position; and what is granted."""
    each = Service(1)
    row = PrincipalLimits(2.0, 0.25, 1 << 30, 4, 1, "wait", 1.0, "normal")
    each.event(NewLimits(LimitTable({"user a": row})))
    a = come(each, "c", "a")
    each.origins["e"] = each.origins["c"]
    each.hello("e", "client", bulk=b"bulk-e")
    each.run(1, 5, [1], "c")
    each.run(1, 6, [1], "c")
    assert "\n".join([*lines(ask(each, "a", a).facts), *lines(ask(each, "a", 0).facts)][:4]) == (
        f"client {a} of user a (normal, it said auto) is waiting for its rate (10 ms more): its principal, user a, may "
        "issue 1 instructions a second\n"
        "  worker 0: in flight: 1 plan of its own (0.002 ms); its share there is 100% now\n"
        "  granted: weight 2, 25% of the time reserved, 1 session at a time (1 now), 4 workers, 1,073,741,824 bytes on each "
        "worker, 1 instructions a second, class normal at most\n"
        f"client {a} of user a (normal, it said auto) is waiting for its rate (10 ms more): its principal, user a, may "
        "issue 1 instructions a second"
    )
    assert [*lines(ask(each, "a", 0).facts)][-1] == (
        "a session of user a is number 1 in the queue: user a may have 1 session at a time"
    )


def test_an_answer_is_bounded() -> None:
    each = started(1)
    for n in range(MAX_SESSIONS + 3):
        each.now += 1.0
        come(each, f"c{n}", "a")
    answer = ask(each, "op", 0, OPERATOR).facts
    assert (len(answer["sessions"]), answer["more"]) == (MAX_SESSIONS, 4)
    assert "… and 4 more; name one by its number" in [*lines(answer)]


def test_questions_and_sessions_that_wait_take_few_steps_beside_many() -> None:
    """About as many lines of Python for each of the other sessions as two milliseconds allow where there are 900."""
    each = Service(1)
    numbers = []
    for n in range(SESSIONS):
        each.now += 1.0
        numbers.append(come(each, f"c{n}", f"{n % 7}"))
    for base in (5, 6):
        for n in range(SESSIONS):
            each.run(1, base, [1], f"c{n}")
            if base == 5:
                each.say("w0", m.Done(each.core.service.order, [LONG]))
    each.event(NewLimits(LimitTable({}, PrincipalLimits(sessions=1))))
    assert len(each.core.service.pacer.waiting) > SESSIONS / 2
    asker = Origin(Principal("user op", frozenset({OPERATOR})))
    each.origins["inquirer-op"] = asker
    each.hello("inquirer-op", "inquirer")
    events = [Received(b"inquirer-op", m.ExplainSession(1, number), origin=asker) for number in (0, numbers[-1])]
    hello = m.Hello(m.VERSION, "client", {"bulk": b"bulk-late"})
    events += [Received(b"late", hello, origin=each.origins["c0"]), NewLimits(LimitTable({})), Tick()]
    for event in events:
        steps = counted_steps(lambda event=event: each.told_by_event(event))  # type: ignore[misc]
        assert steps <= MAX_STEPS / 900 * SESSIONS + 2000, event


@pytest.mark.parametrize("many", [1, 40])
def test_who_asks_and_reads_no_answers_is_ended(many: int) -> None:
    """What all who ask for one principal leave unread is bounded."""
    each, a, _ = shared()
    peers = [f"inquirer-{n}" for n in range(many)]
    for peer in peers:
        each.origins[peer] = Origin(Principal("user a", frozenset({USER})))
        each.hello(peer, "inquirer")
    most = min(MAX_UNREAD_BYTES, MAX_PRINCIPAL_UNREAD_BYTES // many)
    each.event(Received(peers[0].encode(), m.ExplainSession(1, a), most, each.origins[peers[0]]))
    assert [type(told) for told in each.hears(peers[0])] == [m.Welcome, m.Answer]
    each.event(Received(peers[0].encode(), m.ExplainSession(2, a), most + 1, each.origins[peers[0]]))
    (told,) = each.hears(peers[0])
    assert (type(told), told.kind) == (m.Goodbye, "ProtocolError")
    assert peers[0].encode() not in each.core.subscribers.watchers
    each.event(Received(b"c", m.Ping(), 0))


def test_who_waits_for_its_own_plans_is_not_told_that_others_have_turns_first() -> None:
    """It is alone on its worker, which has 20 ms of its plans."""
    each = Service(1)
    number = come(each, "c", "a")
    for _ in range(2):
        each.run(1, 5, [1], "c")
        each.say("w0", m.Done(each.core.service.order, [LONG]))
    for base in range(6, 12):
        each.run(1, base, [1], "c")
    text = "\n".join(lines(ask(each, "a", number).facts))
    assert "is waiting for its share" in text
    assert "workers [0] have enough to do with its own plans that are in flight" in text
    assert "others" not in text
    each.say("w0", m.Done(each.core.service.order, [LONG]))
