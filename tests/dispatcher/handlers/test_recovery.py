"""Sessions that go back to a mark when they have lost a worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from marking_dispatcher import (
    FAULT,
    IMPROVABLE,
    improvable,
    lose,
    pass_time,
    restore,
    service,
    settled_mark,
    to_improve,
)
from one_dispatcher import NEG, Service, fault_of

from gt.dispatcher.session_plans.plan_selection import SEARCH_AT, SWITCH_AT
from gt.dispatcher.state.events import Lost
from gt.dispatcher.state.mark_bytes import SessionCard
from gt.ir.instruction_bytes import pack_plan, pack_segment
from gt.wire import messages as m

RULES: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}


def number_of(each: Service, client: str = "c") -> int:
    found: int = each.core.service.clients[client.encode()].number
    return found


def test_without_a_mark_a_session_begins_again() -> None:
    """What the client sends before it has answered is of the time before; from then on all is as at the first time."""
    each = service(1)
    each.run(1, 10, [1])
    lose(each, "w0")
    (rewind,) = each.hears("c")
    assert isinstance(rewind, m.Rewind)
    assert rewind.session == number_of(each) == 2
    assert "worker 0 was lost" in rewind.text
    each.run(1, 11, [10])
    each.say("c", m.Fetch(5, 11))
    assert not each.hears("c"), "it is of the session before"
    each.say("c", m.Resume(2, 0))
    each.put(1)
    each.join("w1", marks=True)
    each.define(1)
    each.run(1, 10, [1])
    assert [type(told).__name__ for told in each.hears("w1", m.Store, m.Execute)] == ["Store", "Execute"]
    each.say("c", m.Fetch(5, 10))
    assert each.hears("w1", m.Collect)[0].client == 2
    assert each.core.service.counters.recoveries == 1


@pytest.mark.parametrize("others", ["none", "a session", "another kind"])
def test_before_its_first_mark_a_session_begins_again_on_an_idle_worker(others: str) -> None:
    """It need not wait for the one that it has lost, unless the rest is somebody else's, or would give other bits."""
    each = service(1)
    each.join("w1", marks=True, **({"kind": "cuda"} if others == "another kind" else {}))
    each.run(1, 10, [1])
    if others == "a session":
        each.client("d")
        each.put(1, "d")
    lose(each, "w0")
    each.hears("w1")
    each.say("c", m.Resume(number_of(each), 0))
    each.put(1)
    each.define(1)
    each.run(1, 10, [1])
    waits = others != "none"
    assert each.core.service.counters.recoveries == (not waits)
    assert [type(told).__name__ for told in each.hears("w1", m.Store, m.Execute)] == (
        [] if waits else ["Store", "Execute"]
    )
    each.join("w2", marks=True)
    assert each.core.service.counters.recoveries == 1
    assert bool(each.hears("w1", m.Execute) + each.hears("w2", m.Execute)) == waits


def test_ranks_go_to_workers_that_have_their_files() -> None:
    """Those of other machines have other folders."""
    each = Service(0, config=RULES, expected=2)
    for name, folder in (("w0", "a:1:1"), ("w1", "b:1:1")):
        each.join(name, marks=True, mark_folder=folder)
    each.client(resends=True)
    each.put(1, signal=("net",))
    each.done()
    mark = settled_mark(each)
    assert each.core.service.clients[b"c"].recovery.marks[-1].folders == ("a:1:1", "b:1:1")
    for name in ("w0", "w1"):
        lose(each, name)
    each.say("c", m.Resume(each.hears("c", m.Rewind)[-1].session, mark))
    for name, folder in (("w2", "b:1:1"), ("w3", "a:1:1"), ("w4", "c:1:1")):
        each.join(name, marks=True, mark_folder=folder)
    (record,) = each.core.service.meshes.values()
    assert record.mesh.members == (3, 2)
    restore(each, mark)


