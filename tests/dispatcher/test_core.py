"""The dispatcher's core: events in, sends out. Order, credits, plans, faults, peers that go, and clients that misbehave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
from builders import Lines, one
from one_dispatcher import NEG, VECTOR, Service

from gt import messages as m
from gt.config import Config
from gt.dispatcher import caching, joining, streams
from gt.dispatcher.core import WORKER_TIMEOUT
from gt.dispatcher.cost import rounded
from gt.dispatcher.events import Lost, Malformed, Received, Tick, Work
from gt.dispatcher.joining import CLIENT_CREDITS
from gt.dispatcher.leaving import MAX_ENDED
from gt.dispatcher.plan import Planner
from gt.dispatcher.preparing import SWITCH_AT
from gt.dispatcher.service import CREDIT_LUMP, MESH_CREDITS
from gt.dtypes import float32
from gt.host import START_TIMEOUT
from gt.instruction import pack_segment, unpack_plan

made: list[Service] = []


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    """After every test the invariants hold, and when all peers have left nothing of them is left."""
    made.clear()
    yield
    for each in made:
        each.core.check()
        for peer in (*each.core.service.clients, *each.core.service.workers):
            each.event(Lost(peer, "the test is over"))
        core = each.core
        leftovers = (
            core.service.clients,
            core.service.by_number,
            core.service.workers,
            core.service.meshes,
            core.fetches.collections,
            core.service.issued,
            core.joining.pulses,
        )
        assert leftovers == ({},) * 7


def service(*args: Any, **kwargs: Any) -> Service:
    made.append(Service(*args, **kwargs))
    return made[-1]


def started(workers: int = 1, **kwargs: Any) -> Service:
    """A service with a client "c" that has put tensor 1 and defined segment 1, the negative of a vector."""
    each = service(workers, **kwargs)
    each.client()
    each.put(1)
    each.define(1)
    each.done()
    each.told.clear()
    return each


def fault_of(each: Service, tensor: int, client: str = "c") -> tuple[str, str]:
    """The error with which a fetch of a tensor fails at once."""
    each.hears(client)
    each.say(client, m.Fetch(99, tensor))
    (failed,) = each.hears(client, m.Failed)
    assert failed.request == 99
    return failed.kind, failed.text


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
    sends = each.core.handle(Work(), 0.0) + each.core.handle(Work(), 0.0)  # it is planned, and sent
    assert [send.to for send in sends] == [(b"w0", b"w1", b"w2", b"w3")] * 2
    each.numbers["c"] += 1


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
    each = service(3)
    for name in ("a", "b", "c", "d"):
        each.client(name)
        each.put(1, name)
    members = [record.mesh.members for record in each.core.service.meshes.values()]
    assert sorted(members[:3]) == [(0,), (1,), (2,)]
    assert len(members[3]) == 1


def test_a_session_with_a_mesh_counts_at_all_its_members() -> None:
    """Who asks for nothing gets a worker that no mesh of several has, either."""
    each = service(3)
    each.client("a")
    each.client("b")
    configure(each, {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}, "a")
    each.put(1, "a")
    each.put(1, "b")
    assert [record.mesh.members for record in each.core.service.meshes.values()] == [(0, 1), (2,)]


# waiting for workers


def test_nothing_is_placed_before_the_workers_have_joined() -> None:
    """A client may come first: what it sends waits until the expected workers are there, then is acted on in order."""
    each = service(0, expected=2)
    each.client()
    each.put(1)
    each.say("c", m.Fetch(1, 1))
    each.join("w0")
    assert not each.hears("w0", m.Store)
    each.join("w1")
    assert [type(told) for told in each.hears("w0") if not isinstance(told, m.Welcome)] == [
        m.DefineMesh,
        m.Store,
        m.Collect,
    ]


def test_workers_that_never_come_are_not_waited_for_for_ever() -> None:
    """After a while the service goes on with the workers that there are, and says so in its log."""
    each = service(1, expected=2)
    each.client()
    each.put(1)
    each.now = START_TIMEOUT + 1
    each.say("w0", m.Ping())
    each.event(Tick())
    assert each.hears("w0", m.Store)
    assert any(line.startswith("error: 1 of 2 workers joined") for line in each.log)


def test_workers_that_need_longer_to_start_get_it() -> None:
    """A dispatcher that was told to be patient waits for as long as it was told, and no longer."""
    each = service(1, expected=2)
    each.core.patience = START_TIMEOUT + 10
    each.client()
    each.put(1)
    stored = []
    for at in (1.0, START_TIMEOUT + 1, START_TIMEOUT + 11):
        each.now = at
        each.say("w0", m.Ping())
        each.event(Tick())
        stored.append(bool(each.hears("w0", m.Store)))
    assert stored == [False, False, True]
    assert any("1 of 2 workers joined in 40 s; GT_START_TIMEOUT says how long" in line for line in each.log)


def test_without_any_worker_the_client_is_told() -> None:
    """When no worker comes at all, what the client made fails with an error that says how to start one."""
    each = service(0, expected=1)
    each.client()
    each.put(1)
    each.now = START_TIMEOUT + 1
    each.event(Tick())
    kind, text = fault_of(each, 1)
    assert kind == "WorkerLost"
    assert "gt worker" in text


# credits


def test_a_client_is_credited_for_what_every_worker_has_done() -> None:
    """Credits follow the slowest member of the mesh, and count the client's own runs and puts. They come in lumps, and when
    nothing is under way."""
    each = started(2, config={"mesh": {"workers": 2}, "sharding_config": {"x": {"strategy": "replicate"}}})
    for number in range(CREDIT_LUMP + 2):
        each.run(1, 10 * (number + 1), [1])
    last = CREDIT_LUMP + 3
    each.say("w0", m.Done(last))
    assert not each.hears("c", m.Credit)
    each.say("w1", m.Done(CREDIT_LUMP))
    assert not each.hears("c", m.Credit)
    each.say("w1", m.Done(CREDIT_LUMP + 1))
    assert each.hears("c", m.Credit) == [m.Credit(CREDIT_LUMP + 1)]
    each.say("w1", m.Done(last - 1))
    assert not each.hears("c", m.Credit)
    each.say("w1", m.Done(last))
    assert each.hears("c", m.Credit) == [m.Credit(last)]


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
    monkeypatch.setattr(joining, "MAX_CLIENTS", 2)
    each = service(1)
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
    each = service(0, expected=1)
    each.client("d")
    monkeypatch.setattr(streams, "MAX_QUEUE", 20)
    each.client()
    for n in range(30):
        each.put(n)
    assert each.hears("c", m.Goodbye)[0].kind == "ProtocolError"
    monkeypatch.setattr(streams, "MAX_WAITING", 40)
    each.client("e")
    for n in range(3):
        each.put(n, "e")
    assert "40 bytes" in each.hears("e", m.Goodbye)[0].text
    assert list(each.core.service.clients) == [b"d"]


def test_the_client_is_told_its_credits() -> None:
    """The welcome names the number of runs and puts that may be under way, the workers, and the bulk address."""
    each = service(2)
    each.hello("c", "client", bulk=b"x")
    (welcome,) = each.hears("c", m.Welcome)
    assert welcome.facts == {"bulk_address": "here", "workers": 2, "credits": CLIENT_CREDITS, "capabilities": []}


# plans


def test_a_segment_is_planned_once() -> None:
    """The same segment from the same homes is one plan, however often it runs; the counters say so."""
    each = started(1)
    for n in range(5):
        each.run(1, 10 + n, [1])
    assert len(each.hears("w0", m.DefinePlan)) == 1
    each.say("c", m.Ask(7, "statistics"))
    (answer,) = each.hears("c", m.Answer)
    assert (answer.facts["session"]["plans_made"], answer.facts["session"]["plan_hits"]) == (1, 4)
    assert (answer.facts["runs"], answer.facts["plans"], answer.facts["puts"]) == (5, 1, 1)


def test_other_homes_are_another_plan() -> None:
    """A segment whose input lies elsewhere is planned for that, and both plans are kept."""
    each = started(2, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}})
    each.put(2, signal=("net",))
    for n, tensor in enumerate((1, 2, 1, 2)):
        each.run(1, 10 + n, [tensor])
    first, second = (unpack_plan(told.body) for told in each.hears("w0", m.DefinePlan))
    assert [str(first), str(second)] == ["%0 f32[4] R = neg $0 R", "%0 f32[4] S0 = neg $0 S0"]
    each.done()


def hot(each: Service) -> Any:
    """Run segment 1 on tensor 1 until inputs like it are known; the client's record."""
    for n in range(SWITCH_AT + 2):
        each.run(1, 10 + n, [1])
    client = each.core.service.clients[b"c"]
    assert len(client.plans.by_entries) == 1
    each.told.clear()
    return client


