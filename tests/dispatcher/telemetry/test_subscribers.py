"""Watchers of the dispatcher's core: who is told what, what it costs when nobody is, and what a bad watcher can do."""

from __future__ import annotations

from typing import Any

import pytest
from builders import Lines
from marking_dispatcher import lose, mark_due, restore
from marking_dispatcher import service as marking_service
from measured_calls import counted_steps
from one_dispatcher import Service

from gt.bounds import MAX_ANSWER_BYTES, MAX_INSTRUCTIONS
from gt.dispatcher.state.events import JobTurn, Publish, Tick
from gt.dispatcher.telemetry.births import MAX_BIRTHS
from gt.dispatcher.telemetry.recorder import (
    DESCRIBE_PLANS,
    DESCRIBED_PER_TURN,
    MAX_ISSUES,
    MAX_MOVES,
    WORKER_EVENT_RATES,
    describe,
)
from gt.dispatcher.telemetry.subscribers import MAX_PENDING_EVENTS, MAX_UNREAD_BATCHES, MAX_WATCHERS, WATCHER_TIMEOUT
from gt.ir.instruction import Segment
from gt.sharding.config import Config
from gt.turns import finish
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.messages import codec


def service(workers: int = 2) -> Service:
    each = Service(workers)
    each.told.clear()
    return each


def watch(each: Service, name: str = "t", level: int = t.TRACE) -> None:
    each.hello(name, "watcher")
    each.hears(name)
    each.say(name, m.Watch(level, 0))


def batch(each: Service, name: str = "t") -> list[Any]:
    """What the next batch says."""
    each.event(Publish(5))
    (events,) = each.hears(name, m.Events)
    return [t.decode_event(raw) for raw in events.events]