def test_files_that_nobody_needs_are_removed_in_each_folder_by_one_worker() -> None:
    each = Service(0, expected=3)
    for name, folder in (("w0", "a:1:1"), ("w1", "a:1:1"), ("w2", "b:1:1")):
        each.join(name, marks=True, mark_folder=folder)
    each.core.marks.drop_all([SessionCard(bytes(16), "somebody", 5, {}, {})])
    pass_time(each, 1.0)
    assert {name for name in ("w0", "w1", "w2") if each.hears(name, m.DropMark) == [m.DropMark(5)]} == {"w0", "w2"}


def test_a_session_goes_back_to_its_mark() -> None:
    """Tensors, definitions and plans are as they were at the mark, on a mesh with another worker in the lost one's place."""
    each = service(2, config=RULES)
    each.run(1, 10, [1])
    mark = settled_mark(each)
    each.run(1, 11, [10], dying=[0])
    before = each.core.service.meshes[each.core.service.clients[b"c"].planner.mesh.number].mesh
    lose(each, "w1")
    (rewind,) = each.hears("c", m.Rewind)
    each.say("c", m.Resume(rewind.session, mark))
    assert not each.hears("w0", m.RestoreMark), "two workers are needed"
    each.join("w2", marks=True)
    client = each.core.service.clients[b"c"]
    assert client.head == "waiting for what a mark has"
    mesh = client.planner.mesh
    assert (mesh.members, mesh.sizes, mesh.weights) == ((0, 2), before.sizes, before.weights)
    assert mesh.number > before.number
    each.run(1, 11, [10], dying=[0])
    each.run(1, 12, [1])
    assert set(each.table()) == {1, 10}, "first everything is there"
    restore(each, mark)
    assert set(each.table()) == {1, 11, 12}
    assert (client.arrived, client.credited) == (4, 2)
    each.done()
    each.say("c", m.Fetch(3, 11))
    assert each.hears("w2", m.Collect)[0].client == rewind.session


def test_restored_workers_see_only_what_comes_after() -> None:
    each = service(1)
    mark = settled_mark(each)
    lose(each, "w0")
    each.join("w1", marks=True)
    each.hears("w1")
    each.say("c", m.Resume(2, mark))
    each.run(1, 10, [1])
    told = each.hears("w1")
    assert [type(message) for message in told] == [m.DefineMesh, m.RestoreMark]
    each.say("w1", m.MarkRestored(mark, 2, []))
    assert [type(message) for message in each.hears("w1")] == [m.DefinePlan, m.Execute]


@pytest.mark.parametrize("runs_before", range(SWITCH_AT + 2))
def test_plans_are_improved_at_the_same_run(runs_before: int) -> None:
    """The bits of later runs depend on which plan they get, so how often it ran, and what was found, belong to the mark."""

    def runs(*, goes_back: bool) -> list[tuple[int, bool, bool, bytes]]:
        each = to_improve()
        known = each.core.service.clients[b"c"]

        def run(base: int) -> None:
            each.run(IMPROVABLE, base, [2, 3])
            each.done()

        for at in range(runs_before):
            run(10 + 10 * at)
        mark = settled_mark(each)
        if goes_back:
            run(100)
            lose(each, "w1")
            each.join("w2", marks=True)
            each.say("c", m.Resume(number_of(each), mark))
            restore(each, mark)
            known = each.core.service.clients[b"c"]
        found = []
        for at in range(SWITCH_AT + 2):
            run(200 + 10 * at)
            (cached,) = known.plans.values()
            plan = pack_plan(replace(cached.planned.plan, mesh=0))
            found.append((cached.runs, cached.searched, cached.better is not None, plan))
        return found

    found = runs(goes_back=False)
    if runs_before < SWITCH_AT - 1:
        assert found[0][3] != found[-1][3], "a better plan takes over"
    assert runs(goes_back=True) == found