def test_inputs_like_those_of_earlier_runs_are_known_at_a_glance() -> None:
    """Another tensor in the same place is the same plan, without a look at anything else; and what is wrong stays wrong."""
    each = started(1)
    client = hot(each)
    hits = client.hits
    each.put(2)
    each.run(1, 50, [2])
    assert client.hits == hits + 1
    assert len(client.plans.by_entries) == 1
    assert [type(told) for told in each.hears("w0")] == [m.Store, m.Execute]
    for inputs, dying, says in (([3], [], "tensor 3 does not exist"), ([1], [7], "dying positions")):
        each.say("c", m.Run(1, 60, inputs, [], dying, []), m.Fetch(60, 60))
        assert says in each.hears("c", m.Failed)[-1].text
    each.say("c", m.Run(1, 50, [1], [], [], []))
    assert not each.hears("w0", m.Execute), "tensor 50 exists already"


def test_what_is_known_at_a_glance_is_forgotten_with_its_plan() -> None:
    """After a drop, another definition or another config nothing of the old plan is issued."""
    each = started(1)
    client = hot(each)
    each.say("c", m.Drop(1))
    assert not client.plans.by_entries
    each.define(1, one("exp", VECTOR))
    each.run(1, 50, [1])
    (plan,) = each.hears("w0", m.DefinePlan)
    assert unpack_plan(plan.body).instructions[0].op == "exp"
    hot_again = started(2)
    client = hot(hot_again)
    member = client.mesh.members[0]
    hot_again.core.handle(Lost(f"w{member}".encode(), "it was killed"), hot_again.now)
    assert not client.plans.by_entries
    assert not client.plans.by_homes


def test_a_known_run_waits_for_credit_like_any_other() -> None:
    """More runs than the workers may have before them wait, and are issued when the workers have done some."""
    each = started(1)
    hot(each)
    for n in range(2 * MESH_CREDITS):
        each.run(1, 100 + n, [1])
    assert len(each.core.service.issued) == MESH_CREDITS


def test_a_dropped_segment_takes_its_plans_along() -> None:
    """Receivers evict nothing by themselves: the client's drop is what removes plans from the workers."""
    each = started(1)
    each.run(1, 10, [1])
    (define,) = each.hears("w0", m.DefinePlan)
    each.say("c", m.Drop(1), m.Drop(42))
    assert each.hears("w0") == [m.DropPlan(define.plan)]
    each.define(1, one("exp", VECTOR))
    each.run(1, 20, [1])
    (again,) = each.hears("w0", m.DefinePlan)
    assert unpack_plan(again.body).instructions[0].op == "exp"