def kinds(events: list[Any], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def loop(each: Service, runs: int = 5) -> None:
    each.put(1)
    each.define(1)
    for number in range(runs):
        each.run(1, 10 + number, [1])
        each.done()


def test_recording_is_on_while_somebody_watches() -> None:
    """The first watcher switches it on at all workers, late joiners are told too, the last one switches it off."""
    each = service()
    assert each.core.service.recording is None
    watch(each, "a", t.SUMMARY)
    for name in ("w0", "w1"):
        assert [message.level for message in each.hears(name, m.Record)] == [t.SUMMARY]
    watch(each, "b", t.TRACE)
    assert [message.level for message in each.hears("w0", m.Record)] == [t.TRACE]
    each.join("w2")
    assert [message.level for message in each.hears("w2", m.Record)] == [t.TRACE]
    each.say("b", m.Goodbye("", ""))
    assert [message.level for message in each.hears("w2", m.Record)] == [t.SUMMARY]
    each.say("a", m.Watch(t.OFF, 0))
    assert [message.level for message in each.hears("w2", m.Record)] == [t.OFF]
    assert each.core.service.recording is None
    each.event(Publish(5))
    assert each.hears("a") == []


def test_a_watcher_is_told_first_how_everything_is() -> None:
    """Workers, clients and plans that were there before it came are told of, to the second watcher too."""
    each = service()
    number = each.client(host="here", pid=7, program="train.py")
    loop(each)
    for name in ("a", "b"):
        watch(each, name)
        events = batch(each, name)
        assert {event.number for event in kinds(events, t.WorkerJoined)} == {0, 1}
        (joined,) = kinds(events, t.ClientJoined)
        assert (joined.client, joined.host, joined.pid, joined.program) == (number, "here", 7, "train.py")
        (plan,) = kinds(events, t.PlanDescribed)
        assert (plan.client, plan.ops, plan.reason) == (number, [["neg", 1]], "known")


def long_segment(count: int) -> Segment:
    """As many instructions one after the other, each at a line of its own, under some signals."""
    lines = Lines()
    last = lines.input(4)
    for number in range(count):
        last = lines.op(("neg", "abs")[number % 3 == 0], last, signal=(f"layer{number % 5}",))
    return lines.segment(last)


@pytest.mark.parametrize("watched", [True, False])
def test_a_long_plan_is_described_in_turns(watched: bool) -> None:
    """Whether it is made while somebody watches, or was there before; what is said does not depend on the turns."""
    each = service(1)
    if watched:
        watch(each)
    each.client()
    each.put(1)
    each.define(1, long_segment(2 * DESCRIBED_PER_TURN + 1))
    each.run(1, 10, [1])
    if not watched:
        watch(each)
    (told,) = kinds(batch(each), t.PlanDescribed)
    assert told.sites == [f"{Lines().site}:{number + 1}" for number in range(MAX_MOVES)]
    assert told.signals == [f"layer{number}" for number in range(5)]
    client = each.core.service.clients[b"c"]
    (cached,) = client.plans.values()
    for per_turn in (1, 7, MAX_INSTRUCTIONS):
        turns = describe(
            told.time, client.number, told.segment, told.plan, cached.planned.plan, (0,), told.reason, per_turn
        )
        assert finish(turns) == told._replace(worker=t.DISPATCHER)
    if watched:
        recording = each.core.service.recording
        assert recording is not None
        each.idle = False
        recording.described(client, 1, cached, (0,), "new")
        assert recording.describing
        left = 0
        while recording.describing or DESCRIBE_PLANS in recording.under_way:
            recording.work()
            left += 1
        assert left == 3


def test_what_a_client_does_is_told() -> None:
    """Runs, plans, misses, fetches and tensors of a loop, and its end; counters agree with the dispatcher's own."""
    each = service(1)
    watch(each)
    number = each.client()
    each.now = 2.0
    loop(each)
    each.say("c", m.Fetch(1, 10))
    (collect,) = each.hears("w0", m.Collect)
    each.now = 3.0
    each.say("w0", m.Part(collect.request, [], False, bytes(16)))
    events = batch(each)
    (plan,) = kinds(events, t.PlanDescribed)
    issued = kinds(events, t.RunIssued)
    assert sum(event.times for event in issued) == 5
    assert {(event.plan, event.client) for event in issued} == {(plan.plan, number)}
    assert {(miss.cache, miss.reason) for miss in kinds(events, t.CacheMiss)} == {("definition", ""), ("plan", "new")}
    (fetched,) = kinds(events, t.Fetched)
    assert (fetched.time, fetched.duration, fetched.nbytes, fetched.plan) == (2 * 10**9, 10**9, 16, plan.plan)
    (told,) = kinds(events, t.Service)
    counters = each.core.service.counters
    assert (told.runs, told.fetches, told.puts, told.wall) == (counters.runs, counters.fetches, counters.puts, 5)
    (state,) = kinds(events, t.ClientState)
    assert (state.tensors, state.nbytes, state.runs) == (6, 6 * 16, 5)
    (tensors,) = kinds(events, t.Tensors)
    assert {row[0] for row in tensors.largest} == set(each.table())
    assert all(row[6] == 10**9 for row in tensors.largest), "ages are told"
    each.say("c", m.Goodbye("", ""))
    assert [event.client for event in kinds(batch(each), t.ClientLeft)] == [number]


def test_a_client_s_runs_are_counted_from_when_it_came_whoever_watches() -> None:
    """Who begins to trace, or ends, has nothing begin anew for those who watch all the time."""
    each = service(1)
    each.client()
    loop(each)
    told = []
    for name, level in (("a", t.SUMMARY), ("b", t.TRACE), ("b", t.OFF)):
        if name == "b" and level == t.OFF:
            each.say("b", m.Watch(t.OFF, 0))
        else:
            watch(each, name, level)
        each.run(1, 100 + len(told), [1])
        each.done()
        each.event(Publish(5))
        events = [t.decode_event(raw) for message in each.hears("a", m.Events) for raw in message.events]
        told += [state.runs for state in kinds(events, t.ClientState)]
    assert told == [6, 7, 8] == [*range(6, each.core.service.counters.runs + 1)]


def test_a_client_is_where_its_last_signal_was_though_each_turn_ends_without_one() -> None:
    each = service(1)
    each.client()
    each.put(1)
    for number, signals in ((1, [("batch",), ("batch", "hidden"), ()]), (2, [()]), (3, [()])):
        lines = Lines(f"part{number}.py")
        x = lines.input(4)
        each.define(number, lines.segment(*[lines.op("neg", x, signal=signal) for signal in signals]))
    watch(each)
    for segment, place in (
        (3, ("", "part3.py:1")),
        (1, ("batch/hidden", "part1.py:2")),
        (2, ("batch/hidden", "part1.py:2")),
    ):
        each.run(segment, 10 * segment, [1])
        each.done()
        (state,) = kinds(batch(each), t.ClientState)
        assert (state.signal, state.site) == place


def test_a_worker_s_events_come_through_on_the_dispatcher_s_clock() -> None:
    """Times of another host are moved by the smallest difference that any batch had; those of the same boot stay."""
    each = service(1)
    each.core.subscribers.boot = "this"
    each.hello("w1", "worker", address="ipc:///w1", bulk=b"b", device="cpu", boot="this")
    watch(each)
    batch(each)
    told = t.PlanSlice(1000, 99, 5, 1, 1, 1, 1, 5, 0, 0)
    each.now = 1.0
    each.say("w0", m.Events(400, 0, [t.encode_event(told)]))
    each.say("w1", m.Events(400, 0, [t.encode_event(told)]))
    far, near = kinds(batch(each), t.PlanSlice)
    assert (far.worker, far.time) == (0, 1000 + 10**9 - 400)
    assert (near.worker, near.time) == (1, 1000)
    each.now = 2.0
    each.say("w0", m.Events(10**9 + 300, 0, [t.encode_event(told)]))  # a shorter way
    assert kinds(batch(each), t.PlanSlice)[0].time == 1000 + 10**9 - 400
    each.say("w0", m.Events(2 * 10**9, 0, [t.encode_event(told)]))
    assert kinds(batch(each), t.PlanSlice)[0].time == 1000


def test_a_slow_watcher_loses_events_and_nobody_else_does() -> None:
    """Beyond a few unread batches nothing is sent; memory is bounded, and what was lost is counted and told."""
    each = service(1)
    watch(each, "slow")
    watch(each, "quick")
    seen = 0
    for _ in range(MAX_UNREAD_BATCHES + 5):
        each.event(Publish(5))
        seen += len(each.hears("quick", m.Events))
        each.say("quick", m.Watch(t.TRACE, seen))
    assert seen == MAX_UNREAD_BATCHES + 5
    assert len(each.hears("slow", m.Events)) == MAX_UNREAD_BATCHES
    slow = each.core.subscribers.watchers[b"slow"]
    event = t.encode_event(t.Gauges(1, 0, 1, 1, 1, 1, 1, 1, 1))
    for _ in range(20):
        each.say("w0", m.Events(1, 7, [[*event] for _ in range(1250)]))
    assert len(each.core.subscribers.pending) == MAX_PENDING_EVENTS
    lost = 20 * 1250 - MAX_PENDING_EVENTS + 20 * 7
    each.say("slow", m.Watch(t.TRACE, MAX_UNREAD_BATCHES))
    each.event(Publish(5))
    (events,) = each.hears("slow", m.Events)
    assert events.dropped >= lost
    assert slow.lost == 0


def test_a_dead_watcher_is_forgotten() -> None:
    """After ten seconds without a word it is gone, and recording with it."""
    each = service(1)
    watch(each)
    each.now = WATCHER_TIMEOUT + 1
    each.event(Tick())
    assert each.core.subscribers.watchers == {}
    assert [message.level for message in each.hears("w0", m.Record)] == [t.TRACE, t.OFF]


@pytest.mark.parametrize("wrong", [m.Watch(3, 0), m.Watch(1, 5), m.Watch(-1, 0), m.Fetch(1, 1), m.Events(0, 0, [])])
def test_a_hostile_watcher_harms_itself_alone(wrong: Any) -> None:
    """Whatever a watcher says that it may not ends its own connection; clients and other watchers go on."""
    each = service(1)
    watch(each, "good")
    watch(each, "bad")
    each.client()
    each.say("bad", wrong)
    assert [message.kind for message in each.hears("bad", m.Goodbye)] == ["ProtocolError"]
    loop(each)
    assert sum(event.times for event in kinds(batch(each, "good"), t.RunIssued)) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        m.Events(0, 0, [[99]]),
        m.Events(0, 0, [1]),
        m.Events(-1, 0, []),
        m.Events(0, 0, [t.encode_event(t.Gauges(1 << 62, 0, 1, 1, 1, 1, 1, 1, 1))]),
        m.Events(0, 0, [t.encode_event(t.ClientLeft(1, -1, 1, "a lie"))]),
        m.Events(
            0, 0, [t.encode_event(t.Device(1, 0, 99, 1, 1, 1, 1, 1, 0, []))]
        ),  # which the dispatcher makes of heartbeats
    ],
)
def test_a_hostile_worker_tells_watchers_nothing(wrong: Any) -> None:
    """Events that are none, or not a worker's to tell, cost the worker its place, and no watcher sees them."""
    each = service(2)
    watch(each)
    batch(each)
    each.say("w0", wrong)
    assert each.hears("w0", m.Goodbye)
    events = batch(each)
    assert [event.number for event in kinds(events, t.WorkerLost)] == [0]
    assert not kinds(events, t.ClientLeft)


