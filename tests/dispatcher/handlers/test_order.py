"""The order in which the dispatcher issues plans and puts, and the credits that bound how many are in flight."""

from __future__ import annotations

from typing import Any

import pytest
from one_dispatcher import Service, configure, started

from gt.dispatcher.handlers import handshake, message_queues
from gt.dispatcher.handlers.handshake import CLIENT_CREDITS
from gt.dispatcher.state.events import Due, JobTurn
from gt.dispatcher.state.shared_state import CREDITS_AT_ONCE, MESH_CREDITS
from gt.ir.instruction_bytes import unpack_plan
from gt.wire import messages as m

# order


def test_a_run_becomes_a_plan_and_its_execution() -> None:
    """The first run of a segment tells every worker the plan and then to run it, with the client's ids and scalars."""
    each = started(2, config={"mesh": {"workers": 2}, "sharding_config": {"x": {"strategy": "replicate"}}})
    each.run(1, 10, [1], dying=[0], freed=[77])
    for name in ("w0", "w1"):
        define, execute = each.hears(name)
        plan = unpack_plan(define.body)
        assert [i.op for i in plan.instructions] == ["neg"]
        assert execute == m.Execute(2, define.plan, 1, 10, [1], [], [0], [77])
    assert set(each.table()) == {10}


def test_all_workers_of_a_mesh_get_the_same_bytes() -> None:
    """One send for the whole group: what differs by rank is the workers' own affair."""
    each = started(4, config={"mesh": {"data": 4}, "sharding_config": {"net": {"strategy": "data_parallel"}}})
    each.idle = False
    each.run(1, 10, [1])
    sends = each.core.handle(JobTurn(), 0.0) + each.core.handle(JobTurn(), 0.0)  # it is planned, and sent
    assert [send.to for send in sends] == [(b"w0", b"w1", b"w2", b"w3")] * 2


def test_every_plan_and_put_has_its_number_in_one_order() -> None:
    """Runs and puts of all clients share one count, and every worker hears ascending numbers."""
    each = started(1)
    each.client("d")
    each.put(1, "d")
    each.define(1, client="d")
    for base in (10, 20):
        each.run(1, base, [1])
        each.run(1, base, [1], "d")
    orders = [told.order for told in each.hears("w0", m.Execute, m.Store)]
    assert orders == [2, 3, 4, 5, 6]


def test_a_clients_messages_are_acted_on_in_order() -> None:
    """Whatever holds up one message holds up all that the client sent after it."""
    each = started(1)
    each.put(2, bulk=True)
    each.run(1, 10, [2])
    each.say("c", m.Free([1]), m.Fetch(5, 1))
    assert [type(told) for told in each.hears("w0")] == [m.Store]
    each.say("w0", m.Landed(1, 2))
    assert [type(told) for told in each.hears("w0")] == [m.DefinePlan, m.Execute, m.Release]
    assert each.hears("c", m.Failed)[0].text == "tensor 1 does not exist"


def test_sessions_without_rules_spread_over_the_workers() -> None:
    """Each session that asks for nothing gets one worker, the one that serves the fewest."""
    each = Service(3)
    for name in ("a", "b", "c", "d"):
        each.client(name)
        each.put(1, name)
    members = [record.mesh.members for record in each.core.service.meshes.values()]
    assert sorted(members[:3]) == [(0,), (1,), (2,)]
    assert len(members[3]) == 1


def test_a_session_with_a_mesh_counts_at_all_its_members() -> None:
    """Who asks for nothing gets a worker that no mesh of several has, either."""
    each = Service(3)
    each.client("a")
    each.client("b")
    configure(each, {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}, "a")
    each.put(1, "a")
    each.put(1, "b")
    assert [record.mesh.members for record in each.core.service.meshes.values()] == [(0, 1), (2,)]


# credits


