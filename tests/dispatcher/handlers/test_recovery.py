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
    time_passes,
    to_improve,
)
from measured_calls import counted_steps
from one_dispatcher import NEG, VECTOR, Service, fault_of

from gt.dispatcher.session_plans.plan_selection import SEARCH_AT, SWITCH_AT
from gt.dispatcher.state.events import Lost
from gt.dispatcher.state.mark_bytes import SessionCard
from gt.dispatcher.state.mark_wait import LEAST_SECONDS, SLOW_BYTES_PER_SECOND, MarkWait, Overdue
from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.session_marks import MAX_IDLE_REWINDS
from gt.ir.dtypes import float32
from gt.ir.instruction_bytes import pack_plan, pack_segment
from gt.ir.spec import pack_spec, spec
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


def going_back(workers: int, **facts: Any) -> tuple[Service, int]:
    """A session that has lost one of its two workers, and is restored on workers 0 and 2; its mark."""
    each = service(workers, config=RULES)
    if facts:
        each.join("s", marks=True, **facts)
    mark = settled_mark(each)
    lose(each, "w1", returns=False)
    each.say("c", m.Resume(2, mark))
    assert each.hears("w2", m.RestoreMark) == each.hears("w0", m.RestoreMark)
    each.say("w0", m.MarkRestored(mark, 2, []))
    each.hears("c")
    return each, mark


@pytest.mark.parametrize("spare", [True, False])
def test_a_worker_that_lives_and_does_not_restore_is_not_waited_for_for_ever(spare: bool) -> None:
    """The session goes back once more, with another one or a spare in its place."""
    each, mark = going_back(3, spare=True) if spare else going_back(4)
    time_passes(each, LEAST_SECONDS - 1)
    assert not each.hears("c", m.Rewind)
    time_passes(each, 10)
    (rewind,) = each.hears("c", m.Rewind)
    assert (rewind.text, rewind.lost) == ("worker 2 has not restored what a mark of the session has within 60 s", 2)
    assert any("client 2: worker 2 has not restored" in line for line in each.log)
    each.say("w2", m.MarkRestored(mark, 2, []))
    each.say("c", m.Resume(rewind.session, mark))
    assert not each.hears("w2", m.RestoreMark), "it had its time"
    restore(each, mark)
    assert each.core.service.clients[b"c"].planner.mesh.members == (0, 3)
    each.run(1, 10, [1])
    assert each.hears("w0", m.Execute)
    assert len(each.core.service.workers) == 3, "it lives, and others may use it"


def test_a_session_is_told_when_only_a_worker_is_left_that_does_not_restore() -> None:
    """It loses its tensors, and goes on."""
    each, _ = going_back(3)
    each.run(1, 10, [1])
    time_passes(each, LEAST_SECONDS + 5)
    text = "worker 2 has not restored what a mark of the session has within 60 s; what it held is gone"
    assert each.hears("c", m.Unkept, m.Rewind) == [m.Unkept(text)]
    assert fault_of(each, 10) == ("WorkerLost", text)
    each.put(20)
    each.run(1, 21, [20])
    assert each.hears("w0", m.Execute) or each.hears("w2", m.Execute)


def test_a_worker_has_time_for_what_it_was_sent_before() -> None:
    """A plan of another session may take as long as it likes."""
    each = service(2)
    mark = settled_mark(each)
    each.client("d")
    each.put(1, "d")
    each.define(1, client="d")
    each.run(1, 10, [1], "d")
    lose(each, "w0", returns=False)
    each.say("c", m.Resume(number_of(each), mark))
    assert each.hears("w1", m.RestoreMark)
    each.hears("c")
    time_passes(each, 10 * LEAST_SECONDS)
    assert not each.hears("c", m.Unkept)
    each.done("w1")
    time_passes(each, LEAST_SECONDS - 1)
    assert not each.hears("c", m.Unkept)
    time_passes(each, 10)
    assert each.hears("c", m.Unkept)


def first_overdue(each: Service, table: dict[int, Entry]) -> tuple[float, int]:
    """The first time, on the whole seconds, at which a worker that never answers is overdue, and the most steps of one look."""
    wait, steps = MarkWait(0, table), 0
    found: list[Overdue | None] = [None]
    while found[-1] is None:
        steps = max(steps, counted_steps(lambda: found.append(wait.overdue([0], each.core.service))))
        each.core.service.now += 1
    assert found[-1] is not None
    assert each.core.service.now - 1 > found[-1].seconds
    return found[-1].seconds, steps