def test_there_is_room_for_so_many_watchers() -> None:
    """One too many is told so, kindly."""
    each = service(1)
    for number in range(MAX_WATCHERS + 1):
        each.hello(f"t{number}", "watcher")
    assert [message.kind for message in each.hears(f"t{MAX_WATCHERS}", m.Goodbye)] == ["SessionError"]
    assert each.hears("t0", m.Welcome)


def test_what_a_client_waits_for_is_told_and_since_when() -> None:
    """A mesh without credit names the workers that are behind; a worker with plans that says nothing is busy."""
    each = service(1)
    watch(each)
    number = each.client()
    each.put(1)
    each.define(1)
    each.say("w0", m.Events(0, 0, []))
    for run in range(40):
        each.run(1, 10 + run, [1])
    batch(each)
    each.now = 1.0
    waiting = {event.what: event for event in kinds(batch(each), t.Waiting)}
    assert (waiting["credit"].client, waiting["credit"].peers, waiting["credit"].since) == (number, [0], 0)
    assert (waiting["busy"].client, waiting["busy"].order, waiting["busy"].peers) == (-1, 1, [0])


def test_errors_and_decisions_are_told() -> None:
    """A poisoned plan and a line of the log reach the watcher with their client and line."""
    each = service(1)
    watch(each)
    number = each.client()
    each.say("w0", m.Poisoned(1, number, "WorkerError", "boom\n  in add of f32[4] at train.py:7 in signal net"))
    events = batch(each)
    (failure,) = kinds(events, t.Failure)
    assert (failure.worker, failure.client, failure.kind, failure.site) == (0, number, "WorkerError", "train.py:7")
    assert any(event.what == "log" and "boom" in event.text for event in kinds(events, t.Decision))