def test_a_client_is_credited_for_what_every_worker_has_done() -> None:
    """Credits follow the slowest member of the mesh, and count the client's own runs and puts. They come in lumps, and when
    nothing is under way."""
    each = started(2, config={"mesh": {"workers": 2}, "sharding_config": {"x": {"strategy": "replicate"}}})
    for number in range(CREDITS_AT_ONCE + 2):
        each.run(1, 10 * (number + 1), [1])
    last = CREDITS_AT_ONCE + 3
    each.say("w0", m.Done(last))
    assert not each.hears("c", m.Credit)
    each.say("w1", m.Done(CREDITS_AT_ONCE))
    assert not each.hears("c", m.Credit)
    each.say("w1", m.Done(CREDITS_AT_ONCE + 1))
    assert each.hears("c", m.Credit) == [m.Credit(CREDITS_AT_ONCE + 1)]
    each.say("w1", m.Done(last - 1))
    assert not each.hears("c", m.Credit)
    each.say("w1", m.Done(last))
    assert each.hears("c", m.Credit) == [m.Credit(last)]


def test_who_was_just_sent_a_value_gets_few_credits_a_moment_later() -> None:
    """A loop that fetches in each turn has no message of credits in each, and when it stops it hears of all that is done."""
    each = started(1)
    each.core.service.delays_credits = True

    def turn(number: int) -> None:
        each.run(1, 50 + number, [1], fetch=[number, 0])
        (execute,) = each.hears("w0", m.Execute)
        each.say("w0", m.Part(execute.fetch[0], [], False, bytes(16)), m.Done(execute.order))

    for number in range(1, CREDITS_AT_ONCE):
        turn(number)
    assert not each.hears("c", m.Credit)
    turn(CREDITS_AT_ONCE)
    assert each.hears("c", m.Credit) == [m.Credit(CREDITS_AT_ONCE + 1)], "the put, too, is done by now"
    turn(CREDITS_AT_ONCE + 1)
    assert not each.hears("c", m.Credit)
    each.now = each.core.wakes_at
    each.event(Due())
    assert each.hears("c", m.Credit) == [m.Credit(CREDITS_AT_ONCE + 2)]
    assert each.core.wakes_at > each.now, "nothing is left to be given"


def test_a_worker_never_has_more_than_its_credits() -> None:
    """Plans wait here once a worker has its fill, and leave one for one as it finishes."""
    each = started(1)
    for n in range(MESH_CREDITS + 10):
        each.run(1, 10 + n, [1])
    assert len(each.hears("w0", m.Execute)) == MESH_CREDITS
    each.say("w0", m.Done(2))
    assert len(each.hears("w0", m.Execute)) == 1
    each.done()
    assert len(each.hears("w0", m.Execute)) == 9


def test_a_plan_goes_to_all_its_workers_or_to_none() -> None:
    """A plan waits until each member has a credit: one busy worker holds it back from the idle ones too."""
    rules = {"sharding_config": {"x": {"strategy": "replicate"}}}
    each = started(2, config={"mesh": {"workers": 2}, **rules})
    for n in range(MESH_CREDITS + 1):
        each.run(1, 10 + n, [1])
    each.say("w0", m.Done(each.core.service.order))
    each.hears("w0")
    each.hears("w1")
    assert not each.hears("w0", m.Execute)
    each.say("w1", m.Done(2))
    assert len(each.hears("w0", m.Execute)) == len(each.hears("w1", m.Execute)) == 1


def test_a_busy_session_holds_up_nobody_else() -> None:
    """Credits are a mesh's own: who shares a worker with a session that has used up its own goes on."""
    each = started(1)
    each.client("d")
    for n in range(MESH_CREDITS + 5):
        each.run(1, 10 + n, [1])
    each.hears("w0")
    each.put(1, "d")
    assert [type(told) for told in each.hears("w0")] == [m.DefineMesh, m.Store]


