"""Sessions of many tensors are marked, go back and lose workers in turns, each of few steps."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from event_steps import (
    FIRST_RUNS,
    MANY,
    MAX_STEPS,
    STEPS_PER_SESSION,
    most_steps,
    steps_of,
    unlike,
)
from marking_dispatcher import lose, restore, service, settled_mark
from measured_calls import counted_steps
from one_dispatcher import RULES, Service, started

from gt.dispatcher.handlers.marks import MARK_SECONDS
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.session_meshes.mesh_migration import MAX_TENSORS_OF_PART
from gt.dispatcher.state.events import JobTurn, Lost, Received, SessionWritten, Tick
from gt.dispatcher.state.mark_bytes import PackedParts, SessionCard, pack_session, read_mark
from gt.dispatcher.state.message_state import MessageState
from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.records import ClientRecord
from gt.dispatcher.state.session_marks import COPIED_PER_TURN
from gt.dispatcher.state.shared_parts import MAX_SHARED_TENSORS, MIN_BYTES
from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.sharding.placement import Shard
from gt.wire import messages as m
from gt.wire.messages import codec


def test_a_mark_of_many_tensors_is_taken_and_restored_in_turns() -> None:
    """Also when a worker looks for its part in the files of all, and when nobody has it at last."""
    each = service(2, config=RULES)
    unlike(each)
    assert steps_of(each, Tick()) < MAX_STEPS
    each.now += MARK_SECONDS
    assert steps_of(each, Tick()) < MAX_STEPS
    (taken,) = each.hears("w0", m.TakeMark)
    for name in ("w0", "w1"):
        assert most_steps(each, name, m.MarkTaken(taken.mark, [], 1)) < MAX_STEPS
    each.core.service.workers[b"w0"].facts["supervised"] = True
    assert steps_of(each, Lost(b"w0", "it ended", ended=True)) < MAX_STEPS
    each.join("w4", marks=True)
    client = each.core.service.clients[b"c"]
    assert most_steps(each, "c", m.Resume(client.number, taken.mark)) < MAX_STEPS
    assert most_steps(each, "w1", m.MarkRestored(taken.mark, client.number, [])) < MAX_STEPS
    for _ in range(2):
        assert all(entry.fault is None for entry in client.table.values()), "it waits for the last worker"
        assert (
            most_steps(each, "w4", m.MarkRestored(taken.mark, client.number, ["SnapshotError", "damaged"])) < MAX_STEPS
        )
    assert len(client.table) == MANY + 1
    assert all(entry.fault is not None for entry in client.table.values())


def said(each: Service, peer: str, message: Any) -> int:
    """The most steps that an event takes while a message is acted on, and what follows from it; peers hear what they are told."""
    return steps_of(each, Received(peer.encode(), codec.decode(codec.encode(message), codec.TO_DISPATCHER)))


def test_peers_send_what_a_new_machine_needs_of_many_tensors_in_turns() -> None:
    """Of each other tensor it had a part that nobody else has: that is lost."""
    each = Service(0, config=RULES, expected=2)
    for name in ("w0", "w1"):
        each.join(name, marks=True, mark_folder=name)
    each.client(resends=True)
    each.put(1)
    each.done()
    tensors = unlike(each)
    client = each.core.service.clients[b"c"]
    cut = ResidentPlacement((Shard(0),))
    lost = {*tensors[::2]}
    client.table.update((tensor, replace(client.table[tensor], resident=cut)) for tensor in lost)
    mark = settled_mark(each)
    each.core.service.workers[b"w0"].facts["supervised"] = True
    assert steps_of(each, Lost(b"w0", "it ended", ended=True)) < MAX_STEPS
    each.join("w4", marks=True, mark_folder="w4")
    client = each.core.service.clients[b"c"]
    assert said(each, "c", m.Resume(client.number, mark)) < MAX_STEPS
    assert said(each, "w1", m.MarkRestored(mark, client.number, [])) < MAX_STEPS
    for _ in range(2):
        assert said(each, "w4", m.MarkRestored(mark, client.number, ["SnapshotError", "gone"])) < MAX_STEPS
    sent = []
    while told := each.hears("w1", m.PackParts):
        for pack in told:
            sent += pack.tensors
            assert said(each, "w1", m.PartsPacked(client.number, pack.packed, 100, [])) < MAX_STEPS
        each.done()
    assert {*sent} == {1, *tensors} - lost
    assert said(each, "w4", m.MarkRestored(mark, client.number, [])) < MAX_STEPS
    assert {tensor for tensor, entry in client.table.items() if entry.fault is not None} == lost
    assert len(client.table) == MANY + 1


def copying(each: Service, count: int = 3 * COPIED_PER_TURN) -> ClientRecord:
    """The client, with so many tensors of which a mark is due: the first of them are copied."""
    unlike(each, count)
    each.event(Tick())
    each.now += MARK_SECONDS
    each.idle = False
    each.event(Tick())
    client = each.core.service.clients[b"c"]
    while client.recovery.copying is None:
        each.event(JobTurn())
    return client


def test_a_mark_copies_few_tensors_in_one_turn() -> None:
    """What its client says meanwhile waits, and the mark is of the place before that."""
    each = service(2, config=RULES)
    client = copying(each)
    recovery, position, before = client.recovery, client.recovery.over, dict(client.table)
    each.run(1, 1 << 60, [1], freed=[(1 << 50) + n for n in range(100)])
    copied, sizes = recovery.copying, [0]
    assert copied is not None
    while recovery.taking is None:
        sizes.append(len(copied))
        each.event(JobTurn())
    assert max(b - a for a, b in itertools.pairwise(sizes)) <= COPIED_PER_TURN
    mark = recovery.taking
    assert mark.table == before
    assert max(map(len, copied.parts)) <= COPIED_PER_TURN, "none grows beyond that"
    assert mark.position == position
    order = [type(told) for told in each.hears("w0", m.TakeMark, m.Execute)]
    each.idle = True
    each.event(Tick())
    assert (order + [type(told) for told in each.hears("w0", m.TakeMark, m.Execute)]) == [m.TakeMark, m.Execute]
    assert client.table.keys() == {*before, 1 << 60} - {(1 << 50) + n for n in range(100)}


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("supervised", [True, False])
def test_a_mark_is_given_up_whose_table_is_being_copied_when_a_worker_is_lost(returns: bool, supervised: bool) -> None:
    """Whether the session goes back, loses its tensors, or leaves as well."""
    each = service(2, config=RULES)
    client = copying(each)
    each.core.service.workers[b"w0"].facts["supervised"] = supervised
    each.event(Lost(b"w0", "it ended", ended=True))
    if not returns:
        each.event(Lost(b"c", "it ended", ended=True))
    each.idle = True
    each.event(Tick())
    assert client.recovery.copying is None
    assert not each.hears("w1", m.TakeMark)
    assert (b"c" in each.core.service.clients) == returns
    if returns:
        assert each.core.service.clients[b"c"].recovery.awaited == supervised


def test_who_writes_what_several_workers_hold_is_found_in_few_steps() -> None:
    """Of as many tensors as are looked at, no two of them alike."""
    each = Service(0, config=RULES, expected=2)
    for name in ("w0", "w1"):
        each.join(name, marks=True, mark_folder="one")
    each.client(resends=True)
    each.put(1)
    each.done()
    client = each.core.service.clients[b"c"]
    assert client.planner is not None
    resident = ResidentPlacement(client.planner.mesh.replicated)
    for n in range(MAX_SHARED_TENSORS - 1):
        client.table[n + 2] = Entry(spec(float32, (MIN_BYTES // 4 + n,)), client.planner.mesh.number, resident)
    each.now += MARK_SECONDS
    for _ in range(2):
        assert steps_of(each, Tick()) < MAX_STEPS
        each.now += MARK_SECONDS
    told = each.hears("w0", m.ShareMark)
    assert [tensor for share in told for tensor in share.tensors] == [*range(2, MAX_SHARED_TENSORS + 1)]


@pytest.mark.parametrize("whole", [True, False])
def test_a_worker_is_lost_in_turns_by_a_session_of_many_tensors(whole: bool) -> None:
    """Whether other workers have all of them or not. A second loss meanwhile comes to its end as well."""
    each = started(3, config={"mesh": {"data": 3}, "sharding_config": {}})
    tensors = unlike(each)
    client = each.core.service.clients[b"c"]
    if not whole:
        cut = ResidentPlacement((Shard(0),))
        client.table.update((tensor, replace(client.table[tensor], resident=cut)) for tensor in tensors)
    each.hears("c")
    assert steps_of(each, Lost(b"w1", "it ended", ended=True)) < MAX_STEPS
    assert [type(told) for told in each.hears("c")] == [m.PeerLost]
    assert {entry.fault is None for tensor, entry in client.table.items() if tensor != 1} == {whole}
    each.idle = False
    each.event(Lost(b"w0", "it ended", ended=True))
    each.event(JobTurn())
    assert client.loss is not None
    assert client.head is MessageState.WAITING_CONFIG
    each.event(Lost(b"w2", "it ended", ended=True))
    each.idle = True
    assert steps_of(each, Tick()) < MAX_STEPS
    assert [type(told) for told in each.hears("c")] == [m.PeerLost] * 2
    assert client.table.keys() >= {*tensors}
    assert all(entry.fault is not None for entry in client.table.values())
    assert not each.core.service.meshes


def test_a_client_that_takes_its_session_over_again_and_again_costs_few_steps() -> None:
    """What it had is made anew in turns, and freed in turns."""
    each = service(2, config=RULES)
    unlike(each)
    each.core.service.clients[b"c"].recovery.key = bytes(16)
    mark = settled_mark(each)
    for turn in range(3):
        facts = {"bulk": b"", "resends": True, "session_key": bytes(16), "mark": mark, "sent": 9}
        assert most_steps(each, f"c{turn}", m.Hello(m.VERSION, "client", facts)) < MAX_STEPS
        client = each.core.service.clients[f"c{turn}".encode()]
        assert most_steps(each, f"c{turn}", m.Resume(client.number, mark)) < MAX_STEPS
    for name in ("w0", "w1"):
        assert most_steps(each, name, m.MarkRestored(mark, client.number, [])) < MAX_STEPS
    assert len(client.table) == MANY + 1
    assert all(entry.fault is None for entry in client.table.values())


def test_fewer_workers_are_told_of_a_mark_in_turns() -> None:
    """Of many tensors in several messages, of which the last one says so."""
    each = service(3, config={"mesh": {"data": "auto"}, "sharding_config": {}})
    tensors = unlike(each)
    mark = settled_mark(each)
    each.event(Lost(b"w1", "it ended", ended=True))
    client = each.core.service.clients[b"c"]
    assert steps_of(each, Received(b"c", m.Resume(client.number, mark))) < MAX_STEPS
    told = each.hears("w0", m.RestoreParts)
    assert [tensor for part in told for tensor in part.tensors] == [1, *tensors]
    assert [part.more for part in told] == [True] * (len(told) - 1) + [False]
    assert len(told) == -(-(MANY + 1) // MAX_TENSORS_OF_PART)


def test_marks_are_not_written_for_more_than_half_of_the_time_however_urgent() -> None:
    """A session asks again as soon as it has one: the next waits as long as the dispatcher took to write its file."""
    each = Service(0, config=RULES, expected=2, cards=())
    for name in ("w0", "w1"):
        each.join(name, marks=True)
    each.client(resends=True, session_key=bytes(16))
    each.put(1)
    each.done()
    for turn in range(3):
        each.say("c", m.RequestMark(True))
        (taken,) = each.hears("w0", m.TakeMark)
        each.event(SessionWritten(taken.mark, None, 200_000_000))
        for name in ("w0", "w1"):
            each.say(name, m.MarkTaken(taken.mark, [], 1))
        each.say("c", m.RequestMark(True))
        assert not each.hears("w0", m.TakeMark), turn
        each.now += 0.3
        each.event(Tick())
        (taken,) = each.hears("w0", m.TakeMark)
        each.event(SessionWritten(taken.mark, None, 0))
        for name in ("w0", "w1"):
            each.say(name, m.MarkTaken(taken.mark, [], 1))


@pytest.mark.parametrize("resends", [True, False])
def test_a_worker_that_many_sessions_lose_is_lost_in_turns(resends: bool) -> None:
    """Each of them is only noted in the event in which it is lost; with fetches under way, and marks that are being written.
    No turn takes longer because there are more sessions, also when another worker comes."""
    events, turns = [], []
    for count in (60, 120):
        each = service(1)
        each.core.service.workers[b"w0"].facts["supervised"] = True
        for number in range(count):
            each.now += 1.0
            each.client(f"c{number}", resends=resends)
            each.put(1, f"c{number}")
            each.say(f"c{number}", *(m.Fetch(asked, 1) for asked in range(3)))
        each.done()
        each.event(Tick())
        each.idle = False
        events.append(counted_steps(lambda: each.told_by_event(Lost(b"w0", "it ended", ended=True))))  # noqa: B023
        turns.append(steps_of(each, JobTurn()))
        awaited = [client.recovery.awaited for client in each.core.service.clients.values()]
        assert sum(awaited) == 1 + count * resends
        for peer in [*each.core.service.clients]:
            client = each.core.service.clients[peer]
            each.say(peer.decode(), m.Resume(client.number, 0))
            each.put(2, peer.decode())
        hello = m.Hello(m.VERSION, "worker", {"address": "ipc:///w1", "bulk": b"", "device": "cpu", "marks": True})
        events.append(counted_steps(lambda: each.told_by_event(Received(b"w1", hello))))  # noqa: B023
        turns.append(steps_of(each, JobTurn()))
        assert len(each.hears("w1", m.Store)) == 1 + count
    lost, came, lost_by_more, came_to_more = events
    assert lost_by_more - lost < 60 * STEPS_PER_SESSION
    assert came_to_more - came < 60 * STEPS_PER_SESSION
    assert max(turns) < MAX_STEPS


@pytest.mark.parametrize(
    ("kind", "written"), [("instructions", False), ("instructions", True), ("views of other shapes", True)]
)
def test_a_plan_that_a_mark_has_is_made_known_again_in_turns(kind: str, written: bool) -> None:
    """Whether the mark is as it was taken, or as it was read from the file of a session."""
    each = service(2, config=RULES)
    define, run = FIRST_RUNS[kind][0], m.Run(7, 1 << 54, [1], [], [], [])
    most_steps(each, "c", define, run, run._replace(base=1 << 53), counted=False)
    each.done()
    before = each.core.service.clients[b"c"].misses.total()
    mark = settled_mark(each)
    client = each.core.service.clients[b"c"]
    if written:
        card = SessionCard(bytes(16), "alice", mark, {}, {})
        read = read_mark(b"".join(pack_session(card, client.recovery.marks[0], PackedParts())))
        read.config = read.base = each.core.service.config
        client.recovery.marks = [read]
    lose(each, "w0")
    each.join("w4", marks=True)
    client = each.core.service.clients[b"c"]
    assert steps_of(each, Received(b"c", m.Resume(client.number, mark))) < MAX_STEPS
    restore(each, mark)
    again = run._replace(base=1 << 55)
    assert most_steps(each, "c", again) < MAX_STEPS
    assert each.table()[again.base + max(client.segments[7].survivors)].fault is None  # type: ignore[union-attr]
    assert client.misses.total() == before, "it is not made anew"