def test_a_search_that_was_under_way_is_begun_again() -> None:
    """And the run that waits for it goes on."""
    each = to_improve()
    for at in range(SEARCH_AT - 1):
        each.run(IMPROVABLE, 10 + 10 * at, [2, 3])
        each.done()
    each.idle = False
    each.run(IMPROVABLE, 100, [2, 3])
    (cached,) = each.core.service.clients[b"c"].plans.values()
    assert (cached.runs, cached.searched) == (SEARCH_AT, False)
    each.idle = True
    mark = 1
    each.core.service.clients[b"c"].recovery.due = True
    each.core.marks.take(each.core.service.clients[b"c"])
    for worker in ("w0", "w1"):
        each.say(worker, m.MarkTaken(mark, [], 0))
    each.say("c", m.Settled(mark))
    lose(each, "w1")
    each.join("w2", marks=True)
    each.say("c", m.Resume(number_of(each), mark))
    restore(each, mark)
    for at in range(SWITCH_AT):
        each.run(IMPROVABLE, 200 + 10 * at, [2, 3])
        each.done()
    last = len(improvable().instructions) - 1
    assert set(each.table()) >= {200 + 10 * at + last for at in range(SWITCH_AT)}


def test_definitions_of_a_mark_are_known() -> None:
    each = service(1)
    each.define(2, NEG)
    mark = settled_mark(each)
    each.say("c", m.Drop(2))
    lose(each, "w0")
    each.join("w1", marks=True)
    each.say("c", m.Resume(2, mark))
    restore(each, mark)
    each.say("c", m.Drop(2), m.Define(2, pack_segment(NEG)))
    assert not each.hears("c", m.Failed)


def test_a_second_loss_on_the_way_begins_again() -> None:
    each = service(2, config=RULES)
    mark = settled_mark(each)
    lose(each, "w1")
    each.join("w2", marks=True)
    each.say("c", m.Resume(2, mark))
    assert each.hears("w0", m.RestoreMark)
    lose(each, "w2")
    rewinds = each.hears("c", m.Rewind)
    assert [told.session for told in rewinds] == [2, 3]
    each.say("c", m.Resume(2, mark))
    each.say("w0", m.MarkRestored(mark, 2, []))
    each.join("w3", marks=True)
    assert not each.hears("w0", m.RestoreMark), "it has not heard of the second loss"
    each.say("c", m.Resume(3, mark))
    restore(each, mark)
    each.run(1, 10, [1])
    assert each.hears("w0", m.Execute)
    assert each.hears("w3", m.Execute)


def test_a_second_loss_on_the_way_may_be_the_last() -> None:
    """If nobody takes the place of the second worker, what the first one was to bring back is lost, and nothing waits for it."""
    each = service(2, config=RULES)
    mark = settled_mark(each)
    lose(each, "w1")
    each.join("w2", marks=True)
    each.say("c", m.Resume(2, mark))
    each.run(1, 10, [1])
    each.say("c", m.Fetch(5, 10))
    assert not each.hears("c", m.Failed), "what the mark has is on its way"
    lose(each, "w2", returns=False)
    (failed,) = each.hears("c", m.Failed)
    assert (failed.request, failed.kind) == (5, "WorkerLost")
    assert "worker 2 was lost" in failed.text
    each.say("w0", m.MarkRestored(mark, 2, []))
    assert fault_of(each, 1)[0] == "WorkerLost"


def test_an_unsettled_mark_serves_as_well() -> None:
    """The client says from which mark it can go on; the others are dropped."""
    each = service(1)
    first = settled_mark(each)
    each.run(1, 10, [1])
    each.say("c", m.RequestMark(True))
    (second,) = each.hears("w0", m.TakeMark)
    each.say("w0", m.MarkTaken(second.mark, [], 0))
    lose(each, "w0")
    each.join("w1", marks=True)
    each.say("c", m.Resume(2, first))
    assert each.hears("w1", m.DropMark, m.RestoreMark) == [
        m.DropMark(second.mark),
        m.RestoreMark(first, 2, each.core.service.clients[b"c"].planner.mesh.number),
    ]
    restore(each, first)
    each.say("w1", m.MarkRestored(first, 2, []))
    assert set(each.table()) == {1}


def test_a_mark_that_is_being_written_is_given_up() -> None:
    each = service(2, config=RULES)
    each.say("c", m.RequestMark(True))
    (taken,) = each.hears("w0", m.TakeMark)
    lose(each, "w1")
    assert each.hears("w0", m.DropMark) == [m.DropMark(taken.mark)]
    each.say("w0", m.MarkTaken(taken.mark, [], 0))
    assert not each.hears("c", m.Durable)