def test_plans_of_a_session_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the plan that was used longest ago is dropped, and made again when it is needed again."""
    monkeypatch.setattr(caching, "MAX_PLANS", 2)
    each = started(1)
    for number in (2, 3):
        each.define(number, one("exp" if number == 2 else "sqrt", VECTOR))
    plans = []
    for n, segment in enumerate((1, 2, 1, 3)):
        each.run(segment, 10 + n, [1])
        plans += [told.plan for told in each.hears("w0", m.DefinePlan, m.DropPlan)]
    assert plans == [1, 2, 2, 3]
    each.run(2, 20, [1])
    assert [type(told) for told in each.hears("w0")] == [m.DropPlan, m.DefinePlan, m.Execute]


# puts


def test_a_put_goes_where_its_signal_wants_it() -> None:
    """A batch put in a data-parallel signal is stored in parts; a put without a signal is stored whole."""
    each = started(2, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}})
    each.put(2, signal=("net",))
    each.put(3, signal=("elsewhere",))
    assert [told.layout for told in each.hears("w1", m.Store)] == ["S0", "R"]


def test_a_bulk_put_is_cut_and_awaited() -> None:
    """The client is told whom to send which part; what reads the tensor waits until every part has landed."""
    each = started(2, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}})
    each.put(2, bulk=True, signal=("net",))
    assert each.hears("c", m.Cut) == [m.Cut(2, [[0, b"bulk-w0", [[0, 2]]], [1, b"bulk-w1", [[2, 4]]]])]
    assert each.hears("w0", m.Store)[0].sender == b"bulk-c"
    each.say("c", m.Fetch(1, 2))
    each.say("w0", m.Landed(1, 2))
    assert not each.hears("w1", m.Collect)
    each.say("w1", m.Landed(1, 2))
    assert each.hears("w1", m.Collect)


def test_a_put_that_has_not_landed_holds_up_its_own_client_alone() -> None:
    """While one client's data is on its way, another client's runs on the same worker go on."""
    each = started(1)
    each.client("d")
    each.put(2, bulk=True)
    each.run(1, 10, [2])
    each.put(1, "d")
    each.define(1, client="d")
    each.run(1, 10, [1], "d")
    assert [told.client for told in each.hears("w0", m.Execute)] == [2]
    each.say("w0", m.Landed(1, 2))
    assert [told.client for told in each.hears("w0", m.Execute)] == [1]


def test_a_put_that_cannot_be_is_a_fault() -> None:
    """A refused put makes a tensor with an error, and a bulk one calls its data off."""
    each = started(1)
    each.put(1, bulk=True)
    assert each.hears("c", m.Cut) == [m.Cut(1, [])]
    each.say("c", m.Put(5, ["f32", [4]], [], False, b"123"))
    assert fault_of(each, 5) == ("ProtocolError", "f32[4] takes 16 bytes, not 3")
    each.say("c", m.Put(6, ["f99", [4]], [], False, b""))
    assert fault_of(each, 6)[0] == "ProtocolError"
    assert each.core.service.clients[b"c"].credited == each.core.service.clients[b"c"].arrived


# fetches


def test_a_fetch_asks_each_part_of_one_worker_and_all_for_soundness() -> None:
    """Of copies one is sent, but every worker says whether its own is sound; the client gets as many answers."""
    each = started(2, config={"mesh": {"workers": 2}, "sharding_config": {"x": {"strategy": "replicate"}}})
    each.say("c", m.Fetch(7, 1))
    (sender,), (silent,) = each.hears("w0", m.Collect), each.hears("w1", m.Collect)
    assert (sender.silent, silent.silent, sender.reply) == (False, True, 7)
    each.say("w1", m.Part(silent.request, [], False, b""))
    each.say("w0", m.Part(sender.request, [], False, bytes(16)))
    values = each.hears("c", m.Value)
    assert [(value.parts, value.box, len(value.data)) for value in values] == [(2, [["silent"]], 0), (2, [[0, 4]], 16)]
    assert each.core.fetches.collections == {}


def test_one_poisoned_part_fails_the_fetch() -> None:
    """A tensor is poisoned when any part is: the first fault answers the request, later parts are dropped."""
    each = started(2, config={"mesh": {"workers": 2}, "sharding_config": {"x": {"strategy": "replicate"}}})
    each.say("c", m.Fetch(7, 1))
    (collect,) = each.hears("w1", m.Collect)
    each.say("w1", m.Part(collect.request, ["OutOfMemory", "no memory"], False, b""))
    each.say("w0", m.Part(collect.request, [], False, bytes(16)))
    assert each.hears("c") == [m.Failed(7, "OutOfMemory", "no memory")]


def test_a_part_that_nobody_asked_for_is_dropped() -> None:
    """A part of an unknown request, or a second one of the same worker, changes nothing."""
    each = started(1)
    each.say("w0", m.Part(55, [], False, b""))
    each.say("c", m.Fetch(7, 1))
    (collect,) = each.hears("w0", m.Collect)
    for _ in range(2):
        each.say("w0", m.Part(collect.request, [], False, bytes(16)))
    assert len(each.hears("c", m.Value)) == 1


# faults


def test_faults_are_inherited() -> None:
    """A run that reads a tensor without a value is not issued: what it would have made has the same error."""
    each = started(1)
    each.say("c", m.Put(5, ["f32", [4]], [], False, b""))
    each.run(1, 10, [5])
    each.run(1, 20, [10], dying=[0])
    assert not each.hears("w0", m.Execute)
    assert fault_of(each, 20) == fault_of(each, 5)
    assert fault_of(each, 10)[1] == "tensor 10 does not exist"
    assert each.core.service.clients[b"c"].credited == each.core.service.clients[b"c"].arrived


def test_what_is_computed_from_sound_inputs_is_computed() -> None:
    """A run of which some input has no value is executed for the rest: what follows that input only to its place is sound."""
    each = started(1)
    each.say("c", m.Put(5, ["f32", [4]], [], False, b""))
    lines = Lines()
    x, lost = lines.input(4), lines.input(4)
    kept = [lines.op("neg", x), lines.op("add", x, lost), lines.op("follow", x, lost), lines.op("neg", lost)]
    each.define(2, lines.segment(*kept))
    each.run(2, 10, [1, 5], dying=[1])
    (execute,) = each.hears("w0", m.Execute)
    assert (list(execute.inputs), list(execute.dying)) == ([1, 5], [1])
    faults = {tensor: entry.fault for tensor, entry in each.table().items()}
    assert [tensor for tensor, fault in faults.items() if fault is None] == [1, 10, 12]
    assert fault_of(each, 11) == fault_of(each, 13) == faults[11]
    each.say("c", m.Fetch(100, 12))
    assert each.hears("w0", m.Collect)


def test_a_run_that_is_not_issued_frees_all_the_same() -> None:
    """What dies with a run that inherits a fault is freed on the workers, too."""
    each = started(1)
    each.put(2)
    each.say("c", m.Put(5, ["f32", [4]], [], False, b""))
    each.define(2, one("add", VECTOR, VECTOR))
    each.hears("w0")
    each.run(2, 10, [1, 5], dying=[0], freed=[2])
    assert each.hears("w0") == [m.Release(1, [1, 2])]
    assert set(each.table()) == {5, 10}


def test_an_undefined_segment_frees_all_the_same() -> None:
    """A run of a segment that nobody knows is refused, and what would have died with it is freed on the workers."""
    each = started(1)
    each.run(9, 10, [1], dying=[0])
    assert each.hears("w0") == [m.Release(1, [1])]
    assert each.hears("c", m.Failed) == [m.Failed(0, "ProtocolError", "segment 9 is not defined")]


def test_a_refused_definition_fails_where_it_is_run() -> None:
    """A definition that does not derive costs its client the runs of it, and nothing else."""
    each = started(1)
    each.say("c", m.Define(2, b"nonsense"))
    assert each.hears("c") == []
    each.run(2, 10, [1])
    (failed,) = each.hears("c", m.Failed)
    assert (failed.request, failed.kind) == (0, "ProtocolError")
    each.run(1, 20, [1])
    assert each.hears("w0", m.Execute)
    assert each.core.service.counters.refused == 1


def test_a_poisoned_instruction_is_counted_and_logged() -> None:
    """What fails on a worker reaches the operator's log with its whole text."""
    each = started(1)
    each.say("w0", m.Poisoned(2, 1, "OutOfMemory", "no memory\n  in add"))
    assert each.core.service.counters.poisoned == 1
    assert each.log[-1] == "error: worker 0, client 1: OutOfMemory: no memory\n  in add"


