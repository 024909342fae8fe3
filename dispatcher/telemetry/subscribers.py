"""The watchers of a service, each of which gets batches of events as fast as it reads them and no faster.

A watcher reports how far it has read. When it is a few batches behind, events wait in bounded memory that all watchers share;
the oldest are dropped and counted. Watchers that have read equally far get the same bytes, packed once. Nothing is recorded
anywhere while nobody watches. No socket, clock or thread is used here: the shell says when a batch is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

from gt.bounds import MAX_PRINCIPAL_UNREAD_BYTES, MAX_UNREAD_BYTES, MAX_WORKER_EVENTS
from gt.dispatcher.state.events import Send
from gt.dispatcher.state.multicast import MULTICAST_ABOVE
from gt.dispatcher.state.principal_limits import equal_part, refusal
from gt.dispatcher.state.records import ClientRecord, WorkerRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.dispatcher.state.worker_duty import IN_SERVICE
from gt.errors import ProtocolError
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.principals import OPERATOR, OWN_PROCESS, Origin, ProgramIdentity, program_of

from .recorder import (
    SERVICE_EVENT_RATES,
    WORKER_EVENT_RATES,
    DispatcherRecorder,
    describe,
    duty_of,
    joined_client,
    joined_worker,
    sampled,
    used,
)

BATCH_PERIODS: Final = {t.OFF: 0.0, t.SUMMARY: 0.5, t.TRACE: 0.2}
"""The seconds between two batches, by level."""
MAX_UNREAD_BATCHES: Final = 16
"""The most batches that a watcher may have unread."""
MAX_BATCH_EVENTS: Final = 8192
"""The most events in one batch."""
MAX_PENDING_EVENTS: Final = 20_000
"""The most events that wait, besides what each watcher is told first."""
MAX_WATCHERS: Final = 64
MAX_TIME: Final = 1 << 61
"""Later than any time that a clock shows, so that no sum of times is too large to send."""
KNOWN_PER_TURN: Final = 2048
"""How much of the state of the service is told in one turn: so many instructions of plans, or as many of what counts for some."""
PEER_WORK: Final = 64
"""What a worker, a client or a short plan counts for."""
USED_WORK: Final = 16
"""What a sum of what was used counts for."""
WATCHER_TIMEOUT: Final = 10.0
"""The seconds of silence after which a watcher is forgotten."""
Known = t.Event | Generator[None, None, t.Event]
"""What is said of a part of the service, perhaps found out in turns."""
_OVER: Final = object()


@dataclass(slots=True)
class Watcher:
    """One watcher. `sent` and `seen` count batches."""

    identity: bytes
    facts: dict[str, Any]
    heard: float
    program: ProgramIdentity
    operates: bool
    """Whether it may do more than watch."""
    watches: bool = True
    """Whether it may have events; else it only asks."""
    level: int = t.OFF
    sent: int = 0
    seen: int = 0
    first: list[list[Any]] = field(default_factory=list)
    """The state of the service when it joined, as far as it was not sent yet."""
    at: int = 0
    """The number of its next event."""
    lost: int = 0
    unread_bytes: int = 0
    """What it was sent and has not acknowledged, as of its last message."""


class Subscribers:
    """All watchers of one service. `started` is in nanoseconds on the core's clock; `boot` names that clock, as workers name
    theirs."""

    def __init__(self, service: DispatcherState, boot: str) -> None:
        self.service = service
        self.boot = boot
        self.watchers: dict[bytes, Watcher] = {}
        self.level = t.OFF
        self.describing: dict[bytes, Iterator[None]] = {}
        """By watcher: finds out in turns what it is told first. It gets no batch before that."""
        self.pending: deque[list[Any]] = deque(maxlen=MAX_PENDING_EVENTS)
        """The events that some watcher may not have been sent; the last one has number `count - 1`."""
        self.count = 0
        self.offsets: dict[int, int] = {}
        """By worker, what to add to its times."""
        self.heard: dict[int, int] = {}
        """By worker, when it last reported events."""
        self.started = 0

    @property
    def period(self) -> float:
        """The seconds between two batches; 0 while nobody watches."""
        return BATCH_PERIODS[self.level]

    # watchers

    def join(
        self, peer: bytes, facts: dict[str, Any], now: float, origin: Origin = OWN_PROCESS, *, watches: bool = True
    ) -> None:
        """Add a watcher, or one that only asks. Raises `ProtocolError` if there are too many."""
        program = program_of(peer, facts, origin)
        who = refusal(MAX_WATCHERS, [watcher.program for watcher in self.watchers.values()], program)
        if who is not None:
            raise ProtocolError(f"this service has room for {MAX_WATCHERS} watchers, and no more of {who}")
        self.watchers[peer] = Watcher(peer, facts, now, program, OPERATOR in origin.principal.roles, watches)

    def hear(self, watcher: Watcher, message: m.Watch) -> None:
        """Note how much a watcher wants, and how far it has read. Raises `ProtocolError` for impossible values."""
        if message.level not in BATCH_PERIODS or not watcher.seen <= message.seen <= watcher.sent:
            raise ProtocolError(f"there is no level {message.level}, or not so many batches as {message.seen}")
        watcher.seen = message.seen
        if message.level == watcher.level:
            return
        began = watcher.level == t.OFF
        watcher.level = message.level
        watcher.first = []
        self.describing.pop(watcher.identity, None)
        self._settle()
        if began and self.service.recording is not None:
            watcher.at, watcher.lost = self.count, 0
            self.describing[watcher.identity] = self._describe(watcher, self.service.recording.now())
            self._go_on_describing()

    def check_reads(self, watcher: Watcher) -> None:
        """Raise `ProtocolError` if a watcher asks for more although it has not read the answers before."""
        principal = watcher.program.principal
        among = sum(each.program.principal == principal for each in self.watchers.values())
        if watcher.unread_bytes > equal_part(MAX_UNREAD_BYTES, MAX_PRINCIPAL_UNREAD_BYTES, among):
            raise ProtocolError(f"it asks for more, and has not read {watcher.unread_bytes} bytes of what it was sent")

    def leave(self, peer: bytes) -> None:
        """Remove a watcher."""
        if self.watchers.pop(peer, None) is not None:
            self.describing.pop(peer, None)
            self._settle()

    def late(self, now: float) -> list[bytes]:
        """The watchers that have been silent for too long."""
        return [watcher.identity for watcher in self.watchers.values() if now - watcher.heard > WATCHER_TIMEOUT]

    def _settle(self) -> None:
        """Record as much as the most demanding watcher wants."""
        level = max((watcher.level for watcher in self.watchers.values()), default=t.OFF)
        if level == self.level:
            return
        self.level = level
        self.service.recording = DispatcherRecorder(self.service, level) if level else None
        self.heard.clear()
        if not level:
            self.pending.clear()
        for worker in self.service.workers.values():
            self.tell(worker)

    def tell(self, worker: WorkerRecord) -> None:
        """Tell a worker how much to record."""
        if self.level == t.OFF:
            self.service.send(worker.identity, m.Record(t.OFF, 0))
            return
        share = SERVICE_EVENT_RATES[self.level] // max(1, len(self.service.workers))
        self.service.send(worker.identity, m.Record(self.level, max(20, min(WORKER_EVENT_RATES[self.level], share))))

    def describe(self) -> Iterator[None]:
        """Find out what new watchers are told first, in turns."""
        while self.describing:
            self._go_on_describing()
            yield

    def _go_on_describing(self) -> None:
        """Do one turn of that for each of them."""
        for identity, turns in [*self.describing.items()]:
            if next(turns, _OVER) is _OVER:
                del self.describing[identity]

    def _describe(self, watcher: Watcher, now: int) -> Iterator[None]:
        """The state of the service, for a new watcher, in turns."""
        spent = 0
        for work, event in self._known(now):
            spent += work
            if spent > KNOWN_PER_TURN and spent > work:
                yield
                spent = work
            told = event()
            watcher.first.append(t.encode_event((yield from told) if isinstance(told, Generator) else told))

    def _known(self, now: int) -> Iterator[tuple[int, Callable[[], Known]]]:
        """The state of the service, and how much it is to tell of each part of it."""
        for worker in [*self.service.workers.values()]:
            if worker.identity in self.service.workers:
                yield PEER_WORK, partial(joined_worker, now, worker)
                if worker.duty is not IN_SERVICE:
                    yield 0, partial(duty_of, now, worker)
                for event in sampled(worker):
                    yield 0, partial(t.Device._make, event)
        for key, row in [*self.service.ledger.rows.items()]:
            yield USED_WORK, partial(used, now, key, row)
        for client in [*self.service.clients.values()]:
            if self.service.by_number.get(client.number) is client:
                yield PEER_WORK, partial(joined_client, now, client)
                yield from self._known_plans(client, now)

    def _known_plans(self, client: ClientRecord, now: int) -> Iterator[tuple[int, Callable[[], Known]]]:
        for key, cached in [*client.plans.by_residents.items()]:
            mesh = client.mesh
            if mesh is not None and cached.number:
                for each in cached.parts or (cached,):
                    plan, number = each.planned.plan, each.number
                    work = PEER_WORK + len(plan.instructions)
                    yield work, partial(describe, now, client.number, key[0], number, plan, mesh.members, "known")

    # events

    def forget(self, worker: WorkerRecord) -> None:
        """Forget a worker that is gone."""
        self.offsets.pop(worker.number, None)
        self.heard.pop(worker.number, None)

    def events(self, worker: WorkerRecord, message: m.Events) -> None:
        """Take a worker's batch of events. Raises `ProtocolError` if it is malformed."""
        recording = self.service.recording
        if len(message.events) > MAX_WORKER_EVENTS:
            raise ProtocolError(f"a batch has at most {MAX_WORKER_EVENTS} events")
        kinds = [t.check_event(raw) for raw in message.events]
        if not 0 <= message.sent < MAX_TIME or not all(0 <= raw[1] < MAX_TIME for raw in message.events):
            raise ProtocolError("times are nanoseconds since a machine started")
        if not t.FROM_WORKER.issuperset(kinds):
            raise ProtocolError("workers tell of what they do, and of nothing else")
        if recording is None:
            return
        now = recording.now()
        offset = self._offset(worker, now - message.sent)
        self.heard[worker.number] = now
        for raw, kind in zip(message.events, kinds, strict=True):
            raw[1] += offset
            raw[2] = worker.number
            if kind is t.Waiting:
                raw[3] = min(max(0, raw[3]), MAX_TIME) + offset
        self._add(message.events, min(max(0, message.dropped), 1 << 32))

    def _add(self, events: list[list[Any]], dropped: int) -> None:
        """Queue events for all watchers."""
        self.pending.extend(events)
        self.count += len(events)
        for watcher in self.watchers.values():
            watcher.lost += dropped

    def _offset(self, worker: WorkerRecord, difference: int) -> int:
        """What to add to a worker's times to get the dispatcher's."""
        if self.boot and worker.facts.get("boot") == self.boot:
            return 0
        found = self.offsets[worker.number] = min(difference, self.offsets.get(worker.number, difference))
        return found

    def find_out(self) -> Iterator[None]:
        """Find out what the next batch says of clients and their tensors, in turns."""
        while (recording := self.service.recording) is not None and recording.under_way:
            recording.work()
            yield

    def publish(self, wall: int) -> None:
        """Send the batches that are due. `wall` is in nanoseconds since 1970."""
        recording = self.service.recording
        if recording is None:
            return
        events, dropped = recording.take(wall, self.heard, len(self.watchers), self.started)
        self._add([t.encode_event(event) for event in events], dropped)
        alike: dict[tuple[int, int], list[bytes]] = {}
        oldest = self.count - len(self.pending)
        for watcher in self.watchers.values():
            if not watcher.level or watcher.sent - watcher.seen >= MAX_UNREAD_BATCHES:
                continue
            if watcher.identity in self.describing:
                continue
            watcher.lost += max(0, oldest - watcher.at)
            at = watcher.at = max(oldest, watcher.at)
            watcher.sent += 1
            if watcher.first:
                batch, watcher.first = watcher.first[:MAX_BATCH_EVENTS], watcher.first[MAX_BATCH_EVENTS:]
                rest = list(islice(self.pending, at - oldest, at - oldest + MAX_BATCH_EVENTS - len(batch)))
                watcher.at += len(rest)
                self.service.send(watcher.identity, m.Events(recording.now(), watcher.lost, batch + rest))
            else:
                alike.setdefault((at, watcher.lost), []).append(watcher.identity)
                watcher.at = min(self.count, at + MAX_BATCH_EVENTS)
            watcher.lost = 0
        for (at, lost), identities in alike.items():
            message = m.Events(
                recording.now(), lost, list(islice(self.pending, at - oldest, at - oldest + MAX_BATCH_EVENTS))
            )
            for some in (
                tuple(identities[n : n + MULTICAST_ABOVE]) for n in range(0, len(identities), MULTICAST_ABOVE)
            ):  # larger groups are for workers, who subscribe to them
                self.service.out.append(Send(some, message))

    def check(self) -> None:
        """The invariants between events."""
        assert self.level == max((watcher.level for watcher in self.watchers.values()), default=t.OFF)
        assert (self.service.recording is None) == (self.level == t.OFF), "recorded is what is watched"
        for watcher in self.watchers.values():
            assert 0 <= watcher.seen <= watcher.sent <= watcher.seen + MAX_UNREAD_BATCHES
            assert watcher.at <= self.count
        assert self.describing.keys() <= self.watchers.keys()