RULES = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}


def test_a_plan_that_carries_tensors_elsewhere_is_told_and_so_is_who_is_held_up_by_it() -> None:
    """Another mesh for a live session: its plans of one use are described as such, by whose they are and who takes part; they
    are no runs of the program. A worker that stands in one is busy in it."""
    each = service(2)
    number = each.client()
    loop(each)
    watch(each)
    batch(each)
    for worker in ("w0", "w1"):
        each.say(worker, m.Events(0, 0, []))
    each.hears("w1")
    each.say("c", m.Configure(7, Config.from_plain(RULES).to_wire()))
    (execute,) = each.hears("w1", m.Execute)
    events = batch(each)
    (told,) = [event for event in kinds(events, t.PlanDescribed) if event.reason == "carry"]
    assert (told.plan, told.client, told.segment, told.members) == (execute.plan, number, -1, [0, 1])
    assert told.moves, "it is nothing but moves"
    assert kinds(events, t.RunIssued) == []
    each.now = 1.0
    busy = [event for event in kinds(batch(each), t.Waiting) if event.what == "busy"]
    assert {(event.plan, event.client, event.order) for event in busy} == {(execute.plan, number, execute.order)}
    assert {event.peers[0] for event in busy} == {0, 1}
    each.done()
    each.now = 2.0
    assert [event for event in kinds(batch(each), t.Waiting) if event.what == "busy"] == []


def test_a_definition_that_is_refused_is_a_failure_and_no_cache_miss() -> None:
    """It is told with its client, once however often it is run, and what was refused was not made."""
    each = service(1)
    number = each.client()
    loop(each)
    watch(each)
    batch(each)
    each.say("c", m.Define(2, b"nonsense"))
    each.run(2, 500, [1])
    events = batch(each)
    (failure,) = kinds(events, t.Failure)
    assert (failure.worker, failure.client, failure.kind) == (t.DISPATCHER, number, "ProtocolError")
    assert [miss for miss in kinds(events, t.CacheMiss) if miss.client == number] == []
    assert kinds(events, t.RunIssued) == kinds(events, t.PlanDescribed) == []
    each.run(1, 501, [1])
    (run,) = kinds(batch(each), t.RunIssued)
    assert run.client == number, "and the client goes on"