def test_a_segment_without_a_plan_is_an_error_of_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the planner fail, the run's results hold the error and the service goes on."""
    each = started(1)

    def broken(*_: Any) -> Any:
        raise AssertionError("no row can be reached")

    with monkeypatch.context() as patch:
        patch.setattr(Planner, "plan_in_turns", broken)
        each.run(1, 10, [1])
    assert "no row can be reached" in fault_of(each, 10)[1]
    each.run(1, 20, [1])
    assert each.hears("w0", m.Execute)


# configs


RULES: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}


def configure(each: Service, config: dict[str, Any], client: str = "c") -> Any:
    each.hears(client)
    each.say(client, m.Configure(7, Config.from_plain(config).to_wire()))
    return each.hears(client)[0]


def test_a_live_reload_waits_for_what_is_under_way_and_moves_what_lives() -> None:
    """Plans of one use carry tensors from mesh to mesh; the answer comes when all have arrived, and then the old mesh goes."""
    each = started(2)
    each.run(1, 10, [1])
    each.told.clear()
    each.say("c", m.Configure(7, Config.from_plain(RULES).to_wire()))
    assert not each.told, "the put and the run are under way"
    each.run(1, 20, [10])
    each.done()
    (old,) = {record.mesh.number for record in each.core.service.meshes.values() if len(record.mesh.members) == 1}
    kinds = [type(told) for told in each.hears("w1")]
    assert kinds == [m.DefineMesh, m.DefineMesh, m.DefinePlan, m.Execute, m.DropPlan]
    assert each.hears("c", m.Answer) == []
    each.done()
    assert each.hears("c", m.Answer) == [m.Answer(7, {"mesh": {"data": 2}})]
    told = each.hears("w0")
    assert [type(message) for message in told if isinstance(message, m.DropMesh)] == [m.DropMesh] * 2
    assert old not in each.core.service.meshes
    assert isinstance(told[-1], m.Execute), "and what waited goes on"
    assert each.table()[10].mesh == each.table()[20].mesh != old


@pytest.mark.parametrize("victim", ["w0", "w1"])
def test_a_worker_lost_in_the_middle_of_a_reload(victim: str) -> None:
    """What was moving is gone and says so; the config is tried again on the workers that are left, and is refused or holds."""
    each = started(2)
    each.done()
    each.say("c", m.Configure(7, Config.from_plain({"sharding_config": RULES["sharding_config"]}).to_wire()))
    assert each.core.service.clients[b"c"].moving is not None
    each.event(Lost(victim.encode(), "killed"))
    assert each.hears("c", m.Answer) == [m.Answer(7, {"mesh": {"data": 1}})]
    assert fault_of(each, 1)[0] == "WorkerLost"
    each.put(2)
    each.done()
    assert each.table()[2].fault is None


def test_a_client_lost_in_the_middle_of_a_reload_leaves_nothing() -> None:
    each = started(2)
    each.done()
    each.say("c", m.Configure(7, Config.from_plain(RULES).to_wire()))
    each.event(Lost(b"c", "killed"))
    assert (each.core.service.meshes, each.core.service.issued) == ({}, {})


def test_a_session_brings_its_own_config() -> None:
    """A client's file decides its mesh and rules, and nobody else's."""
    each = service(2)
    each.client()
    each.client("d")
    assert configure(each, RULES) == m.Answer(7, {"mesh": {"data": 2}})
    each.put(1, signal=("net",))
    each.put(1, "d", signal=("net",))
    assert sorted(told.layout for name in ("w0", "w1") for told in each.hears(name, m.Store)) == ["R", "S0", "S0"]


def test_a_config_overrides_the_services_signal_by_signal() -> None:
    """The service's rules hold where the client's say nothing."""
    each = service(2, config=RULES)
    each.client()
    configure(each, {"sharding_config": {"rows": {"shard": {"axis": 0, "workers": [0, 1]}}}})
    each.put(1, signal=("net",))
    each.put(2, signal=("rows",))
    assert [told.layout for told in each.hears("w0", m.Store)] == ["S0", "S0"]


