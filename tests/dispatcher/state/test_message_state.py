"""The states of a client's message: the table is whole, nothing else happens, and each wait is one that messages are in."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from builders import Lines
from marking_dispatcher import lose, service, settled_mark
from one_dispatcher import NEG, RULES, Service, started

from gt.bounds import MAX_UNREAD_BYTES
from gt.dispatcher.handlers.fetches import MAX_UNDER_WAY
from gt.dispatcher.handlers.message_queues import MESSAGES_PER_TURN
from gt.dispatcher.limits.limit_table import LimitTable, PrincipalLimits
from gt.dispatcher.message_table import HANDLERS, MESSAGES, Role
from gt.dispatcher.session_plans.plan_selection import SWITCH_AT
from gt.dispatcher.state.events import OWN_MESSAGES, JobTurn, Lost, NewLimits, Received
from gt.dispatcher.state.message_state import TRANSITIONS, WAITS, MessageState, enter
from gt.dispatcher.state.shared_state import MAX_TO_COMPILE_ALONE, MESH_CREDITS
from gt.ir.instruction import Segment
from gt.sharding.config import Config
from gt.wire import messages as m

ENDS = {MessageState.DONE, MessageState.FAILED, MessageState.DROPPED}


def head(each: Service) -> MessageState:
    return each.core.service.clients[b"c"].head


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.CLIENT, m.FROM_CLIENT),
        (Role.WORKER, m.FROM_WORKER),
        (Role.PULSE, m.FROM_PULSE),
        (Role.WATCHER, m.FROM_WATCHER),
        (Role.STANDBY, m.FROM_STANDBY),
        (Role.INQUIRER, m.FROM_INQUIRER),
    ],
)
def test_the_table_of_handlers_has_what_each_role_may_send(role: Role, allowed: tuple[type, ...]) -> None:
    assert {*HANDLERS[role], m.Hello} == set(allowed)
    assert all(role in MESSAGES[kind][0] for kind in HANDLERS[role])


def test_whatever_a_client_queues_has_a_handler() -> None:
    queued = {kind for kind, (roles, _) in MESSAGES.items() if roles == (Role.CLIENT,)}
    queued -= {m.Resume, m.Settled, m.RequestMark}
    assert set(started().core.queues.handlers) == {*queued, *OWN_MESSAGES}


def test_every_state_has_a_row_and_every_wait_begins_and_ends_with_acting() -> None:
    assert set(TRANSITIONS) == set(MessageState)
    assert TRANSITIONS[MessageState.ACTING] == {*WAITS, MessageState.DONE, MessageState.FAILED}
    assert all(MessageState.ACTING in TRANSITIONS[state] for state in WAITS)
    assert {state for state, following in TRANSITIONS.items() if not following} == ENDS


def test_a_change_that_is_not_in_the_table_is_refused() -> None:
    client = started().core.service.clients[b"c"]
    kept = client.head
    for before, after in itertools.product(MessageState, repeat=2):
        client.head = before
        if after in TRANSITIONS[before]:
            enter(client, after)
            assert client.head is after
        else:
            with pytest.raises(RuntimeError, match=f"that is {before} cannot be {after}"):
                enter(client, after)
            assert client.head is before
    client.head = kept


def chain(*, signal: tuple[str, ...] = ()) -> Segment:
    """A parameter and some instructions on it."""
    lines = Lines()
    last = lines.op("tag", lines.input(4), signal=signal, param=True)
    for _ in range(4):
        last = lines.op("neg", last, signal=signal)
    return lines.segment(last)


def busy(workers: int = 1, segment: Segment = NEG, **more: Any) -> Service:
    """A client that has put tensor 1 and defined segment 1, at a dispatcher that has no time for jobs any more."""
    each = Service(workers, **more)
    each.client()
    each.put(1)
    each.define(1, segment)
    each.done()
    each.idle = False
    return each


def work(each: Service) -> None:
    """Do what jobs there are."""
    while each.core.busy:
        each.event(JobTurn())


def waits_for_its_reader() -> Service:
    each = started()
    each.event(Received(b"c", m.Fetch(5, 1), MAX_UNREAD_BYTES + 1))
    return each


def waits_for_a_turn() -> Service:
    """More messages are in the queue than one event acts on, when what the first waited for comes."""
    each = started()
    each.idle = False
    each.put(2, bulk=True)
    each.say("c", m.Fetch(3, 2), *(m.Free([100 + n]) for n in range(MESSAGES_PER_TURN)))
    each.say("w0", m.Landed(1, 2))
    return each


def waits_for_workers() -> Service:
    each = Service(1, expected=2)
    each.client()
    each.put(1)
    return each


def waits_for_a_config() -> Service:
    each = busy()
    each.say("c", m.Configure(7, Config.from_plain({"mesh": {"data": 1}}).to_wire()))
    return each


def waits_for_its_definition() -> Service:
    each = busy()
    each.define(2)
    return each


def waits_for_strategies() -> Service:
    config = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "auto"}}}
    each = busy(2, chain(signal=("net",)), config=config)
    each.run(1, 10, [1])
    while head(each) is MessageState.WAITING_PLAN:  # it is seen which rules are undecided
        each.core.handle(JobTurn(), each.now)
    return each


def waits_for_a_plan() -> Service:
    each = busy()
    each.run(1, 10, [1])
    return each


def waits_for_a_search() -> Service:
    each = busy(2, chain(), config=RULES)
    for number in range(SWITCH_AT):
        each.run(1, 10 * (number + 1), [1])
        if head(each) is MessageState.WAITING_PLAN:
            work(each)
    return each


def waits_for_compilation() -> Service:
    each = busy()
    for worker in each.core.service.workers.values():
        worker.fresh.append((each.core.service.place(each.core.service.clients[b"c"].mesh), MAX_TO_COMPILE_ALONE))
        worker.to_compile += MAX_TO_COMPILE_ALONE
    each.run(1, 10, [1])
    work(each)
    return each


def waits_for_a_put() -> Service:
    each = started(2)
    each.put(2, bulk=True)
    each.run(1, 10, [2])
    return each


def waits_for_credit() -> Service:
    each = started()
    for number in range(MESH_CREDITS + 1):
        each.run(1, 10 + number, [1])
    return each


def waits_for_its_share() -> Service:
    each = started()
    each.run(1, 10, [1])
    each.say("w0", m.Done(each.core.service.order, [10**9]))
    for number in range(3):
        each.run(1, 11 + number, [1])
    return each


def waits_for_an_operator() -> Service:
    each = started(capabilities=("control sessions",))
    each.hello("op", "watcher")
    each.say("op", m.ControlSession(1, 1, "pause", ""))
    each.run(1, 10, [1])
    return each


def waits_for_an_idle_mesh() -> Service:
    each = started()
    each.run(1, 10, [1])
    each.say("c", m.Configure(7, Config.from_plain({"mesh": {"data": 1}}).to_wire()))
    return each


def waits_for_a_migration() -> Service:
    each = started(2, config={"mesh": {"data": 1}})
    each.say("c", m.Configure(8, Config.from_plain({"mesh": {"data": 2}}).to_wire()))
    return each


def waits_for_a_mark() -> Service:
    each = service(1)
    each.put(2, bulk=True)
    each.say("c", m.RequestMark(True))
    each.put(3)
    return each


def waits_for_what_a_mark_has() -> Service:
    each = service(1)
    mark = settled_mark(each)
    lose(each, "w0")
    each.join("w1", marks=True)
    each.say("c", m.Resume(2, mark))
    return each


def waits_for_its_rate() -> Service:
    each = started()
    each.event(NewLimits(LimitTable({}, PrincipalLimits(instructions_per_second=1.0))))
    each.run(1, 10, [1])
    each.run(1, 11, [1])
    return each


def waits_for_answers() -> Service:
    each = started()
    each.say("c", *(m.Fetch(request, 1) for request in range(1, MAX_UNDER_WAY + 2)))
    return each


CASES: dict[MessageState, Callable[[], Service]] = {
    MessageState.WAITING_READER: waits_for_its_reader,
    MessageState.WAITING_TURN: waits_for_a_turn,
    MessageState.WAITING_WORKERS: waits_for_workers,
    MessageState.WAITING_CONFIG: waits_for_a_config,
    MessageState.WAITING_DEFINITION: waits_for_its_definition,
    MessageState.WAITING_STRATEGY: waits_for_strategies,
    MessageState.WAITING_PLAN: waits_for_a_plan,
    MessageState.WAITING_SEARCH: waits_for_a_search,
    MessageState.WAITING_COMPILATION: waits_for_compilation,
    MessageState.WAITING_PUT: waits_for_a_put,
    MessageState.WAITING_CREDIT: waits_for_credit,
    MessageState.WAITING_SHARE: waits_for_its_share,
    MessageState.WAITING_ANSWERS: waits_for_answers,
    MessageState.WAITING_OPERATOR: waits_for_an_operator,
    MessageState.WAITING_RATE: waits_for_its_rate,
    MessageState.WAITING_IDLE: waits_for_an_idle_mesh,
    MessageState.WAITING_MIGRATION: waits_for_a_migration,
    MessageState.WAITING_MARK: waits_for_a_mark,
    MessageState.WAITING_RESTORE: waits_for_what_a_mark_has,
}


@pytest.mark.parametrize("state", WAITS)
def test_each_wait_is_one_in_which_messages_are_and_it_ends(state: MessageState) -> None:
    each = CASES[state]()
    assert head(each) is state
    assert isinstance(each.core.service.clients[b"c"].queue[0], WAITS[state].messages)
    each.idle = True
    if state is MessageState.WAITING_READER:
        each.say("c", m.Ping())
    if state is MessageState.WAITING_ANSWERS:
        each.say("w0", m.Part(1, [], False, b""))
    if state is MessageState.WAITING_OPERATOR:
        each.say("op", m.ControlSession(1, 1, "resume", ""))
    if state is MessageState.WAITING_WORKERS:
        each.join("w1")
    if state is MessageState.WAITING_RATE:
        each.event(NewLimits(LimitTable({})))
    if state is MessageState.WAITING_MARK:
        each.say("w0", m.Landed(1, 2))
    if state is MessageState.WAITING_RESTORE:
        each.say("w1", m.MarkRestored(1, 2, []))
    if state is MessageState.WAITING_PUT:
        each.say("w0", m.Landed(1, 2))
        each.say("w1", m.Landed(1, 2))
    work(each)
    for _ in range(4):
        each.done()
    assert head(each) is MessageState.DONE


@pytest.mark.parametrize("state", WAITS)
def test_a_message_whose_client_leaves_is_dropped(state: MessageState) -> None:
    each = CASES[state]()
    client = each.core.service.clients[b"c"]
    each.event(Lost(b"c", "its process ended"))
    assert client.head is MessageState.DROPPED


def test_a_message_is_done_or_failed_when_it_is_over() -> None:
    each = started()
    each.run(1, 10, [1])
    assert head(each) is MessageState.DONE
    each.run(1, 20, [999])
    assert head(each) is MessageState.FAILED


def test_a_question_that_waits_for_workers_is_answered_though_work_was_cancelled() -> None:
    each = Service(1, expected=2, capabilities=("cancel",))
    number = each.client()
    each.say("c", m.Ask(5, "memory"), m.Ask(6, "devices"))
    each.hello("watcher", "watcher")
    each.say("watcher", m.Cancel(1, number))
    assert head(each) is MessageState.WAITING_WORKERS
    each.join("w1")
    assert [answer.request for answer in each.hears("c", m.Answer)] == [6]
    for name in ("w0", "w1"):
        (survey,) = each.hears(name, m.Survey)
        each.say(name, m.Holdings(survey.request, {}))
    assert [answer.request for answer in each.hears("c", m.Answer)] == [5]