def test_where_a_tensor_is_from_is_known_after_any_number_of_runs() -> None:
    """What lives keeps its birth, in bounded memory; of what is older than the recording nothing is claimed."""
    each = service(1)
    number = each.client()
    loop(each, 1)
    watch(each)
    batch(each)
    each.now = 1.0
    each.run(1, 1000, [1])
    for run in range(MAX_BIRTHS + MAX_ISSUES):
        each.run(1, 2000 + run, [1], freed=[1999 + run] if run else [])
        each.done()
    recording = each.core.service.recording
    assert recording is not None
    assert len(recording.births[number]) <= MAX_BIRTHS
    each.now = 200.0
    tensors = kinds(batch(each), t.Tensors)[-1]
    ages = {row[0]: row[6] for row in tensors.largest}
    assert ages[1000] == 199 * t.SECOND
    assert ages[10] == ages[1] == -1
    assert len(recording.births[number]) == 2


def test_what_is_told_of_many_runs_is_bounded() -> None:
    """A flood of runs is a few events, whatever their number, and in a summary one; every run is counted in them."""
    for level, most in ((t.SUMMARY, 1), (t.TRACE, WORKER_EVENT_RATES[t.TRACE] + 1)):
        each = service(1)
        watch(each, level=level)
        each.client()
        batch(each)
        loop(each, 1000)
        issued = kinds(batch(each), t.RunIssued)
        assert sum(event.times for event in issued) == 1000
        assert len(issued) <= most


def test_fifty_watchers_are_told_the_same_once() -> None:
    """Who has read as far hears the same message, so a batch is made for eight at a time; each has all of it."""
    each = service(1)
    names = [f"t{number}" for number in range(50)]
    for name in names:
        watch(each, name)
    each.client()
    loop(each, 10)
    each.event(Publish(5))
    each.told.clear()
    loop_again(each, 10)
    told = [send for send in each.core.handle(Publish(5), each.now) if isinstance(send.message, m.Events)]
    assert sorted(identity.decode() for send in told for identity in send.to) == sorted(names)
    assert max(len(send.to) for send in told) <= 8
    assert len(told) == 7
    for send in told:
        events = [t.decode_event(raw) for raw in send.message.events]
        assert sum(event.times for event in kinds(events, t.RunIssued)) == 10


def loop_again(each: Service, runs: int) -> None:
    for number in range(runs):
        each.run(1, 1000 + number, [1])
        each.done()


def test_a_watcher_that_never_reads_costs_bounded_memory() -> None:
    """Beside what waits for all there is what it is told first, and not even that once it stopped watching."""
    each = service(1)
    for name in ("a", "b", "c"):
        watch(each, name)
    event = t.encode_event(t.Gauges(1, 0, 1, 1, 1, 1, 1, 1, 1))
    for _ in range(60):
        each.say("w0", m.Events(1, 0, [[*event] for _ in range(1000)]))
        each.event(Publish(5))
    subscribers = each.core.subscribers
    assert len(subscribers.pending) == MAX_PENDING_EVENTS
    assert all(len(watcher.first) == 0 for watcher in subscribers.watchers.values())
    assert len(each.hears("a", m.Events)) == MAX_UNREAD_BATCHES
    for name in ("a", "b", "c"):
        each.say(name, m.Watch(t.OFF, 0))
    assert len(subscribers.pending) == 0
    watch(each, "d")
    assert kinds(batch(each, "d"), t.Gauges) == [], "it is told nothing of before"


def test_a_thousand_plans_are_told_in_batches_that_fit_a_frame() -> None:
    """Who begins to watch a service with very many plans hears of each of them once, in messages of a bounded size."""
    each = service(1)
    each.client()
    each.put(1)
    for number in range(1, 1001):
        lines = Lines()
        x = lines.input(4)
        each.define(number, lines.segment(lines.op("add", x, x, signal=(f"layer{number}",))))
        each.run(number, 10 + number, [1], freed=[9 + number] if number > 1 else [])
        each.done()
    watch(each)
    each.event(Publish(5))
    (events,) = each.hears("t", m.Events)
    assert sum(map(len, codec.encode(events))) < MAX_ANSWER_BYTES
    plans = kinds([t.decode_event(raw) for raw in events.events], t.PlanDescribed)
    known = len(each.core.service.clients[b"c"].plans.by_residents)
    assert len({plan.plan for plan in plans}) == len(plans) == known >= 500