def test_a_config_that_does_not_fit_changes_nothing_and_another_may_follow() -> None:
    """A mesh of more workers than there are is refused by its own words; the session goes on as it was."""
    each = service(2)
    each.client()
    answer = configure(each, {"mesh": {"data": 3}, "sharding_config": RULES["sharding_config"]})
    assert answer.kind == "ConfigError"
    assert "takes 3 workers" in answer.text
    each.put(1)
    each.done()
    assert each.table()[1].fault is None
    each.say("c", m.Free([1]))
    assert configure(each, RULES) == m.Answer(7, {"mesh": {"data": 2}})
    each.put(2)
    each.say("c", m.Fetch(1, 2))
    assert each.hears("w0", m.Collect)


def test_a_config_makes_plans_of_the_old_mesh_impossible() -> None:
    """A session that is configured anew after its tensors are gone plans anew: no plan of the dropped mesh is run."""
    each = started(2)
    each.run(1, 10, [1])
    each.say("c", m.Free([1, 10]))
    each.done()
    configure(each, {"mesh": {"workers": 1}, "sharding_config": {"x": {"shard": {"axis": 0, "workers": [0]}}}})
    each.put(2)
    each.told.clear()
    each.run(1, 20, [2])
    (mesh,) = each.core.service.meshes
    told = each.hears("w0") + each.hears("w1")
    assert [type(message) for message in told] == [m.DefinePlan, m.Execute]
    assert unpack_plan(told[0].body).mesh == mesh


# peers that go


def test_a_lost_client_is_freed_everywhere() -> None:
    """What a client had goes with it: tensors, plans and mesh on the workers, and all that is known of it here."""
    each = started(1)
    each.run(1, 10, [1])
    each.say("c", m.Fetch(1, 10))
    plan = each.hears("w0", m.DefinePlan)[0].plan
    each.event(Lost(b"c", "killed"))
    assert each.hears("w0") == [m.Forget(1), m.DropPlan(plan), m.DropMesh(1)]
    each.done()
    assert (each.core.service.clients, each.core.service.meshes, each.core.fetches.collections) == ({}, {}, {})
    each.say("w0", m.Part(1, [], False, b""), m.Landed(1, 1))
    each.event(Lost(b"c", "killed again"))


def test_a_goodbye_ends_a_session() -> None:
    """A client that says goodbye is forgotten at once, in its turn."""
    each = started(1)
    each.run(1, 10, [1])
    each.say("c", m.Goodbye("", ""))
    assert [type(told) for told in each.hears("w0")] == [m.DefinePlan, m.Execute, m.Forget, m.DropPlan, m.DropMesh]
    assert each.hears("c") == []


def pair(**config: Any) -> Service:
    """Two workers; client "c" has tensors on both, client "d" on none."""
    each = service(2)
    each.client()
    each.client("d")
    configure(each, {"mesh": {"data": 2}, **RULES} if config.get("mesh") else RULES)
    each.put(1)
    each.define(1)
    each.define(1, client="d")
    return each


def test_a_lost_worker_takes_its_tensors_along() -> None:
    """Whoever has data on a lost worker learns it at the next fetch, and from then on its session only errs."""
    each = pair(mesh=True)
    each.say("c", m.Fetch(5, 1))
    each.hears("c")
    each.event(Lost(b"w1", "killed"))
    told = each.hears("c")
    assert [message for message in told if isinstance(message, m.Failed)] == [
        m.Failed(5, "WorkerLost", "worker 1 was lost (killed); what it held is gone")
    ]
    assert m.PeerLost(1, "worker 1 was lost (killed); what it held is gone") in told
    assert fault_of(each, 1)[0] == "WorkerLost"
    each.put(2)
    kind, text = fault_of(each, 2)
    assert kind == "WorkerLost"
    assert "no longer fits" in text


def test_a_lost_worker_leaves_others_alone() -> None:
    """A session that has nothing on the lost worker notices nothing."""
    each = service(2)
    each.client()
    each.client("d")
    each.put(1)
    each.put(1, "d")
    each.told.clear()
    (record,) = (record for record in each.core.service.meshes.values() if record.mesh.members == (1,))
    lost = next(client for client in each.core.service.clients.values() if client.mesh is record.mesh)
    other = "d" if lost.identity == b"c" else "c"
    each.event(Lost(b"w1", "killed"))
    assert each.hears(other) == []
    each.say(other, m.Fetch(1, 1))
    assert each.hears("w0", m.Collect)


def test_a_session_without_a_mesh_of_its_own_goes_on_with_the_workers_left() -> None:
    """What was on the lost worker is gone; new tensors find their place on the others, with plans of their own."""
    each = service(2)
    each.client()
    each.put(1)
    each.define(1)
    each.run(1, 10, [1])
    (record,) = each.core.service.meshes.values()
    (member,) = record.mesh.members
    each.event(Lost(b"w%d" % member, "killed"))
    assert fault_of(each, 10)[0] == "WorkerLost"
    each.put(2)
    each.run(1, 20, [2])
    left = f"w{1 - member}"
    assert [type(told) for told in each.hears(left, m.DefinePlan, m.Execute)] == [m.DefinePlan, m.Execute]
    each.say("c", m.Fetch(8, 20))
    assert each.hears(left, m.Collect)


def test_survivors_of_a_broken_mesh_free_what_they_held() -> None:
    """Tensors that are gone because one worker is gone are gone on the others too, and so is the mesh."""
    each = pair(mesh=True)
    each.told.clear()
    each.event(Lost(b"w1", "killed"))
    assert each.hears("w0") == [
        m.PeerLost(1, "worker 1 was lost (killed); what it held is gone"),
        m.Forget(1),
        m.DropMesh(1),
    ]