def test_what_cannot_be_restored_is_lost_in_words() -> None:
    """Each tensor has the error; the session goes on."""
    each = service(1)
    mark = settled_mark(each)
    lose(each, "w0")
    each.join("w1", marks=True)
    each.say("c", m.Resume(2, mark))
    each.run(1, 10, [1])
    each.say("w1", m.MarkRestored(mark, 2, FAULT), m.MarkRestored(mark, 2, FAULT))
    assert len(each.hears("c", m.Unkept)) == 1
    kind, text = fault_of(each, 10)
    assert kind == "SnapshotError"
    assert "no space left" in text
    each.put(20)
    each.run(1, 21, [20])
    assert each.hears("w1", m.Execute)


def test_others_see_nothing_but_time() -> None:
    """Sessions on other workers are not touched."""
    each = service(2)
    each.client("d", resends=True)
    each.put(1, "d")
    each.define(1, client="d")
    mine = each.core.service.clients[b"d"].mesh.members
    assert mine != each.core.service.clients[b"c"].mesh.members
    each.told.clear()
    lose(each, "w0")
    each.run(1, 10, [1], "d")
    assert each.hears("w1", m.Execute)
    assert not each.hears("d", m.Rewind, m.PeerLost)


def test_messages_that_are_sent_again_are_known_as_such() -> None:
    """So that the instruction log has each once."""
    each = service(1)
    mark = settled_mark(each)
    each.run(1, 10, [1])
    each.run(1, 11, [1])
    each.run(1, 12, [1])
    assert not each.core.is_repeated(b"c")
    lose(each, "w0")
    each.run(1, 13, [1])
    assert each.core.is_repeated(b"c"), "it will come again"
    each.say("c", m.Resume(2, mark))
    for base in (10, 11, 12):
        each.run(1, base, [1])
        assert each.core.is_repeated(b"c")
    each.run(1, 13, [1])
    assert not each.core.is_repeated(b"c")


def test_a_mark_of_nobody_ends_the_session() -> None:
    each = service(1)
    lose(each, "w0")
    each.say("c", m.Resume(2, 77))
    assert "mark 77" in each.hears("c", m.Goodbye)[0].text


def test_a_client_may_leave_on_the_way() -> None:
    each = service(2, config=RULES)
    mark = settled_mark(each)
    lose(each, "w1")
    each.say("c", m.Resume(2, mark))
    pass_time(each, 0.5)
    each.event(Lost(b"c", "it ended"))
    assert each.hears("w0", m.DropMark) == [m.DropMark(mark)]


def statistics(each: Service) -> dict[str, Any]:
    each.say("c", m.Ask(99, "statistics"))
    (answer,) = each.hears("c", m.Answer)
    found: dict[str, Any] = answer.facts
    return found


def test_a_session_counts_its_marks_and_recoveries() -> None:
    """And how long the last recovery took, from the loss until its tensors are there; what it counted before goes on."""
    each = service(1)
    told = statistics(each)["session"]
    assert (told["marks"], told["recoveries"], told["recovery_seconds"]) == (0, 0, 0.0)
    each.run(1, 10, [1])
    each.done()
    mark = settled_mark(each)
    each.run(1, 11, [1])
    each.done()
    before = statistics(each)["session"]
    lose(each, "w0")
    hits = each.core.service.counters.plan_hits + sum(client.hits for client in each.core.service.clients.values())
    assert hits == before["plan_hits"] == 1, "counted once"
    pass_time(each, 0.5)
    each.say("c", m.Resume(2, mark))
    each.join("w1", marks=True)
    pass_time(each, 0.25)
    restore(each, mark)
    told = statistics(each)["session"]
    assert (told["marks"], told["recoveries"], told["recovery_seconds"]) == (1, 1, 0.75)
    assert told["plan_hits"] == 1


def test_without_a_mark_a_recovery_lasts_until_there_are_workers() -> None:
    each = service(1)
    lose(each, "w0")
    each.say("c", m.Resume(2, 0))
    recovery = each.core.service.clients[b"c"].recovery
    assert recovery.recoveries == 0
    pass_time(each, 0.5)
    each.join("w1", marks=True)
    assert (recovery.recoveries, recovery.recovery_seconds) == (1, 0.5)
