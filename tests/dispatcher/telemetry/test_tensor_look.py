"""What watchers are told of sessions and their tensors is found out in turns, and is what one look at all of them would find."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_calls import counted_steps
from one_dispatcher import VECTOR, Service, started

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.state.events import JobTurn, Lost, Publish
from gt.dispatcher.state.plan_cache import Entry, SharedStorage
from gt.dispatcher.state.records import ClientRecord
from gt.dispatcher.telemetry.births import (
    BIRTHS_PER_TURN,
    MAX_BIRTHS,
    MAX_UNSETTLED_BIRTHS,
    Birth,
    Births,
)
from gt.dispatcher.telemetry.tensor_look import MAX_TENSOR_ROWS, TENSORS_PER_TURN, TensorLook, look
from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.sharding.partition import box, extent
from gt.sharding.placement import REPLICATE, Mesh, Shard, format_layout, uniform_mesh
from gt.turns import finish
from gt.wire import messages as m
from gt.wire import telemetry as t

MAX_STEPS = 20_000
"""Lines of Python that an event may take: about 1 ms at 50 ns each."""
MESH = uniform_mesh(1, {"a": 2, "b": 3}, range(6))
LAYOUTS = [(REPLICATE, REPLICATE), (Shard(0), REPLICATE), (Shard(0), Shard(0)), (REPLICATE, Shard(0))]
ROOTS = [SharedStorage(spec(float32, (5,)), LAYOUTS[0]), SharedStorage(spec(float32, (50,)), LAYOUTS[1])]


class OneMesh(NamedTuple):
    """What is looked at of a `MeshRecord`."""

    mesh: Mesh


class OneTable:
    """What is looked at of a `ClientRecord`."""

    def __init__(self, table: dict[int, Entry]) -> None:
        self.table = table


MESHES: Any = {1: OneMesh(MESH)}


def entries() -> st.SearchStrategy[Entry]:
    """Of a few sizes, so that many are equally large; some have errors, and some share memory."""
    return st.builds(
        Entry,
        st.integers(1, 9).map(lambda size: spec(float32, (size,))),
        st.sampled_from([1, 1, 1, 2]),
        st.sampled_from(LAYOUTS).map(ResidentPlacement),
        st.none() | st.just(("WorkerLost", "gone")),
        st.just(frozenset()),
        st.none() | st.sampled_from(ROOTS),
    )


def born(base: int, number: int) -> Birth:
    return (-1, -1, base, float(number), 1, f"s{base}")


def looked_at(table: dict[int, Entry], births: Births, now: int = 0) -> TensorLook:
    client: Any = OneTable(table)
    return finish(look(client, MESHES, births, now))


def everywhere(shape: tuple[int, ...], layout: Any) -> int:
    """Bytes of all parts."""
    parts = [extent(part) for rank in range(6) if (part := box(shape, layout, MESH, rank)) is not None]
    return 4 * sum(size for (size,) in parts)


def bytes_of(entry: Entry) -> int:
    return 0 if entry.mesh != 1 or entry.fault else everywhere(entry.spec.shape, entry.resident.layout)


@given(
    st.dictionaries(st.integers(0, 200), entries(), max_size=90),
    st.lists(st.integers(0, 200), max_size=60, unique=True),
)
@settings(max_examples=cases(100))
def test_a_look_finds_all_bytes_the_largest_tensors_and_the_births_that_matter(
    table: dict[int, Entry], bases: list[int]
) -> None:
    births = Births()
    births.add([born(base, number) for number, base in enumerate(bases)])
    found = looked_at(table, births, 10**12)
    roots = {entry.root for entry in table.values() if entry.root is not None and entry.mesh == 1}
    assert found.nbytes == sum(bytes_of(entry) for entry in table.values() if entry.root is None) + sum(
        everywhere(root.spec.shape, root.layout) for root in roots
    )
    largest = sorted(((bytes_of(entry), number) for number, entry in table.items()), reverse=True)[:MAX_TENSOR_ROWS]
    assert [(row[3], row[0]) for row in found.rows] == largest
    for number, said, layout, _, signal, site, age in found.rows:
        assert (said, layout) == (str(table[number].spec), format_layout(table[number].resident.layout))
        known = number in bases
        assert (signal, site) == (f"s{number}" if known else "", "")
        assert age == (10**12 - bases.index(number) * t.SECOND if known else -1)
    alive = {max(base for base in bases if base <= number) for number in table if any(base <= number for base in bases)}
    assert list(births.by_base) == [base for base in bases if base in alive]


def test_of_many_births_the_latest_stay_that_have_made_something() -> None:
    """However they are numbered, and whatever is recorded while they are gone through."""
    births = Births()
    count = MAX_BIRTHS
    bases = [(n * 7919) % count for n in range(count)]
    births.add([born(base, number) for number, base in enumerate(bases)])
    assert not births.is_full
    births.add([born(count + 5, 0)])
    assert births.is_full
    table = {number: Entry(VECTOR, 1, ResidentPlacement(LAYOUTS[0])) for number in range(0, count, 3)}
    client: Any = OneTable(table)
    turns = look(client, MESHES, births, 0)
    sizes = [len(births)]
    for turn, _ in enumerate(turns):
        sizes.append(len(births))
        if turn == 2:
            births.add([born(count + 6, 1), born(bases[-1], 2)])
    alive = [base for base in bases[:-1] if base % 3 == 0]
    assert [*births.by_base] == [*alive, bases[-1], count + 6][-MAX_BIRTHS // 2 :]
    assert births.by_base[bases[-1]][3] == 2.0, "it was made anew meanwhile"
    assert max(a - b for a, b in itertools.pairwise(sizes)) <= BIRTHS_PER_TURN


def test_births_that_nobody_goes_through_take_bounded_memory() -> None:
    births = Births()
    for base in range(MAX_UNSETTLED_BIRTHS + 500):
        births.add([born(base, base)])
    assert [*births.by_base] == [*range(500, MAX_UNSETTLED_BIRTHS + 500)]


# the core


def watched(each: Service) -> Service:
    each.hello("t", "watcher")
    each.say("t", m.Watch(t.SUMMARY, 0))
    each.hears("t")
    return each


def unlike(each: Service, count: int) -> list[int]:
    """Give the client so many tensors, no two of which are alike."""
    client = each.core.service.clients[b"c"]
    assert client.planner is not None
    mesh = client.planner.mesh
    tensors = [(1 << 50) + n for n in range(count)]
    client.table.update(
        (tensor, Entry(spec(float32, (1 + n,)), mesh.number, ResidentPlacement(mesh.replicated)))
        for n, tensor in enumerate(tensors)
    )
    return tensors


def batch(each: Service) -> tuple[list[Any], int]:
    """What the next batch says, and the most steps that an event takes until all is known for the one after it."""
    most, event = 0, Publish(5)
    while True:
        sends: list[Any] = []
        most = max(most, counted_steps(lambda: sends.extend(each.core.handle(event, each.now))))  # noqa: B023
        each.told_by(sends)
        each.core.check()
        if not each.core.busy:
            break
        event = JobTurn()
    (events,) = each.hears("t", m.Events)
    each.say("t", m.Watch(t.SUMMARY, each.core.subscribers.watchers[b"t"].sent))
    return [t.decode_event(raw) for raw in events.events], most


def kinds(events: list[Any], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_the_tensors_of_a_session_are_looked_at_in_turns() -> None:
    """No event takes longer because there are more of them, and all of them are known in the batch after the next."""
    steps = []
    for count in (4 * TENSORS_PER_TURN, 16 * TENSORS_PER_TURN):
        each = watched(started())
        tensors = unlike(each, count)
        events, most = batch(each)
        steps.append(most)
        assert not kinds(events, t.Tensors)
        assert not kinds(events, t.ClientState), "nothing is said of bytes that are not known"
        events, most = batch(each)
        steps.append(most)
        (told,) = kinds(events, t.Tensors)
        assert [row[0] for row in told.largest] == tensors[: -MAX_TENSOR_ROWS - 1 : -1]
        (state,) = kinds(events, t.ClientState)
        assert state.nbytes == 4 * sum(range(count + 1)) + VECTOR.nbytes
    assert max(steps) < MAX_STEPS
    assert max(steps[2:]) < max(steps[:2]) + 100


def test_what_was_found_out_last_is_told_while_a_look_is_under_way() -> None:
    """A table that changes meanwhile is no harm: what has gone is not told of, what has come is told of later."""
    each = watched(started())
    tensors = unlike(each, 32 * TENSORS_PER_TURN)
    batch(each)
    batch(each)
    each.now += 1000.0
    client = each.core.service.clients[b"c"]
    each.idle = False
    each.event(Publish(5))
    each.hears("t")
    for _ in range(4):
        each.event(JobTurn())
    each.say("c", m.Free(tensors[-3:] + tensors[:2000]))
    each.put(1 << 60)
    each.event(Publish(5))
    (message,) = each.hears("t", m.Events)
    events = [t.decode_event(raw) for raw in message.events]
    (state,) = kinds(events, t.ClientState)
    assert not kinds(events, t.Tensors)
    assert state.tensors == len(client.table)
    assert state.nbytes == 4 * sum(range(len(tensors) + 1)) + VECTOR.nbytes, "as they were at the last look"
    each.idle = True
    batch(each)
    (told,) = kinds(batch(each)[0], t.Tensors)
    assert [row[0] for row in told.largest] == tensors[-4 : -1 - MAX_TENSOR_ROWS : -1], "the first three have gone"
    each.now += 1000.0
    batch(each)
    (told,) = kinds(batch(each)[0], t.Tensors)
    assert [row[0] for row in told.largest] == tensors[-4 : -4 - MAX_TENSOR_ROWS : -1]


@pytest.mark.parametrize("gone", ["c", "t"])
def test_a_look_ends_with_the_session_and_with_the_watcher(gone: str) -> None:
    each = watched(started())
    unlike(each, 8 * TENSORS_PER_TURN)
    each.idle = False
    each.event(Publish(5))
    each.event(JobTurn())
    each.hears("t")
    each.event(Lost(gone.encode(), "it ended", ended=True))
    each.idle = True
    if gone == "c":
        events, _ = batch(each)
        assert [event.client for event in kinds(events, t.ClientLeft)] == [1]
        assert not kinds(events, t.ClientState)
        assert not kinds(events, t.Tensors)
        recording = each.core.service.recording
        assert recording is not None
        assert not recording.births
        assert not recording.held
    else:
        each.event(Publish(5))
        assert each.core.service.recording is None
        assert not each.core.busy


def test_many_sessions_are_told_of_in_turns_and_each_in_every_batch() -> None:
    """The event in which the batch is made has but few steps for each of them."""
    steps = []
    for count in (60, 180):
        each = Service(1)
        for number in range(count):
            each.now += 1.0
            each.client(f"c{number}")
            each.put(1, f"c{number}")
        each.done()
        watched(each)
        batch(each)
        for _ in range(2):
            each.now += 1.0
            events, most = batch(each)
            states = kinds(events, t.ClientState)
            assert sorted(state.client for state in states) == [*range(1, count + 1)]
            assert {state.nbytes for state in states} == {VECTOR.nbytes}
        steps.append(most)
    assert steps[1] < MAX_STEPS
    assert steps[1] - steps[0] < 20 * 120


def test_what_many_sessions_wait_for_is_told_in_turns() -> None:
    """In every batch, as long as they wait."""
    each = Service(0, expected=1)
    for number in range(200):
        each.now += 0.01
        each.client(f"c{number}")
        each.put(1, f"c{number}")
    watched(each)
    batch(each)
    for _ in range(3):
        each.now += 0.5
        events, most = batch(each)
        assert most < MAX_STEPS
    waiting = kinds(events, t.Waiting)
    assert {event.what for event in waiting} == {"workers"}
    assert sorted(event.client for event in waiting) == [*range(1, 201)]


def test_births_are_gone_through_in_turns_as_soon_as_there_are_too_many() -> None:
    """Not when a batch is due: there may be many in between."""
    each = watched(started())
    batch(each)
    recording = each.core.service.recording
    assert recording is not None
    some = [born(base, base) for base in range(2, MAX_BIRTHS + 2)]
    client: ClientRecord = each.core.service.clients[b"c"]
    recording._born(client.number, some)
    each.idle = False
    each.put(MAX_BIRTHS + 10)
    steps = []
    while each.core.busy:
        steps.append(counted_steps(lambda: each.core.handle(JobTurn(), each.now)))
    assert max(steps) < MAX_STEPS
    assert len(steps) > MAX_BIRTHS // BIRTHS_PER_TURN
    assert [*recording.births[client.number].by_base] == [MAX_BIRTHS + 10]