def test_a_fetch_that_the_lost_worker_had_answered_fails_too() -> None:
    """The other workers forget their parts with the mesh, so a fetch that waits for them fails at once."""
    each = pair(mesh=True)
    each.say("c", m.Fetch(5, 1))
    (collect,) = each.hears("w1", m.Collect)
    each.say("w1", m.Part(collect.request, [], False, b""))
    each.event(Lost(b"w1", "killed"))
    assert [message.request for message in each.hears("c", m.Failed)] == [5]
    each.say("w0", m.Part(collect.request, [], True, b""))
    assert each.hears("c") == []


def test_every_worker_hears_of_a_lost_one() -> None:
    """A worker may still stand in a plan of a session that has ended, waiting for a peer; when that dies, it is told."""
    each = pair(mesh=True)
    each.run(1, 10, [1])
    each.event(Lost(b"c", "killed"))
    each.told.clear()
    each.event(Lost(b"w1", "killed"))
    assert each.hears("w0") == [m.PeerLost(1, "worker 1 was lost (killed); what it held is gone")]


def test_runs_that_waited_for_the_lost_worker_are_not_issued() -> None:
    """A run that waited for a credit of a worker that then dies inherits its loss; its client is credited for it."""
    each = pair(mesh=True)
    for n in range(MESH_CREDITS + 5):
        each.run(1, 10 + n, [1])
    each.say("w0", m.Done(each.core.service.order))
    each.told.clear()
    each.event(Lost(b"w1", "killed"))
    assert not each.hears("w0", m.Execute)
    client = each.core.service.clients[b"c"]
    assert each.core.service.issued == {}
    assert client.credited == client.arrived == MESH_CREDITS + 6
    assert fault_of(each, 10 + MESH_CREDITS + 4)[0] == "WorkerLost"


def test_a_put_on_its_way_to_a_lost_worker_is_waited_for_no_longer() -> None:
    """What waits for a bulk put to land fails at once when a worker that should receive it is gone."""
    each = pair(mesh=True)
    each.put(2, bulk=True)
    each.say("c", m.Fetch(9, 2))
    each.hears("c")
    each.event(Lost(b"w0", "killed"))
    assert each.hears("c", m.Failed)[0].request == 9


def test_the_last_worker_may_be_lost() -> None:
    """Without any worker left, sessions get errors that say so, until another joins."""
    each = started(1)
    each.event(Lost(b"w0", "killed"))
    each.put(2)
    assert fault_of(each, 2)[0] == "WorkerLost"
    each.join("w9")
    each.put(3)
    each.say("c", m.Fetch(1, 3))
    assert each.hears("w9", m.Collect)


def test_a_worker_number_is_never_given_twice() -> None:
    """A worker that joins after another was lost has a number of its own: peers remember the lost one by its number."""
    each = started(2)
    each.event(Lost(b"w0", "killed"))
    each.join("w5")
    assert sorted(worker.number for worker in each.core.service.workers.values()) == [1, 2]


def test_a_silent_worker_is_lost_and_a_pulse_keeps_it() -> None:
    """A worker without a sign of life is lost after a while; its pulse, or any word of it, counts as life."""
    each = service(2)
    each.hello("p0", "pulse", address="ipc:///w0")
    each.now = WORKER_TIMEOUT
    each.say("p0", m.Ping(), number=0)
    each.now = WORKER_TIMEOUT + 1
    each.event(Tick())
    assert list(each.core.service.workers) == [b"w0"]
    each.now += WORKER_TIMEOUT - 1
    each.say("w0", m.Ping())
    each.now += 2
    each.event(Tick())
    assert list(each.core.service.workers) == [b"w0"]


def test_a_worker_that_says_goodbye_is_lost() -> None:
    """A worker that is stopped says so, and those who hold data on it get its reason."""
    each = started(1)
    each.say("w0", m.Goodbye("", "it was stopped"))
    assert fault_of(each, 1) == ("WorkerLost", "worker 0 was lost (it was stopped); what it held is gone")


# peers that misbehave


def nonsense() -> dict[str, list[Any]]:
    """Ways for a client to go wrong that cost it at most its own tensors: each a list of messages."""
    big = (1 << 63) - 1
    return {
        "an unknown segment": [m.Run(9, 50, [1], [], [], [])],
        "an unknown tensor": [m.Run(1, 50, [44], [], [], [])],
        "too few inputs": [m.Run(1, 50, [], [], [], [])],
        "too many scalars": [m.Run(1, 50, [1], [1], [], [])],
        "dying out of range": [m.Run(1, 50, [1], [], [1, 70], [])],
        "an output that exists": [m.Run(1, 1, [1], [], [], [])],
        "an output below all ids": [m.Run(1, -5, [1], [], [], [])],
        "an output beyond all ids": [m.Run(1, big, [1], [], [], []), m.Run(1, 2 * big, [1], [], [], [])],
        "a tensor below all ids": [m.Put(-1, ["f32", [4]], [], False, bytes(16)), m.Free([1])],
        "a tensor beyond all ids": [m.Put(2 * big, ["f32", [4]], [], True, b"")],
        "a put of nothing known": [m.Put(60, [], [], False, b"")],
        "a put that exists": [m.Put(1, ["f32", [4]], [], False, bytes(16))],
        "an endless put": [m.Put(60, ["f64", [1 << 47]], [], True, b""), m.Free([60])],
        "a fetch of nothing": [m.Fetch(1, 60), m.Fetch(0, 60), m.Fetch(-1, 1)],
        "frees of nothing": [m.Free([60, 61, 60])],
        "a double definition": [m.Define(1, pack_segment(NEG))],
        "a definition of nothing": [m.Define(2, b""), m.Run(2, 50, [1], [], [], [])],
        "a drop of nothing": [m.Drop(7)],
        "a question about nothing": [m.Ask(1, "weather")],
        "a config of nothing": [
            m.Configure(1, {}),
            m.Configure(2, {"config": {"mesh": []}, "mesh_where": "", "where": []}),
        ],
    }


