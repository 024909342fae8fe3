"""The worker's recorder of events for watchers: where its time goes, what it ran, moved and received, what it waits for.

The core calls a method where something begins or ends, and nothing while nobody watches. Time is kept by a stopwatch that
is always in one of five states, so the states' sums are all the time there is, and the slices' sums are those of the
counters. The clock is an instrument from outside; no socket or thread in here.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.wire import telemetry as t
from gt.wire.event_buffer import EventBuffer, TokenBucket
from gt.worker.program.compiler import Action, Slots

if TYPE_CHECKING:
    from gt.worker.core import WorkerCore
    from gt.worker.cuda_graphs.graphs import CudaGraphs
    from gt.worker.execution.execution import Execution
    from gt.worker.memory_limit.limiter import SpillCause
    from gt.worker.program.compiler import Program, ProgramStep
    from gt.worker.spill.eviction import ValuePlace
    from gt.worker.transfer.move import Move

COMPUTE_TIME: Final = 0
COMMUNICATION_TIME: Final = 1
RUNTIME_TIME: Final = 2
WAITING_TIME: Final = 3
IDLE_TIME: Final = 4
BATCH_PERIODS: Final = {t.SUMMARY: 500_000_000, t.TRACE: 200_000_000}
"""The nanoseconds between two batches, by level."""
BURST_SECONDS: Final = {t.SUMMARY: 0.1, t.TRACE: 1.0}
"""Seconds' worth of events that go by themselves at once: a trace has all of a short program, a monitor the same at any time."""
TIMING_BUDGETS: Final = {t.SUMMARY: 0.002, t.TRACE: 0.005}
"""The share of time that timing instructions one by one may take."""
EVENT_COST_NS: Final = 5_000
"""Nanoseconds that an op slice takes to time, pack and pass on, beside making it, for that budget."""
MAX_TIMED_RUNS: Final = {t.SUMMARY: 500, t.TRACE: 0}
"""The most runs per second that are timed, by level; 0: all are."""
RUNS_PER_RATE_CHECK: Final = 16
"""The timed runs after which their rate is determined again."""
MAX_RUNS_PER_SAMPLE: Final = 64
"""The most runs for which one timed run may stand, on average."""
GOLDEN_RATIO: Final = (math.sqrt(5) - 1) / 2
"""Its multiples lie evenly between whole numbers, in no order that a loop might have too."""
LONG_WAIT_NS: Final = 20_000_000
"""The nanoseconds after which a wait is reported."""
COUNT_INTERVAL_FACTOR: Final = 200
"""The least time between two counts of the stored bytes, as a multiple of what one takes."""
MAX_REASONS: Final = 16
"""The most reasons for missing graphs that are reported."""
MAX_NAMED_PROGRAMS: Final = 256
"""The most programs whose steps' names are remembered."""


class Instruments(NamedTuple):
    """What a worker is measured by: nanoseconds, (bytes of this process, of the machine or device in all), bytes lent."""

    clock: Callable[[], int]
    memory: Callable[[], tuple[int, int]]
    lent: Callable[[], int]


class ActionName(NamedTuple):
    """The fields of an op slice that describe an action."""

    position: int
    op: str
    signal: str
    site: str
    elements: int
    nbytes: int


@dataclass(slots=True)
class RunTotals:
    """Runs of one plan that are not reported individually, added up until the next batch; `order` and `began` are the first
    one's.

    `whole` is the time of those that were in kernels all the time, which is in no other sum, nor in the counters, yet.
    `passed` were not timed, and are taken to be like those.
    """

    program: Program
    client: int
    order: int = -1
    began: int = 0
    times: int = 0
    passed: int = 0
    whole: int = 0
    duration: int = 0
    compute: int = 0
    communication: int = 0
    waiting: int = 0


MOVE_TOTAL_FIELDS: Final = ("times", "duration", "sent", "received", "waiting")


@dataclass(slots=True)
class MoveTotals:
    """Passages of one move that are not reported individually, added up until the next batch; `event` is like the first."""

    move: Move
    event: t.Collective
    times: int = 0
    duration: int = 0
    sent: int = 0
    received: int = 0
    waiting: int = 0


