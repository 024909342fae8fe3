"""The handshake: clients, workers, watchers and workers' pulses join a service with their first message, if there is room.

Sessions are limited in number, and in how many may open per second, by one program and in all. A refused peer is told
when to try again. Open sessions share the dispatcher by turns (`job_scheduler.py`); the limits here are for the cost of
opening.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any, Final

from gt.dispatcher.state.events import Send
from gt.dispatcher.state.records import ClientRecord, WorkerRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.dispatcher.telemetry.subscribers import Subscribers
from gt.errors import ProtocolError, SessionError
from gt.wire import messages as m

from .job_scheduler import program_of

CLIENT_CREDITS: Final = 64
"""The most runs and puts that a client may have in flight."""
MAX_CLIENTS: Final = 1024
"""The most sessions at one time. It also bounds what workers have queued."""
PROGRAM_RATE: Final = (64, 8.0)
"""The sessions that one program may open at once, and then per second, so that a program that reconnects in a loop is told."""
SERVICE_RATE: Final = (1024, 64.0)
"""The same for all programs together."""
MAX_PROGRAMS: Final = 4096
"""The most programs whose recently opened sessions are counted."""
EVERYBODY: Final = "everybody"


class RateLimit:
    """A rate limit for each key: `burst` events at once, then `a_second` per second. The time is an argument."""

    def __init__(self, burst: int, a_second: float) -> None:
        self.burst = burst
        self.a_second = a_second
        self.spent: dict[Hashable, tuple[float, float]] = {}
        """For each key, what it has used up and when that was counted; it recovers with time. A missing key has used nothing."""

    def wait(self, whose: Hashable, now: float) -> float:
        """The seconds until the event may happen; 0 if it may happen now."""
        return max(0.0, (self._left(whose, now) + 1 - self.burst) / self.a_second)

    def take(self, whose: Hashable, now: float) -> None:
        """Count an event."""
        if len(self.spent) >= MAX_PROGRAMS:
            self.spent = {each: spent for each, spent in self.spent.items() if self._left(each, now) > 0}
        if len(self.spent) >= MAX_PROGRAMS:
            del self.spent[next(iter(self.spent))]
        self.spent[whose] = self._left(whose, now) + 1, now

    def _left(self, whose: Hashable, now: float) -> float:
        spent, since = self.spent.get(whose, (0.0, now))
        return max(0.0, spent - (now - since) * self.a_second)


class Handshake:
    """Gives numbers to peers that join. `facts` are what every peer is told about the service."""

    def __init__(self, service: DispatcherState, subscribers: Subscribers, facts: dict[str, Any]) -> None:
        self.service = service
        self.subscribers = subscribers
        self.facts = facts
        self.clients = itertools.count(1)
        self.workers = itertools.count()
        self.pulses: dict[bytes, WorkerRecord] = {}
        """Connections that carry only the heartbeats of a worker."""
        self.of_program = RateLimit(*PROGRAM_RATE)
        self.in_all = RateLimit(*SERVICE_RATE)

    def hello(self, peer: bytes, hello: m.Hello) -> bool:
        """Process a peer's first message. Returns whether a worker has joined.

        Raises `ProtocolError`, or `SessionError` when a peer that made no mistake is refused.
        """
        now = self.service.now
        if hello.role == "client":
            self._client(peer, hello, now)
        elif hello.role == "worker":
            self._worker(peer, hello, now)
            return True
        elif hello.role == "watcher":
            try:
                self.subscribers.join(peer, hello.facts, now)
            except ProtocolError as error:
                raise SessionError(str(error)) from None
            self.service.send(peer, m.Welcome(0, self.facts))
        elif hello.role == "pulse":
            self._pulse(peer, hello)
        else:
            raise ProtocolError(f"no role {hello.role[:20]!r}")
        return False

    def _client(self, peer: bytes, hello: m.Hello, now: float) -> None:
        service = self.service
        bulk = hello.facts.get("bulk", b"")
        if not isinstance(bulk, bytes):
            raise ProtocolError("a bulk identity is bytes")
        program = program_of(peer, hello.facts)
        self._make_way(program, now)
        client = ClientRecord(peer, next(self.clients), hello.facts, bulk, program, heard=now)
        service.clients[peer] = service.by_number[client.number] = client
        facts = {**self.facts, "workers": len(service.workers), "credits": CLIENT_CREDITS}
        service.send(peer, m.Welcome(client.number, facts))
        service.log("info", f"client {client.number} joined", client=client.number)
        if service.recording is not None:
            service.recording.client_joined(client)

    def _make_way(self, program: Hashable, now: float) -> None:
        """Count a new session of a program. Raises `SessionError` if it is one too many."""
        if len(self.service.clients) >= MAX_CLIENTS:
            raise SessionError(
                f"too many sessions: this service has {MAX_CLIENTS}, and no room for another; try again when one has ended"
            )
        for rate, whose, who in (
            (self.of_program, program, "this program"),
            (self.in_all, EVERYBODY, "all programs together"),
        ):
            wait = rate.wait(whose, now)
            if wait > 0:
                self.service.counters.refused += 1
                raise SessionError(
                    f"too many sessions: of {who} {rate.burst} may open at once, then {rate.a_second:g} a second; "
                    f"try again in {wait:.1f} s, or keep one session open"
                )
        self.of_program.take(program, now)
        self.in_all.take(EVERYBODY, now)

    def _worker(self, peer: bytes, hello: m.Hello, now: float) -> None:
        service = self.service
        address, bulk = hello.facts.get("address"), hello.facts.get("bulk", b"")
        if not isinstance(address, str) or not isinstance(bulk, bytes):
            raise ProtocolError("a worker says its address and bulk identity")
        number = next(self.workers)  # never given twice: peers remember whom they lost by its number
        hosts = {str(worker.facts.get("host")): worker for worker in service.workers.values()}
        hosts.pop(str(hello.facts.get("host")), None)
        far = list(hosts.values())  # one for each other host: their links are alike
        worker = service.workers[peer] = WorkerRecord(peer, number, hello.facts, address, bulk, heard=now)
        service.send(peer, m.Welcome(number, self.facts))
        if service.recording is not None:
            service.recording.worker_joined(worker)
            self.subscribers.tell(worker)
        if far:
            service.send(peer, m.Meet([worker.number for worker in far], [worker.address for worker in far]))
            service.out.append(Send(tuple(worker.identity for worker in far), m.Meet([number], [address])))
        if len(service.workers) >= service.workers_expected:
            service.workers_expected = 0  # they were all here once; who is lost later is not waited for
        service.log("info", f"worker {number} joined ({hello.facts.get('device', 'unknown device')})", worker=number)

    def _pulse(self, peer: bytes, hello: m.Hello) -> None:
        address = str(hello.facts.get("address"))
        found = next((worker for worker in self.service.workers.values() if worker.address == address), None)
        if found is None:
            raise ProtocolError("a pulse of no worker")
        self.service.send(peer, m.Welcome(0, {}))
        self.without(found)
        self.pulses[peer] = found

    def without(self, worker: WorkerRecord) -> None:
        """Drop the pulse connections of a worker."""
        self.pulses = {pulse: other for pulse, other in self.pulses.items() if other is not worker}