@pytest.mark.parametrize("messages", nonsense().values(), ids=nonsense())
@pytest.mark.parametrize("before", [True, False], ids=["with tensors", "from the start"])
def test_wrong_messages_affect_their_sender_alone(messages: list[Any], before: bool) -> None:
    """Whatever a client asks for that cannot be, the service answers or ignores it, and other clients go on."""
    each = service(2)
    each.client("d")
    each.put(1, "d")
    each.define(1, client="d")
    each.client()
    if before:
        each.put(1)
        each.define(1)
    each.say("c", *messages)
    each.done()
    each.told.clear()
    each.run(1, 10, [1], "d")
    executed = [told.client for name in ("w0", "w1") for told in each.hears(name, m.Execute)]
    assert executed == [1]
    each.say("d", m.Fetch(1, 10))
    assert b"d" in each.core.service.clients
    assert not each.hears("d", m.Failed, m.Goodbye)


def test_a_wrong_kind_of_scalar_is_refused() -> None:
    """A scalar has the kind that its definition says; only an integer may stand for a float."""
    each = started(1)
    each.define(2, one("mul", VECTOR, "f"))
    each.define(3, one("full", "i", shape=(2,), dtype=float32))
    each.run(2, 10, [1], scalars=[2])
    each.run(2, 20, [1], scalars=[True])
    each.run(3, 30, [], scalars=[1.5])
    assert len(each.hears("w0", m.Execute)) == 1
    assert fault_of(each, 20)[1] == "a scalar of kind 'f' is not True"
    assert fault_of(each, 30)[1] == "a scalar of kind 'i' is not 1.5"


def test_another_specs_input_is_refused() -> None:
    """A segment says what its inputs are; a tensor of another shape in their place is an error, not an accident."""
    each = started(1)
    each.say("c", m.Put(2, ["f32", [2, 2]], [], False, bytes(16)))
    each.run(1, 10, [2])
    assert fault_of(each, 10)[1] == "an input is f32[2,2], the segment says f32[4]"


def test_a_bulk_put_without_a_bulk_identity_is_refused() -> None:
    """A client that never said which bulk socket is its own cannot make workers wait for what nobody sends."""
    each = service(1)
    each.client(bulk=b"")
    each.put(1, bulk=True)
    assert not each.hears("w0", m.Store)
    assert fault_of(each, 1)[0] == "ProtocolError"


def test_definitions_of_a_session_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never drops a definition is refused more of them."""
    monkeypatch.setattr(streams, "MAX_SEGMENTS", 3)
    each = started(1)
    for number in range(2, 6):
        each.define(number)
    assert len(each.hears("c", m.Failed)) == 2
    assert len(each.core.service.clients[b"c"].segments) == 3


@pytest.mark.parametrize("number", [1, 2, 9, 0])
def test_a_message_out_of_order_ends_the_session(number: int) -> None:
    """A lost or doubled message makes a stream worthless: the client is told to start afresh, its tensors are freed."""
    each = started(1)
    assert each.numbers["c"] == 3
    each.event(Received(b"c", number, m.Free([1])))
    (goodbye,) = each.hears("c")
    assert (goodbye.kind, goodbye.text) == (
        "ProtocolError", f"message {number} where 4 was due; start afresh with Hello",
    )  # fmt: skip
    assert each.hears("w0", m.Forget)
    each.client()
    each.put(1)
    assert each.hears("w0", m.Store)


def test_roles_may_say_what_is_theirs() -> None:
    """A client that speaks as a worker, or a worker as a client, is confused and ended; the other role goes on."""
    each = started(2)
    each.client("d")
    for message in (m.Done(1), m.Part(1, [], False, b""), m.Execute(1, 1, 1, 1, [], [], [], []), m.Welcome(1, {})):
        each.client("bad")
        each.say("bad", message)
        if not isinstance(message, m.Welcome):
            assert each.hears("bad", m.Goodbye)
    each.say("w1", m.Run(1, 10, [1], [], [], []))
    assert list(each.core.service.workers) == [b"w0"]
    assert {b"c", b"d"} <= set(each.core.service.clients)


def test_strangers_are_told_to_say_hello() -> None:
    """A peer that is not known is told how to begin, counted, and logged once however often it comes back."""
    each = service(1)
    for _ in range(3):
        each.say("x", m.Free([1]))
    each.event(Malformed(b"x", "not msgpack"))
    each.say("y", m.Goodbye("", ""))
    goodbyes = each.hears("x")
    assert [each.kind for each in goodbyes] == ["ProtocolError"] * 4
    assert "start afresh with Hello" in goodbyes[0].text
    assert each.core.service.counters.refused == 4
    assert len([line for line in each.log if line.startswith("warning")]) == 1
    assert each.hears("y") == []


def test_garbage_ends_the_session_that_it_came_from() -> None:
    """What is no message at all, from a client's own connection, ends that client and nobody else."""
    each = started(1)
    each.client("d")
    each.event(Malformed(b"c", "not msgpack"))
    assert list(each.core.service.clients) == [b"d"]


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        (m.Hello(m.VERSION + 1, "client", {}), "speaks protocol"),
        (m.Hello(m.VERSION, "king", {}), "no role"),
        (m.Hello(m.VERSION, "client", {"bulk": "text"}), "bulk identity"),
        (m.Hello(m.VERSION, "worker", {}), "says its address"),
        (m.Hello(m.VERSION, "worker", {"address": 5, "bulk": b""}), "says its address"),
        (m.Hello(m.VERSION, "pulse", {"address": "ipc:///nobody"}), "a pulse of no worker"),
        (m.Hello(m.VERSION, "pulse", {}), "a pulse of no worker"),
    ],
)
def test_a_wrong_hello_is_answered(hello: m.Hello, says: str) -> None:
    """Who introduces itself wrongly is told what is wrong, and is not let in."""
    each = service(1)
    each.say("x", hello)
    (goodbye,) = each.hears("x")
    assert says in goodbye.text
    assert b"x" not in {*each.core.service.clients, *each.core.service.workers, *each.core.joining.pulses}