def test_large_sessions_have_more_time_to_be_restored() -> None:
    """Whose tensors are added up, a few in each look."""
    each = service(1)
    entry = each.table()[1]
    assert isinstance(entry, Entry)
    one = replace(entry, spec=spec(float32, (SLOW_BYTES_PER_SECOND // 4,)))
    lost = replace(one, fault=("WorkerLost", "it is gone"))
    assert first_overdue(each, {1: one, 2: one, 3: lost})[0] == LEAST_SECONDS + 2
    each.core.service.now = 0.0
    many = {n: replace(entry, spec=spec(float32, (1 + n,))) for n in range(20_000)}
    seconds, steps = first_overdue(each, {**many, -1: one, -2: one})
    assert seconds == LEAST_SECONDS + 2 + sum(each.spec.nbytes for each in many.values()) / SLOW_BYTES_PER_SECOND
    assert steps < 20_000


def test_a_worker_that_nobody_starts_again_is_replaced_if_there_is_another() -> None:
    """And if there is none the session loses what it had, as it is told."""
    each = service(2)
    mark = settled_mark(each)
    lose(each, "w0", returns=False)
    each.say("c", m.Resume(2, mark))
    assert each.hears("w1", m.RestoreMark)
    restore(each, mark)
    each.say("w1", m.MarkRestored(mark, 2, []))
    lose(each, "w1", returns=False)
    assert [type(told) for told in each.hears("c", m.Rewind, m.Unkept)][-1] is m.Unkept
    assert fault_of(each, 1)[0] == "WorkerLost"


REST: dict[str, Any] = {"mesh": {"data": "auto"}, "sharding_config": {"net": {"strategy": "data_parallel"}}}


def rest(config: Any = REST) -> tuple[Service, int]:
    """A service of three workers, whose session has tensor 1, cut in three, and a mark with it."""
    each = service(3, config=config)
    each.put(2, signal=("net",))
    each.done()
    return each, settled_mark(each)


def lose_patience(each: Service) -> None:
    """The service waits no longer for workers; everybody else lives."""
    until = each.now + each.core.patience + 1.0
    while each.now < until:
        for peer in [*each.core.peers]:
            each.say(peer.decode(), m.Ping())
        pass_time(each, 10.0)


@pytest.mark.parametrize("mesh", [{"data": "auto"}, None])
def test_a_session_goes_on_with_the_workers_that_remain(mesh: Any) -> None:
    """If nobody comes in place of the lost one: they read their parts from the files of all ranks."""
    each, mark = rest({**REST, "mesh": mesh} if mesh else {"sharding_config": REST["sharding_config"]})
    weights = [list(row) for row in each.core.service.clients[b"c"].planner.mesh.weights]
    lose(each, "w1", returns=False)
    each.say("c", m.Resume(number_of(each), mark))
    (told,) = each.hears("w0", m.RestoreParts)
    assert (told.mark, told.weights, told.tensors, told.more) == (mark, weights, [1, 2], False)
    assert [told.kinds[at][1:] for at in told.which] == [["R", "R"], ["S0", "S0"]]
    assert each.hears("w2", m.RestoreParts) == [told]
    client = each.core.service.clients[b"c"]
    assert client.planner.mesh.members == (0, 2)
    each.run(1, 10, [1])
    assert 10 not in each.table(), "first everything is there"
    each.told.clear()
    for worker in ("w0", "w2"):
        each.say(worker, m.MarkRestored(mark, client.number, []))
    assert set(each.table()) == {1, 2, 10}
    assert each.hears("w0", m.Execute)
    each.done()
    pass_time(each, 0.1)
    assert each.hears("w2", m.TakeMark), "from the former mark it would have to come here again"


def test_a_worker_that_is_started_again_is_waited_for() -> None:
    """The rest goes on only when the service waits no longer."""
    each, mark = rest()
    lose(each, "w1")
    each.say("c", m.Resume(number_of(each), mark))
    assert each.core.service.clients[b"c"].head == "waiting for workers"
    lose_patience(each)
    assert each.hears("w0", m.RestoreParts)


def test_a_mark_that_is_restored_on_the_rest_serves_once_more() -> None:
    """Another worker is lost before there is a mark on the smaller mesh: then even fewer go on."""
    each, mark = rest()
    lose(each, "w1", returns=False)
    each.say("c", m.Resume(number_of(each), mark))
    assert each.hears("w0", m.RestoreParts)
    lose(each, "w2", returns=False)
    each.say("c", m.Resume(number_of(each), mark))
    (told,) = each.hears("w0", m.RestoreParts)
    assert told.client == number_of(each) == 3
    restore(each, mark)
    each.say("w0", m.MarkRestored(mark, 3, []))
    each.run(1, 10, [1])
    assert each.hears("w0", m.Execute)


def test_what_needs_all_workers_is_said_with_what_it_needs() -> None:
    each, mark = rest({**REST, "mesh": {"data": 3}})
    lose(each, "w1")
    each.say("c", m.Resume(number_of(each), mark))
    lose_patience(each)
    kind, text = fault_of(each, 1)
    assert kind == "WorkerLost"
    assert "3 workers are needed" in text
    assert "takes 3 workers, there are 2" in text


def test_a_part_whose_file_cannot_be_read_is_looked_for_elsewhere() -> None:
    """Other ranks have replicas of it; only if they have not is it lost."""
    each, mark = rest()
    lose(each, "w1")
    each.join("w3", marks=True)
    each.say("c", m.Resume(number_of(each), mark))
    for worker in ("w0", "w2"):
        each.say(worker, m.MarkRestored(mark, 2, []))
    each.say("w3", m.MarkRestored(mark, 2, FAULT))
    (told,) = each.hears("w3", m.RestoreParts)
    assert not each.hears("w0", m.RestoreParts)
    assert all(before == after for _, before, after in told.kinds)
    each.say("w3", m.MarkRestored(mark, 2, []))
    each.run(1, 10, [1])
    assert each.hears("w3", m.Execute)


def test_a_session_that_ends_its_workers_is_not_tried_for_ever() -> None:
    each = service(1)
    for attempt in range(MAX_IDLE_REWINDS + 2):
        each.run(1, 10, [1])
        lose(each, f"w{attempt}")
        each.join(f"w{attempt + 1}", marks=True)
        if not each.hears("c", m.Rewind):
            break
        each.say("c", m.Resume(number_of(each), 0))
        each.put(1)
        each.define(1)
    assert attempt == MAX_IDLE_REWINDS + 1
    assert "worker 6 was lost" in fault_of(each, 1)[1]


def test_a_plan_at_which_workers_fail_by_themselves_is_tried_once_more() -> None:
    """A device that fails, or a bug: the second time the session is told, and goes on without what it had."""
    each = service(1)
    for attempt in range(2):
        each.run(1, 10, [1])
        each.say(f"w{attempt}", m.Goodbye("WorkerLost", "the device has failed"))
        each.join(f"w{attempt + 1}", marks=True)
        for told in each.hears("c", m.Rewind):
            each.say("c", m.Resume(told.session, 0))
            each.put(1)
            each.define(1)
    assert "the device has failed" in fault_of(each, 10)[1]
    each.put(20)
    each.run(1, 21, [20])
    assert each.hears("w2", m.Execute)


def test_a_session_that_says_its_mesh_needs_as_many_workers() -> None:
    """Where nobody starts another in the place of the lost one it is told at once."""
    each = service(2, config=RULES)
    each.put(2, signal=("net",))
    each.done()
    lose(each, "w1", returns=False)
    assert not each.hears("c", m.Rewind)
    assert fault_of(each, 2)[0] == "WorkerLost"


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


SPEC = pack_spec(VECTOR)
PARTS, LATER_PARTS = "0123456789abcdef", "f" * 16


def write(each: Service, parts: str = PARTS, *tensors: int, request: int = 5) -> None:
    each.say("c", m.WriteSnapshot(request, "a", parts, list(tensors), [], b"{}"))


def report(request: int, *, file: str = "", body: bytes = b"") -> m.SnapshotReport:
    return m.SnapshotReport(request, [], [file, 9, 7] if file else [], body)


def test_a_snapshot_is_written_again_and_nothing_of_the_first_time_is_committed() -> None:
    """Its files are removed when the last worker has written them; the client hears of the second time only."""
    each = service(2, config=RULES)
    mark = settled_mark(each)
    write(each, PARTS, 1)
    (first,) = each.hears("w0", m.WritePart)
    lose(each, "w1")
    assert not each.hears("c", m.Failed, m.Answer)
    each.join("w2", marks=True)
    each.say("c", m.Resume(number_of(each), mark))
    restore(each, mark)
    write(each, LATER_PARTS, 1)
    (second,) = each.hears("w2", m.WritePart)
    assert (second.client, second.parts) == (number_of(each), LATER_PARTS)
    each.say("w2", report(second.request, file="part-2-2"))
    each.say("w0", report(first.request, file="part-1-0"))
    assert each.hears("w0", m.DiscardParts, m.CommitSnapshot) == [m.DiscardParts("this process", "a", PARTS)]
    each.say("w0", report(second.request, file="part-2-0"))
    (commit,) = each.hears("w0", m.CommitSnapshot)
    assert (commit.parts, len(commit.files)) == (LATER_PARTS, 2)
    each.say("w0", report(commit.request))
    assert each.hears("c", m.Answer) == [m.Answer(5, {})]


def test_a_commit_of_the_first_time_comes_before_that_of_the_second() -> None:
    """It may have been done, and would replace what came later if it were done then."""
    each = service(2, config=RULES)
    mark = settled_mark(each)
    write(each, PARTS, 1)
    (first,) = each.hears("w0", m.WritePart)
    for worker in ("w0", "w1"):
        each.say(worker, report(first.request, file=f"part-1-{worker[1]}"))
    (commit,) = each.hears("w0", m.CommitSnapshot)
    lose(each, "w1")
    each.join("w2", marks=True)
    each.say("c", m.Resume(number_of(each), mark))
    restore(each, mark)
    write(each, LATER_PARTS)
    assert not each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(commit.request))
    assert not each.hears("c", m.Answer), "that was not asked for by this incarnation"
    (again,) = each.hears("w0", m.CommitSnapshot)
    assert again.parts == LATER_PARTS
    each.say("w0", report(again.request, body=PARTS.encode()))
    assert each.hears("c", m.Answer) == [m.Answer(5, {})]


@pytest.mark.parametrize("settled", [False, True])
def test_files_stay_while_tensors_may_have_to_be_restored_from_them_again(settled: bool) -> None:
    """Until the client would go back to a mark that has the tensors."""
    each = service(1)
    mark = settled_mark(each)
    each.say("c", m.Restore(7, SPEC, [], -1, "a", PARTS, "w", []))
    each.say("w0", m.Loaded(1, 7, []))
    each.done()
    if settled:
        each.say("c", m.RequestMark(True))
        (taken,) = each.hears("w0", m.TakeMark)
        each.say("w0", m.MarkTaken(taken.mark, [], 0))
        each.say("c", m.Settled(taken.mark))
    write(each, LATER_PARTS)
    (commit,) = each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(commit.request, body=PARTS.encode()))
    discard = m.DiscardParts("this process", "a", PARTS)
    assert each.hears("w0", m.DiscardParts) == [discard] * settled
    if not settled:
        lose(each, "w0")
        each.join("w1", marks=True)
        each.say("c", m.Resume(2, mark))
        restore(each, mark)
        pass_time(each, 1.0)
        assert not each.hears("w1", m.DiscardParts)
        each.say("c", m.Restore(7, SPEC, [], -1, "a", PARTS, "w", []))
        assert [told.parts for told in each.hears("w1", m.LoadPart)] == [PARTS]
        each.say("w1", m.Loaded(2, 7, []))
        each.say("c", m.Goodbye("", ""))
        pass_time(each, 1.0)
        assert each.hears("w1", m.DiscardParts) == [discard]


def test_removals_of_a_lost_worker_are_done_by_the_next() -> None:
    each = service(1)
    write(each)
    (commit,) = each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(commit.request, body=PARTS.encode()))
    assert each.hears("w0", m.DiscardParts)
    lose(each, "w0")
    each.join("w1", marks=True)
    assert each.hears("w1", m.DiscardParts) == [m.DiscardParts("this process", "a", PARTS)]


def test_a_session_goes_back_if_a_worker_that_it_has_left_still_wrote_for_it() -> None:
    """Its tensors have moved to another mesh since."""
    each = service(2, config=RULES)
    write(each, PARTS, 1)
    client = each.core.service.clients[b"c"]
    assert each.hears("w1", m.WritePart)
    each.core.disconnect._leave(client)
    client.table.clear()
    lose(each, "w1")
    assert not each.hears("c", m.Failed)
    assert number_of(each) != client.number