def test_a_word_that_comes_late_or_twice_counts_once() -> None:
    """Whatever a worker says it has done, credits follow what all members have said of the mesh."""
    each = started(2, config={"mesh": {"workers": 2}, "sharding_config": {"x": {"strategy": "replicate"}}})
    for base in (10, 20, 30):
        each.run(1, base, [1])
    for order in (3, 3, 1, 99):
        each.say("w0", m.Done(order))
    assert not each.hears("c", m.Credit)
    each.say("w1", m.Done(2), m.Done(2), m.Done(4))
    assert not each.hears("c", m.Credit)
    each.say("w0", m.Done(4))
    assert each.hears("c", m.Credit) == [m.Credit(4)]
    assert each.core.service.issued == {}


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client too many is told so, and joins once another has left."""
    monkeypatch.setattr(handshake, "MAX_CLIENTS", 2)
    each = Service(1)
    each.client("c")
    each.client("d")
    each.hello("e", "client", bulk=b"")
    (goodbye,) = each.hears("e")
    assert (goodbye.kind, goodbye.text[:26]) == ("SessionError", "too many sessions: this se")
    each.say("d", m.Goodbye("", ""))
    each.client("e")


def test_issuing_and_hearing_of_it_costs_the_same_on_any_number_of_workers() -> None:
    """Counted, not timed: how often a mesh's members are walked through while plans are issued and finished."""

    class Counted(dict[int, int]):
        walks = 0

        def values(self) -> Any:
            Counted.walks += 1
            return super().values()

    each = started(8, config={"mesh": {"workers": 8}, "sharding_config": {"x": {"strategy": "replicate"}}})
    each.done()
    (record,) = each.core.service.meshes.values()
    record.done = Counted(record.done)
    monkey, each.core.check = each.core.check, lambda: None  # type: ignore[method-assign]  # which looks at all
    for n in range(20):
        each.run(1, 10 + n, [1])
    assert Counted.walks == 0
    for worker in range(8):
        for order in range(2, 22):
            each.say(f"w{worker}", m.Done(order))
    assert Counted.walks <= 2 * 20
    assert each.core.service.issued == {}
    each.core.check = monkey  # type: ignore[method-assign]


def test_frees_and_fetches_need_no_credit() -> None:
    """What frees memory or asks for a value passes, however much the workers have before them."""
    each = started(1)
    each.client("d")
    each.put(1, "d")
    for n in range(MESH_CREDITS - 1):
        each.run(1, 10 + n, [1])
    each.hears("w0")
    each.say("d", m.Free([1]))
    each.say("c", m.Fetch(1, 10))
    assert [type(told) for told in each.hears("w0")] == [m.Release, m.Collect]


def test_a_client_that_ignores_its_credits_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for one client is bounded in messages and in bytes; who sends more loses the session, and nobody else."""
    each = Service(0, expected=1)
    each.client("d")
    monkeypatch.setattr(message_queues, "MAX_QUEUED_MESSAGES", 20)
    each.client()
    for n in range(30):
        each.put(n)
    assert each.hears("c", m.Goodbye)[0].kind == "ProtocolError"
    monkeypatch.setattr(message_queues, "MAX_WAITING_BYTES", 400)
    each.client("e")
    for n in range(3):
        each.put(n, "e")
    assert "400 bytes" in each.hears("e", m.Goodbye)[0].text
    assert list(each.core.service.clients) == [b"d"]


def test_the_client_is_told_its_credits() -> None:
    """The welcome names the number of runs and puts that may be under way, the workers, and the bulk address."""
    each = Service(2)
    each.hello("c", "client", bulk=b"x")
    (welcome,) = each.hears("c", m.Welcome)
    known = {"bulk_address": "here", "workers": 2, "credits": CLIENT_CREDITS, "capabilities": []}
    known |= {"epoch": 1, "service": 0}
    assert welcome.facts == known


def test_whatever_waits_for_a_client_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions, lists of ids and questions as well as puts; what has been acted on counts no more."""
    monkeypatch.setattr(message_queues, "MAX_WAITING_BYTES", 100_000)
    many: dict[str, Any] = {
        "define": m.Define(9, bytes(30_000)),
        "free": m.Free([7] * 1000),
        "run": m.Run(1, 1 << 40, [1] * 1000, [], [], []),
        "configure": m.Configure(1, {}),
        "ask": m.Ask(2, "statistics"),
        "snapshot": m.WriteSnapshot(1, "a", "0" * 16, [1], [], bytes(30_000)),
    }
    for name, message in many.items():
        each = started(1)
        each.put(2, bulk=True)
        each.say("c", m.Fetch(1, 2))
        for _ in range(2):
            each.say("c", *[m.Fetch(5, 1)] * 15)  # no more than workers answer at a time
        assert each.core.service.clients[b"c"].waiting_bytes > 0
        each.say("w0", m.Landed(1, 2))
        assert each.core.service.clients[b"c"].waiting_bytes == 0, name
        each.put(3, bulk=True)
        each.say("c", m.Fetch(1, 3), *[message] * 4)
        assert each.hears("c", m.Goodbye)[0].kind == "ProtocolError", name