def test_a_second_hello_is_a_confused_peer() -> None:
    """Hello is said once on a connection; a second one ends the session."""
    each = started(1)
    each.say("c", m.Hello(m.VERSION, "client", {}))
    assert each.hears("c", m.Goodbye)
    assert each.core.service.clients == {}


def test_pulses_are_one_for_each_worker() -> None:
    """However many connections claim to speak for a worker, one is remembered, and none when it is gone."""
    each = service(1)
    for name in ("p1", "p2", "p3"):
        each.hello(name, "pulse", address="ipc:///w0")
    assert list(each.core.joining.pulses) == [b"p3"]
    each.event(Lost(b"w0", "killed"))
    assert each.core.joining.pulses == {}


def test_what_a_process_had_sent_before_it_ended_is_no_mistake() -> None:
    """The end of a process may be noticed before its last words are read: they are passed over without a word, and those of
    a worker's second connection too. Of one that only seemed lost they are answered, as it may start afresh."""
    each = service(2)
    each.client()
    each.put(1)
    each.hello("p0", "pulse", address="ipc:///w0")
    each.log.clear()
    for peer in (b"c", b"w0"):
        each.event(Lost(peer, "its process ended", ended=True))
    each.say("c", m.Free([1]))
    each.say("c", m.Ping())
    each.say("w0", m.Ping())
    each.say("p0", m.Ping())
    assert each.core.service.counters.refused == 0
    assert not [line for line in each.log if "refused" in line]
    assert not each.hears("c", m.Goodbye)
    each.client("d")
    each.event(Lost(b"d", "its connection broke"))
    each.say("d", m.Free([1]))
    assert each.core.service.counters.refused == 1
    assert len(each.hears("d", m.Goodbye)) == 1


def test_those_whose_processes_ended_are_not_remembered_for_ever() -> None:
    each = service(1)
    for number in range(MAX_ENDED + 10):
        each.core.handle(Lost(b"%d" % number, "its process ended", ended=True), 0.0)
    assert len(each.core.leaving.ended) == MAX_ENDED
    each.say(str(MAX_ENDED + 9), m.Free([1]), number=1)
    assert each.core.service.counters.refused == 0


def test_random_streams_never_do_more_than_be_refused() -> None:
    """Thousands of messages of random kinds and fields from one client leave the service, and another client, intact."""
    random = np.random.default_rng(7)
    each = service(2, config=RULES)
    each.client("d")
    each.put(1, "d", signal=("net",))
    lines = Lines()
    x, w = lines.input(4), lines.input(4)
    configs = [Config.from_plain(plain).to_wire() for plain in (RULES, {"mesh": {"model": 1, "data": 2}}, {})]
    segments = [pack_segment(NEG), pack_segment(lines.segment(lines.op("add", x, w, signal=("net",)))), b"\x95", b""]

    def some(*choices: Any) -> Any:
        return choices[int(random.integers(len(choices)))]

    def ids() -> list[int]:
        return [int(n) for n in random.integers(0, 6, int(random.integers(0, 3)))]

    kinds: list[Any] = [
        lambda: m.Define(int(random.integers(0, 3)), some(*segments)),
        lambda: m.Run(
            int(random.integers(0, 4)), int(random.integers(0, 6)), ids(), some([], [1], [1.5]), ids(), ids()
        ),
        lambda: m.Put(int(random.integers(-1, 6)), ["f32", [4]], some([], ["net"]), some(True, False), bytes(16)),
        lambda: m.Free(ids()),
        lambda: m.Fetch(int(random.integers(0, 4)), int(random.integers(0, 6))),
        lambda: m.Drop(int(random.integers(0, 4))),
        lambda: m.Ask(1, "statistics"),
        lambda: m.Configure(9, some({}, *configs)),
        lambda: m.Options(some({}, {"verify": 0.5}, {"verify": 2}, {"x": 1})),
    ]
    each.client()
    for _ in range(3000):
        each.say("c", kinds[int(random.integers(len(kinds)))]())
        if random.random() < 0.3:
            each.done()
        for worker in ("w0", "w1"):
            for told in each.hears(worker, m.Store):
                if told.sender:
                    each.say(worker, m.Landed(told.client, told.tensor))
    assert {b"c", b"d"} <= set(each.core.service.clients)
    each.hears("d")
    each.say("d", m.Fetch(1, 1))
    assert each.hears("w0", m.Collect)[-1].client == 1


def test_a_definition_is_bounded_by_its_frame() -> None:
    """A control frame beyond the limit is no message: it never reaches the core."""
    from gt.errors import ProtocolError

    with pytest.raises(ProtocolError):
        m.decode([msgpack.packb([5, 1, 1, bytes(m.MAX_CONTROL)])])


# links between hosts


def test_workers_of_different_hosts_are_introduced_and_what_they_measure_counts() -> None:
    """One of each other host; meshes that are made later have links as measured, also after nonsense and losses."""
    each = service(0, expected=3)
    for name, host in [("a1", "a"), ("a2", "a"), ("b1", "b")]:
        each.hello(name, "worker", address=f"tcp://{name}", bulk=b"bulk-" + name.encode(), device="cpu", host=host)
    assert each.hears("a1", m.Meet) == []
    assert each.hears("b1", m.Meet) == [m.Meet([1], ["tcp://a2"])]
    assert each.hears("a2", m.Meet) == [m.Meet([2], ["tcp://b1"])]
    each.say("b1", m.Linked(1, 1_000_000, 5_000_000), m.Linked(77, 1, 1))
    number = each.client()
    each.say("c", m.Configure(1, Config.from_plain({"mesh": {"data": 3}}).to_wire()))
    (record,) = [record for record in each.core.service.meshes.values() if record.client == number]
    (link,) = record.speeds.links
    assert link == (rounded(1e6), rounded(5e-3))
    each.event(Lost(b"b1", "killed"))
    assert all(worker.links == {} for worker in each.core.service.workers.values())