class WorkerRecording:
    """Records the events of one worker at one level, until nobody watches."""

    def __init__(self, instruments: Instruments, worker: int, level: int, rate: int) -> None:
        self.instruments = instruments
        self.clock = clock = instruments.clock
        self.worker = worker
        self.level = level
        self.period = BATCH_PERIODS[level]
        now = clock()
        half, fourth, burst = rate // 2, rate // 4, max(1, int(rate * BURST_SECONDS[level]))
        self.singles = TokenBucket(now, half, burst)
        """Which runs go by themselves: whatever else there is, half of all that does."""
        self.recorder = EventBuffer(clock, fourth, burst)
        """For moves, transfers and spills, of which one run may have many."""
        self.bucket = TokenBucket(now, rate - half - fourth, burst)
        """For op slices."""
        self.totals = [0, 0, 0, 0, 0]
        """By state; run time of GT is what is left over."""
        self.state = RUNTIME_TIME
        self.since = self.started = now
        self.due = now + self.period
        self.plans = self.instructions = self.compiled = 0
        self.sent: dict[int, int] = {}
        self.runs: dict[int, RunTotals] = {}
        """By plan: since the last batch."""
        self.moved: dict[int, MoveTotals] = {}
        """By move."""
        self.pass_by = 0
        """Runs that may pass untimed before the next one that is timed."""
        self.gaps = self._gaps()
        self.began = 0
        self.before = (0, 0, 0)
        self.whole = True
        """Whether the run under way has been in its kernels all the time since it began."""
        self.sampling = False
        """Whether the run under way is timed instruction by instruction."""
        self.sample_at = now
        self.marks: list[int] = []
        """When the actions of the block under way ended, in a run that is timed."""
        self.apart = False
        """Whether the moves of the run under way go by themselves."""
        self.moving = (0, 0)
        """Of the move under way: when it began, and how long until then was waited."""
        self.announced_puts: dict[tuple[int, int], int] = {}
        """When bulk puts were announced."""
        self.named: dict[int, tuple[Program, list[list[ActionName]]]] = {}
        self.moves: dict[int, tuple[Move, list[int]]] = {}
        self.counted = (0, 0)
        self.count_at = now

    # time

    def switch(self, state: int) -> int:
        """From now on time goes to `state`; the time."""
        now = self.clock()
        if self.state != RUNTIME_TIME:
            self.totals[self.state] += now - self.since
        self.since = now
        self.state = state
        return now

    def rested(self, began: int, ended: int, waits: bool) -> None:
        """Meanwhile there was nothing to do."""
        self.totals[WAITING_TIME if waits else IDLE_TIME] += ended - began
        self.since = ended

    # runs

    def begin(self, running: Execution) -> WorkerRecording | None:
        """A run begins: its first block. Who is to hear of the rest of it; None for most runs of a flood, which have no moves:
        some are timed and stand for those that pass between them, which are only counted.

        The hot path, as `finish` is: what can be worked out for many runs at once is, in `_settle`; and run time of GT, which
        comes before, is what is left over of all time."""
        program = running.program
        if self.pass_by and not program.moves:
            runs = self.runs.get(running.plan)
            if runs is not None and runs.times:
                self.pass_by -= 1
                runs.passed += 1
                return None
        self.pass_by = next(self.gaps)
        now = self.since = self.clock()
        self.state = COMPUTE_TIME
        if program.moves:
            self._in_parts(now)
            self.apart = now >= self.singles.until and self.recorder.bucket.take(now, len(program.moves))
        self.sampling = now >= self.sample_at and self._sample(program, now)
        return self

    def _in_parts(self, began: int) -> None:
        """The run under way will not be in its kernels all the time."""
        self.whole = False
        self.began = began
        self.before = (self.totals[COMPUTE_TIME], self.totals[COMMUNICATION_TIME], self.totals[WAITING_TIME])

    def _sample(self, program: Program, now: int) -> bool:
        """It is time for a sample: whether there is room for one of this size."""
        actions = sum(map(len, program.actions))
        if self.bucket.take(now, actions):
            self.sample_at = now
            return True
        self.sample_at = now + t.SECOND * actions // max(1, self.bucket.rate)
        return False

    def finish(self, running: Execution) -> None:
        """It has ended."""
        now = self.clock()
        if self.whole and now < self.singles.until and (runs := self.runs.get(running.plan)) is not None:
            runs.times += 1
            runs.whole += now - self.since
            if runs.times == 1:
                runs.began, runs.order = self.since, running.order
        else:
            self._finish(running, now)
        self.since = now
        self.state = RUNTIME_TIME

    def _finish(self, running: Execution, now: int) -> None:
        """The same for a run that goes by itself, is the first to which others are added, or was not all in kernels."""
        self.totals[COMPUTE_TIME] += now - self.since
        began, compute, communication, waiting = self.since, now - self.since, 0, 0
        if not self.whole:
            self.whole = True
            began = self.began
            compute, communication, waiting = (
                self.totals[state] - before
                for state, before in zip((COMPUTE_TIME, COMMUNICATION_TIME, WAITING_TIME), self.before, strict=True)
            )
        plan, client = running.plan, running.client
        runs = self.runs.get(plan)
        if runs is not None and now < self.singles.until:
            if not runs.times:
                runs.began, runs.order = began, running.order
            runs.times += 1
            runs.duration += now - began
            runs.compute += compute
            runs.communication += communication
            runs.waiting += waiting
            return
        if runs is None:
            self.runs[plan] = RunTotals(running.program, client)
        self.plans += 1
        self.instructions += len(running.program.plan.instructions)
        tell = self.recorder.keep if self.singles.take(now) else self.recorder.collapse
        tell(
            t.PlanSlice(
                began, self.worker, now - began, 1, plan, client, running.order, compute, communication, waiting
            )
        )

    def _settle(self, now: int) -> None:
        """What was added up becomes events."""
        room = now - self.started - sum(self.totals) - sum(runs.whole for runs in self.runs.values())
        for runs in self.runs.values():
            if runs.passed:
                guessed = min(room, runs.passed * (runs.whole // runs.times))
                runs.times += runs.passed
                runs.whole += guessed
                room -= guessed
        whole = sum(runs.whole for runs in self.runs.values())
        self.totals[COMPUTE_TIME] += whole
        if not self.whole:  # a run that began after them stands in a move
            self.before = (self.before[0] + whole, *self.before[1:])
        for plan, runs in self.runs.items():
            if runs.times:
                self.plans += runs.times
                self.instructions += runs.times * len(runs.program.plan.instructions)
                self.recorder.collapse(
                    t.PlanSlice(
                        runs.began, self.worker, runs.duration + runs.whole, runs.times, plan, runs.client, runs.order,
                        runs.compute + runs.whole, runs.communication, runs.waiting,
                    )
                )  # fmt: skip
        for moved in self.moved.values():
            if moved.times:
                self.recorder.collapse(
                    moved.event._replace(**{name: getattr(moved, name) for name in MOVE_TOTAL_FIELDS})
                )
        self.runs, self.moved = {}, {}
        self.gaps, self.pass_by = self._gaps(), 0

    def _gaps(self) -> Iterator[int]:
        """How many runs pass after each that is timed: not always as many, or of runs that take turns it might be the same one
        every time."""
        most, thin, began = MAX_TIMED_RUNS[self.level], 1, self.since
        for count in itertools.count(1):
            yield int(count * GOLDEN_RATIO % 1 * (2 * thin - 1)) if most else 0
            if most and not count % RUNS_PER_RATE_CHECK:
                passed, began = self.since - began, self.since
                thin = min(
                    MAX_RUNS_PER_SAMPLE, max(1, thin * RUNS_PER_RATE_CHECK * t.SECOND // (most * max(1, passed)))
                )

    def timed(self, actions: Iterator[Action], slots: Slots) -> None:
        """Do the actions of a block, looking at the clock after each. Raises what they raise."""
        clock = self.clock
        self.marks = marks = [clock()]
        for action in actions:
            action(slots)
            marks.append(clock())

    def block_ends(self, running: Execution) -> None:
        """The actions of a block were done, in a run that is timed, up to one that failed: say how long each took."""
        marks, self.marks = self.marks, []
        began_to_tell = self.clock()
        names = self._names(running.program)[running.block]
        for began, ended, name in zip(marks, marks[1:], names, strict=False):
            self.recorder.keep(
                t.OpSlice(began, self.worker, ended - began, 1, running.plan, running.client, running.order, *name)
            )
        spent = self.clock() - began_to_tell + EVENT_COST_NS * len(marks)
        self.sample_at += int(spent / TIMING_BUDGETS[self.level])

    def _names(self, program: Program) -> list[list[ActionName]]:
        """What is said of the actions of each block, found out once for a program."""
        known = self.named.get(id(program))
        if known is None or known[0] is not program:
            if len(self.named) >= MAX_NAMED_PROGRAMS:
                self.named.clear()
            known = self.named[id(program)] = (program, list(_named(program)))
        return known[1]

    # moves

    def move_begins(self) -> None:
        """A run enters a move."""
        now = self.switch(COMMUNICATION_TIME)
        self.moving = (now, self.totals[WAITING_TIME])

    def move_ends(self, running: Execution, move: Move, sent: int, received: int) -> None:
        """It leaves it, for its next block. So many bytes of it went to peers and came from them."""
        now = self.switch(COMPUTE_TIME)
        began, waiting = self.moving
        moved = self.moved.get(id(move))
        if moved is None or moved.move is not move or self.apart:
            tag = running.program.plan.tags[move.instruction.tag]
            event = t.Collective(
                began, self.worker, now - began, 1, running.plan, running.client, running.order, move.collective,
                self._peers(running, move), sent, received, self.totals[WAITING_TIME] - waiting,
                "/".join(tag.signal), tag.site,
            )  # fmt: skip
            (self.recorder.keep if self.apart else self.recorder.collapse)(event)
            if moved is None:
                self.moved[id(move)] = MoveTotals(move, event)
            return
        if not moved.times:
            moved.event = moved.event._replace(time=began, order=running.order)
        moved.times += 1
        moved.duration += now - began
        moved.sent += sent
        moved.received += received
        moved.waiting += self.totals[WAITING_TIME] - waiting

    def _peers(self, running: Execution, move: Move) -> list[int]:
        known = self.moves.get(id(move))
        if known is None or known[0] is not move:
            if len(self.moves) >= MAX_NAMED_PROGRAMS:
                self.moves.clear()
            members = running.info.mesh.members
            ranks = sorted({*move.targets, *(source for source, _ in move.awaited)})
            known = self.moves[id(move)] = (move, [members[rank] for rank in ranks])
        return known[1]

    def piece_sent(self, workers: list[int], nbytes: int) -> None:
        """One piece has gone to each of these."""
        for worker in workers:
            self.sent[worker] = self.sent.get(worker, 0) + nbytes

    # tensors in and out

    def put_announced(self, client: int, tensor: int) -> None:
        """A bulk put will come."""
        if len(self.announced_puts) < t.MAX_LIST_ITEMS:
            self.announced_puts[client, tensor] = self.clock()

    def put_landed(self, client: int, tensor: int, nbytes: int) -> None:
        """A bulk put is here."""
        began = self.announced_puts.pop((client, tensor), None)
        if began is not None:
            self.transferred("put", began, client, tensor, nbytes)

    def transferred(self, kind: str, began: int, client: int, tensor: int, nbytes: int) -> None:
        """Something was taken in or given out."""
        self.recorder.add(t.Transfer(began, self.worker, self.clock() - began, 1, kind, client, tensor, nbytes))

    # memory

    @contextlib.contextmanager
    def spilling(self, kind: str, cause: SpillCause, place: ValuePlace, nbytes: int) -> Iterator[None]:
        """Memory goes out or comes in; `place` is where its value is. The time is GT's own, whatever is under way."""
        state = self.state
        if state == COMPUTE_TIME and self.whole:
            self._in_parts(self.since)
        began = self.switch(RUNTIME_TIME)
        try:
            yield
        finally:
            now = self.switch(state)
        owner, tensor = (-1, -1) if isinstance(place, int) else place
        signal, site = ("", "") if cause.tag is None else ("/".join(cause.tag.signal), cause.tag.site)
        self.recorder.add(
            t.Spill(
                began, self.worker, now - began, 1, kind, cause.plan, cause.client, cause.order, owner, tensor, nbytes,
                signal, site,
            )
        )  # fmt: skip

    # batches

    def take(self, core: WorkerCore) -> tuple[list[list[Any]], int]:
        """The next batch as it travels, and how many events were dropped before it."""
        now = self.switch(self.state)
        self.due = now + self.period
        self._settle(now)
        events, dropped = self.recorder.take()
        compute, communication, _, waiting, idle = self.totals
        runtime = now - self.started - compute - communication - waiting - idle
        events.append(
            t.Utilisation(
                now, self.worker, compute, communication, runtime, waiting, idle,
                self.plans, self.instructions, self.compiled,
            )
        )  # fmt: skip
        events.append(self._gauges(core, now))
        if core.graphs is not None:
            events.append(self._graphs(core.graphs, now))
        if self.sent:
            peers = sorted(self.sent)
            events.append(t.Traffic(now, self.worker, peers, [self.sent[peer] for peer in peers]))
        stands = _waiting(core, self.worker, now, self.moving[0])
        if stands is not None:
            events.append(stands)
        return [t.encode_event(event) for event in events], dropped

    def _graphs(self, graphs: CudaGraphs, now: int) -> t.Graphs:
        reasons = graphs.without.most_common(MAX_REASONS)
        return t.Graphs(
            now, self.worker, graphs.captured, graphs.launched, graphs.total,
            [reason[: t.MAX_TEXT_LENGTH] for reason, _ in reasons], [count for _, count in reasons],
        )  # fmt: skip

    def _gauges(self, core: WorkerCore, now: int) -> t.Gauges:
        if now >= self.count_at:
            self.counted = (sum(map(len, core.stored.tensors.values())), core.stored.nbytes)
            self.count_at = now + COUNT_INTERVAL_FACTOR * (self.clock() - now)
        process, limit = self.instruments.memory()
        limiter = core.stored.limiter
        return t.Gauges(
            now,
            self.worker,
            len(core.queue),
            core.reports.count,
            *self.counted,
            process,
            limit,
            self.instruments.lent(),
            0 if limiter is None else limiter.out,
            0 if limiter is None else limiter.limit,
        )


def _waiting(core: WorkerCore, worker: int, now: int, began: int) -> t.Waiting | None:
    """The move that a run stands in, when pieces have been missing for long."""
    running = core.running
    if (
        running is None
        or running.current_move is None
        or not running.current_move.waiting
        or now - began < LONG_WAIT_NS
    ):
        return None
    in_flight = running.current_move
    move, members = in_flight.move, running.info.mesh.members
    missing = sorted({source for source, _ in in_flight.waiting})
    tag = running.program.plan.tags[move.instruction.tag]
    return t.Waiting(
        now, worker, began, "pieces", running.client, running.plan, running.order, move.collective,
        [members[rank] for rank in missing], len(in_flight.waiting), move.expected(in_flight.waiting),
        "/".join(tag.signal), tag.site,
    )  # fmt: skip


def _named(program: Program) -> Iterator[list[ActionName]]:
    """For each block what is said of its actions, which are one step each, or a chain of some."""
    position = 0
    for block, starts in zip(program.blocks, program.starts, strict=True):
        ends = [*starts[1:], len(block)]
        yield [_name(program, position + at, block[at:end]) for at, end in zip(starts, ends, strict=False)]
        position += len(block)


def _name(program: Program, position: int, steps: list[ProgramStep]) -> ActionName:
    last = steps[-1].instruction
    tag = program.plan.tags[steps[0].instruction.tag]
    local = steps[-1].call.result if steps[-1].call is not None else program.plan.values[last.outputs[0]]
    op = "+".join(step.instruction.op for step in steps)[: t.MAX_TEXT_LENGTH]
    return ActionName(position, op, "/".join(tag.signal), tag.site, math.prod(local.shape), local.nbytes)
