"""What a worker records: slices add up to counters, and nothing is recorded while nobody watches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from builders import Lines
from one_mesh import CLIENT, WHOLE, Ranks

import gt
from gt.sharding.placement import Shard
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.event_buffer import EventBuffer
from gt.worker.device.buffers import HostBuffers
from gt.worker.memory_limit.limiter import MemoryLimiter
from gt.worker.spill.spill_file import SpillStorage
from gt.worker.telemetry.recorder import Instruments


class Clock:
    """Every look at it takes a while."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1000
        return self.now


CLOCK = Clock()


@pytest.fixture
def ranks() -> Ranks:
    """Two workers that are watched."""
    CLOCK.now = 0
    made = Ranks(2)
    for core in made.cores:
        core.instruments = Instruments(CLOCK, lambda: (7, 70), lambda: 0)
    return made


def taken(ranks: Ranks, rank: int) -> list[Any]:
    recording = ranks.cores[rank].recording
    assert recording is not None
    events, dropped = recording.take(ranks.cores[rank])
    assert dropped == 0
    return [t.decode_event(raw) for raw in events]


def kinds(events: list[Any], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def loop(ranks: Ranks, runs: int) -> None:
    """A row-wise product whose sum all ranks need: kernels and an all-reduce."""
    lines = Lines()
    x = lines.input(4, 8)
    total = lines.op("sum", lines.op("relu", x, signal=("net",)), axes=(0, 1), keepdims=False)
    plan, _ = ranks.define(lines.segment(total), [(Shard(0),)])
    ranks.store(1, np.ones((4, 8), np.float32), (Shard(0),))
    for number in range(runs):
        ranks.all(ranks.execute(plan, [1], 100 + number))
        ranks.settle()


def test_nothing_is_recorded_while_nobody_watches(ranks: Ranks) -> None:
    """Without a word of the dispatcher there is no recording, and after `OFF` there is none again."""
    loop(ranks, 3)
    assert all(core.recording is None for core in ranks.cores)
    ranks.all(m.Record(t.TRACE, 100))
    assert all(core.recording is not None for core in ranks.cores)
    ranks.all(m.Record(t.OFF, 0))
    assert all(core.recording is None for core in ranks.cores)


@pytest.mark.parametrize("rate", [0, 6, 10_000])
def test_slices_add_up_to_the_counters_at_any_rate(ranks: Ranks, rate: int) -> None:
    """Compute, communication and waiting of all slices are those of the counters, and the states are all the time there is."""
    ranks.all(m.Record(t.TRACE, rate))
    began = [core.recording.since for core in ranks.cores if core.recording is not None]
    loop(ranks, 12)
    for rank in range(2):
        events = taken(ranks, rank)
        (counters,) = kinds(events, t.Utilisation)
        slices = kinds(events, t.PlanSlice)
        assert sum(each.times for each in slices) == counters.plans == 12
        for state in ("compute", "communication", "waiting"):
            assert sum(getattr(each, state) for each in slices) == getattr(counters, state), state
        moves = kinds(events, t.Collective)
        assert sum(each.times for each in moves) == 12
        assert {each.kind for each in moves} == {"all-reduce"}
        assert {tuple(each.peers) for each in moves} == {(1 - rank,)}
        (traffic,) = kinds(events, t.Traffic)
        assert traffic.peers == [1 - rank]
        assert traffic.nbytes == [sum(each.sent for each in moves)] == [12 * 4]
        assert sum(each.received for each in moves) == 12 * 4
        states = (counters.compute, counters.communication, counters.runtime, counters.waiting, counters.idle)
        assert sum(states) == counters.time - (0 if rank else began[0]) - (began[1] if rank else 0)
        if rate == 10_000:
            ops = kinds(events, t.OpSlice)
            assert {each.op for each in ops} >= {"relu", "sum"}
            assert {each.signal for each in ops if each.op == "relu"} == {"net"}
            assert all(each.elements in (16, 1) for each in ops)


def test_a_batch_amid_a_run_counts_nothing_twice(ranks: Ranks) -> None:
    """While a run stands in a move, what was added up before it goes into the counters, and not into the run."""
    ranks.all(m.Record(t.SUMMARY, 0))
    lines, others = Lines(), Lines()
    x, y = lines.input(4, 8), others.input(4, 8)
    summed, _ = ranks.define(lines.segment(lines.op("sum", x, axes=(0, 1), keepdims=False)), [(Shard(0),)])
    plain, _ = ranks.define(others.segment(others.op("relu", y)), [(Shard(0),)])
    ranks.store(1, np.ones((4, 8), np.float32), (Shard(0),))
    events = []
    for number in range(3):
        for at in range(4):
            ranks.all(ranks.execute(plain, [1], 100 + 10 * number + at))
        ranks.all(ranks.execute(summed, [1], 109 + 10 * number))
        events += taken(ranks, 0)
        ranks.settle()
    events += taken(ranks, 0)
    counters = kinds(events, t.Utilisation)[-1]
    slices = kinds(events, t.PlanSlice)
    assert sum(each.times for each in slices) == counters.plans == 15
    for state in ("compute", "communication", "waiting"):
        assert sum(getattr(each, state) for each in slices) == getattr(counters, state), state


def test_what_is_added_up_says_which_was_the_first_of_it(ranks: Ranks) -> None:
    """One run that went by itself and one that did not are two slices, each with its own order and time, and so are moves."""
    ranks.all(m.Record(t.SUMMARY, 4))
    loop(ranks, 2)
    CLOCK.now += 2 * t.SECOND
    loop(ranks, 2)
    loop(ranks, 1)
    events = taken(ranks, 0)
    for kind in (t.PlanSlice, t.Collective):
        told = sorted(kinds(events, kind))
        assert sum(each.times for each in told) == 5
        assert len({each.order for each in told}) == len(told) > 2
        assert all(one.time + one.duration <= two.time for one, two in itertools.pairwise(told) if one.times == 1)


def test_however_much_a_plan_moves_half_of_all_that_goes_by_itself_are_plans(ranks: Ranks) -> None:
    """Collectives, puts and fetches have room of their own, so a trace loses no plans to them; and a collective that goes by
    itself has its plan beside it."""
    ranks.all(m.Record(t.TRACE, 40))
    loop(ranks, 30)
    for number in range(30):
        ranks.tell(0, m.Collect(number, 1, CLIENT, 100, False, b"c"))
    loop(ranks, 30)
    events = [event for event in taken(ranks, 0) if getattr(event, "times", 0) == 1]
    plans, moves = ({each.order for each in kinds(events, kind)} for kind in (t.PlanSlice, t.Collective))
    assert len(plans) == 20
    assert len(moves) == 10 - 1, "the put was the tenth"
    assert moves <= plans


def test_a_summary_begins_without_a_burst_and_a_trace_has_all_of_a_short_program(ranks: Ranks) -> None:
    """What goes by itself of the first runs is a tenth of a second's worth for a monitor, and a second's worth in a trace."""
    for level, singles in ((t.SUMMARY, 10), (t.TRACE, 50)):
        ranks.all(m.Record(level, 100))
        loop(ranks, 60)
        slices = kinds(taken(ranks, 0), t.PlanSlice)
        assert [each.times for each in slices if each.times == 1] == [1] * singles
        assert sum(each.times for each in slices) == 60


def test_values_are_what_they_are_without_a_watcher(ranks: Ranks) -> None:
    """Runs that are timed instruction by instruction, plain and fused, compute what others do."""
    ranks.all(m.Record(t.TRACE, 10_000))
    loop(ranks, 4)
    for core in ranks.cores:
        assert core.stored.tensors[CLIENT][103] == 32


def test_what_a_worker_waits_for_is_told(ranks: Ranks) -> None:
    """A move whose pieces do not come is named, with its collective, peers and bytes, and since when."""
    ranks.all(m.Record(t.SUMMARY, 100))
    lines = Lines()
    x = lines.input(4, 8)
    plan, _ = ranks.define(lines.segment(lines.op("sum", x, axes=(0, 1), keepdims=False)), [(Shard(0),)])
    ranks.store(1, np.ones((4, 8), np.float32), (Shard(0),))
    ranks.tell(0, ranks.execute(plan, [1]))
    CLOCK.now += 10**9
    (waiting,) = kinds(taken(ranks, 0), t.Waiting)
    assert (waiting.what, waiting.kind, waiting.peers, waiting.nbytes) == ("pieces", "all-reduce", [1], 4)
    assert waiting.time - waiting.since >= 10**9


def test_puts_and_fetches_are_told(ranks: Ranks) -> None:
    """What is stored and what is collected are transfers with their bytes; gauges count what is held."""
    ranks.all(m.Record(t.TRACE, 1000))
    ranks.store(5, np.ones(10, np.float32), WHOLE)
    ranks.tell(0, m.Collect(1, 1, CLIENT, 5, True, b"c"))
    ranks.tell(0, m.Collect(1, 1, CLIENT, 5, False, b"c"))
    events = taken(ranks, 0)
    assert [(each.kind, each.nbytes) for each in kinds(events, t.Transfer)] == [("put", 40), ("fetch", 40)]
    (gauges,) = kinds(events, t.Gauges)
    assert (gauges.tensors, gauges.held, gauges.process, gauges.limit) == (1, 40, 7, 70)


class Counting(EventBuffer):
    """Counts the events that were made for it."""

    made = 0

    def collapse(self, event: Any) -> None:
        self.made += 1
        super().collapse(event)

    def keep(self, event: Any) -> None:
        self.made += 1
        super().keep(event)


def test_recording_a_flood_of_plans_makes_few_events_and_looks_at_the_clock_twice_a_plan(ranks: Ranks) -> None:
    """What a plan costs is bounded: beyond the rate no event is made for it, and the clock is read when it begins and ends;
    so it is with moves, which read it five times more."""
    ranks.all(m.Record(t.SUMMARY, 0))
    recording = ranks.cores[0].recording
    assert recording is not None
    counting = recording.recorder = Counting(CLOCK, 0)
    lines = Lines()
    x = lines.input(4, 8)
    plan, _ = ranks.define(lines.segment(lines.op("relu", x)), [(Shard(0),)])
    ranks.store(1, np.ones((4, 8), np.float32), (Shard(0),))
    counting.made, before = 0, CLOCK.now
    for number in range(100):
        ranks.tell(0, ranks.execute(plan, [1], 100 + number))
    assert counting.made == 1
    assert CLOCK.now - before <= 1000 * (2 * 100 + 1)
    counting.made, before = 0, CLOCK.now
    loop(ranks, 100)
    assert counting.made <= 3, "a put, a plan, a move"
    assert CLOCK.now - before <= 1000 * 2 * (7 * 100 + 20), "both ranks read it"


def test_in_a_flood_some_runs_are_timed_and_stand_for_the_others_of_their_plan(ranks: Ranks) -> None:
    """A monitor's figures of thousands of small plans a second are counts, and times from some of them: of each plan some, though
    two take turns; sums of slices are the counters all the same. What moves, and what goes into a trace, is timed every time."""
    lines, others = Lines(), Lines()
    x, y = lines.input(4, 8), others.input(4, 8)
    short, _ = ranks.define(lines.segment(lines.op("relu", x)), [(Shard(0),)])
    long, _ = ranks.define(others.segment(others.op("neg", y)), [(Shard(0),)])
    ranks.store(1, np.ones((4, 8), np.float32), (Shard(0),))
    core = ranks.cores[0]
    spent = {short: 2_000, long: 9_000}

    def flood(runs: int, passes: int) -> tuple[int, list[Any]]:
        looks = 0
        for number in range(runs):
            plan = (short, long)[number % 2]
            before = CLOCK.now
            ranks.tell(0, ranks.execute(plan, [1], 100 + number))
            assert core.recording is not None
            timed = CLOCK.now > before
            looks += timed
            CLOCK.now += passes + (0 if timed else spent[plan])
        return looks, taken(ranks, 0)

    for level, fewest, most in ((t.SUMMARY, 200, 300), (t.TRACE, 1000, 1000)):
        ranks.all(m.Record(level, 0))
        looks, events = flood(1000, 3_000_000)
        assert looks == 1000, "300 a second are no flood"
        looks, again = flood(1000, 500_000)
        assert fewest <= looks <= most
        slices, (counters,) = kinds(again, t.PlanSlice), kinds(again, t.Utilisation)
        assert counters.plans == 2000
        assert {each.plan: each.times for each in slices} == {short: 500, long: 500}
        slices += kinds(events, t.PlanSlice)
        assert sum(each.compute for each in slices) == sum(each.duration for each in slices) == counters.compute
        assert counters.compute == 2000 * 1000, "each takes as long as those that were timed"
        states = (counters.compute, counters.communication, counters.runtime, counters.waiting, counters.idle)
        assert min(states) >= 0
        moved = kinds(taken(ranks, 0), t.Utilisation)[0].plans
        loop(ranks, 50)
        assert kinds(taken(ranks, 0), t.Utilisation)[0].plans == moved + 50


@pytest.mark.parametrize("ahead", [0, 1 << 11])
@pytest.mark.parametrize("rate", [0, 100_000])
def test_what_goes_out_and_comes_back_is_told(rate: int, ahead: int) -> None:
    """Bytes of spills are those of the file, at any rate; each says for which run, signal and line it was, and whose memory
    went. Their time is no kernel's: slices add up to the counters all the same."""
    session = gt.connect("inproc", workers=1)
    try:
        (core,) = session.link.fabric.workers.values()  # type: ignore[attr-defined]
        core.instruments = Instruments(CLOCK, lambda: (7, 70), lambda: 0)
        limiter = core.stored.limiter = MemoryLimiter(HostBuffers(), SpillStorage(), 5 << 11, ahead=ahead, small=0)
        core.handle(m.Record(t.TRACE, rate), 0.0)
        values = [gt.full((16, 16), float(n), dtype=gt.float64) for n in range(8)]
        with gt.signal.context("tight"):
            total = gt.cat([value @ value for value in values[:2]]).sum() + values[3].sum()
        seen = total.item(), values[7].sum().item()
        assert seen == (16.0 * 16 * 16 + 3 * 256, 7 * 256.0)
        assert limiter.low_memory_runs
        events = [t.decode_event(raw) for raw in core.recording.take(core)[0]]
        spills = kinds(events, t.Spill)
        sums = {kind: sum(each.nbytes for each in spills if each.kind == kind) for kind in ("out", "in", "ahead")}
        assert sums["out"] == limiter.spill.written > 0
        assert sums["in"] + sums["ahead"] == limiter.spill.read
        ((client, _),) = core.stored.tensors.items()
        assert {each.client for each in spills} == {client}
        assert all(each.duration > 0 for each in spills)
        if rate:
            stepwise = [each for each in spills if each.site]
            assert {each.signal for each in stepwise} >= {"tight"}
            assert all("test_recorder" in each.site and each.plan >= 0 for each in stepwise)
            assert {each.tensor >= 0 for each in spills} == {True, False}, "stored tensors, and values of the run"
            assert all(each.owner == (client if each.tensor >= 0 else -1) for each in spills)
        (counters,) = kinds(events, t.Utilisation)
        slices = kinds(events, t.PlanSlice)
        assert sum(each.compute for each in slices) == counters.compute
        core.handle(m.Record(t.OFF, 0), 0.0)
        assert limiter.recording is None
        limiter.spill.close()
    finally:
        gt.disconnect()


def test_a_disk_that_is_full_leaves_the_time_right_and_tells_of_no_spill(ranks: Ranks) -> None:
    """What could not be written did not go out, and the stopwatch is where it was."""

    class Full(SpillStorage):
        def write(self, memory: memoryview) -> Any:
            raise OSError(28, "No space left on device")

    ranks.cores[0].limiter = MemoryLimiter(HostBuffers(), Full(), 3 << 20, small=64)
    ranks.all(m.Record(t.TRACE, 100))
    recording = ranks.cores[0].recording
    assert recording is not None
    state = recording.state
    for tensor in range(1, 6):
        ranks.store(tensor, np.ones(1 << 18, np.float32), WHOLE)
    assert recording.state == state
    assert not kinds(taken(ranks, 0), t.Spill)


def test_what_is_out_in_the_file_is_told(ranks: Ranks) -> None:
    """A worker with a limit says it, and how many bytes it has put out; one without says 0 of both."""
    core = ranks.cores[0]
    core.stored.limiter = MemoryLimiter(HostBuffers(), SpillStorage(), 3 << 20, small=64)
    ranks.all(m.Record(t.SUMMARY, 100))
    for tensor in range(1, 6):
        ranks.store(tensor, np.ones(1 << 18, np.float32), WHOLE)
    (gauges,) = kinds(taken(ranks, 0), t.Gauges)
    assert gauges.pool == 3 << 20
    assert gauges.spilled == core.stored.limiter.out >= 2 << 20
    (other,) = kinds(taken(ranks, 1), t.Gauges)
    assert (other.pool, other.spilled) == (0, 0)
    core.stored.limiter.spill.close()