def test_what_a_new_watcher_is_told_first_is_found_out_in_turns() -> None:
    """Nothing is sent to it before that, and what happens meanwhile comes afterwards. It may leave before."""
    each = service(1)
    each.client()
    each.put(1)
    for number in range(1, 301):
        lines = Lines(f"part{number}.py")
        x = y = lines.input(4)
        for _ in range(60):
            y = lines.op("add", x, y, signal=(f"layer{number}",))
        each.define(number, lines.segment(y))
        each.run(number, 10 + number, [1], freed=[9 + number] if number > 1 else [])
        each.done()
    plans = [cached.number for cached in each.core.service.clients[b"c"].plans.by_residents.values()]
    for name in ("a", "b"):
        each.hello(name, "watcher")
    each.idle = False
    for name in ("a", "b"):
        each.say(name, m.Watch(t.SUMMARY, 0))
    each.run(1, 1000, [1])
    each.event(Publish(5))
    assert not each.hears("a", m.Events)
    each.say("b", m.Goodbye("", ""))
    steps = []
    while each.core.busy:
        steps.append(counted_steps(lambda: each.core.handle(JobTurn(), each.now)))
    assert len(steps) > 3
    assert max(steps) < 8000
    each.idle = True
    events = batch(each, "a")
    told = [event.plan for event in kinds(events, t.PlanDescribed)]
    assert told == plans
    assert sum(event.times for event in kinds(events, t.RunIssued)) == 1
    assert [kind for kind in map(type, events) if kind in (t.PlanDescribed, t.RunIssued)][-1] is t.RunIssued
    assert not each.hears("b", m.Events)


def test_marks_and_the_way_back_to_one_are_told() -> None:
    """A session that loses a worker has another number, which is told with the old one; its state says how far it is."""
    each = marking_service(2, config=RULES)
    watch(each)
    batch(each)

    def state() -> tuple[Any, ...]:
        (told,) = kinds(batch(each), t.ClientState)
        return told.client, told.phase, told.restored, told.members

    mark = mark_due(each).mark
    for name in ("w0", "w1"):
        each.say(name, m.MarkTaken(mark, [], 3_000_000))
    each.say("c", m.Settled(mark))
    events = batch(each)
    (stored,) = kinds(events, t.MarkStored)
    assert (stored.client, stored.mark, stored.duration) == (1, mark, 3_000_000)
    (told,) = kinds(events, t.ClientState)
    now = int(each.now * t.SECOND)
    assert (told.marks, told.marked, told.mark_duration) == (1, now, 3_000_000)
    assert (told.recoveries, told.recovery_duration, told.phase) == (0, -1, "")
    each.run(1, 11, [1])
    lose(each, "w1")
    each.event(Publish(5))
    (published,) = each.hears("t", m.Events)
    events = [t.decode_event(raw) for raw in published.events]
    change = [type(event) for event in events if isinstance(event, t.SessionRewound | t.ClientLeft | t.ClientJoined)]
    assert change == [t.SessionRewound, t.ClientLeft, t.ClientJoined], "readers without recoveries hear the same"
    (rewound,) = kinds(events, t.SessionRewound)
    assert (rewound.client, rewound.old, rewound.lost) == (2, 1, 1)
    assert "worker 1 was lost" in rewound.text
    assert state() == (2, "rewound", 0, 0)
    each.say("c", m.Resume(2, mark))
    assert state() == (2, "workers", 0, 0)
    each.join("w2", marks=True)
    each.now += 1.0
    events = batch(each)
    (told,) = kinds(events, t.ClientState)
    assert (told.phase, told.restored, told.members) == ("restoring", 0, 2)
    (waiting,) = kinds(events, t.Waiting)
    assert (waiting.what, waiting.peers) == ("restore", [0, 2])
    each.say("w0", m.MarkRestored(mark, 2, []))
    assert state() == (2, "restoring", 1, 2)
    restore(each, mark)
    events = batch(each)
    (recovered,) = kinds(events, t.SessionRecovered)
    assert (recovered.time, recovered.duration, recovered.client, recovered.mark) == (now, t.SECOND, 2, mark)
    (told,) = kinds(events, t.ClientState)
    assert (told.phase, told.recoveries, told.recovery_duration, told.marks) == ("repeating", 1, t.SECOND, 1)
    (service_told,) = kinds(events, t.Service)
    assert (service_told.marks, service_told.recoveries) == (1, 1)
    each.core.service.clients[b"c"].paused = True
    assert state() == (2, "", 2, 2), "it does not compute what an operator has not let it"
    each.core.service.clients[b"c"].paused = False
    assert state() == (2, "repeating", 2, 2)
    each.run(1, 11, [1])
    assert state() == (2, "", 2, 2)
