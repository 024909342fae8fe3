"""Which peers belong to the service: they say Hello, go on over another connection, break the protocol, fall silent and leave.

What a Hello needs to be accepted is in `handlers/handshake.py`, and what is dropped with a peer in `handlers/disconnect.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from gt.daemon.rate_limit import RateLimit
from gt.errors import ProtocolError, SessionError
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.principals import Origin
from gt.wire.shared_memory.running_plan import RunningPlan

from .handlers.disconnect import Disconnect
from .handlers.handshake import EarlyPulse, Handshake
from .handlers.message_queues import MessageQueues
from .handlers.returning_sessions import ReturningSessions
from .handlers.snapshots import SnapshotHandler
from .jobs.job_scheduler import JobScheduler
from .state.events import NO_WORKER_LOSS, Lost, WorkerLoss
from .state.shared_state import DispatcherState
from .state.standby_copies import STANDBY_SECONDS
from .state.worker_duty import IN_SERVICE
from .telemetry.subscribers import Subscribers

if TYPE_CHECKING:
    from .state.records import ClientRecord

WORKER_LEASE_SECONDS: Final = 30.0
"""Seconds without a sign of life after which a worker counts as lost; less if the lease is shorter."""
LOSSES: Final = "what lost workers leave behind"
"""The job that tells sessions of them."""
ASK_AGAIN: Final = "snapshots that wait for a worker"
"""The job that has workers do what they were not there for."""
MAX_REFUSED_PEERS: Final = 10_000
"""How many peers are remembered that broke the protocol, so that the log says so once of each."""
LOGGED_RATE: Final = (20, 0.1)
"""The refused messages of one principal that are logged at once, and then per second."""


class Membership:
    """The peers of one dispatcher.

    `lease` and `worker_lease` are the seconds of silence after which a peer whose process cannot be watched is lost, and any
    worker. `running_plan` says what a lost worker was computing, if that is known.
    """

    def __init__(
        self, service: DispatcherState, jobs: JobScheduler, handshake: Handshake, disconnect: Disconnect,
        returning: ReturningSessions, queues: MessageQueues, subscribers: Subscribers, snapshots: SnapshotHandler,
        running_plan: Callable[[bytes], RunningPlan | None], lease: float, worker_lease: float,
    ) -> None:  # fmt: skip
        self.service = service
        self.jobs = jobs
        self.handshake = handshake
        self.disconnect = disconnect
        self.recovery = disconnect.recovery
        self.returning = returning
        self.queues = queues
        self.subscribers = subscribers
        self.snapshots = snapshots
        self.running_plan = running_plan
        self.lease = lease
        self.worker_lease = min(worker_lease, lease)
        self.silent: list[bytes] = []
        """Workers that were lost by their silence, and whose supervisors start others once their processes have ended."""
        self.refused: set[bytes] = set()
        """Peers that have broken the protocol."""
        self.logged, self.not_logged = RateLimit(*LOGGED_RATE), 0
        """Counts the refused messages of each principal that were logged, and those that were not."""
        self.dropping = False
        """Whether a peer is half gone: all that refers to it is being dropped."""

    @property
    def peers(self) -> Iterator[bytes]:
        """All who are told that this dispatcher lives."""
        service = self.service
        standby = (service.standby.peer,) if service.standby.peer else ()
        return itertools.chain(
            service.clients, service.workers, self.subscribers.watchers, standby, service.queued.waiting
        )

    def knows(self, peer: bytes) -> bool:
        """Whether a peer is one of them."""
        service = self.service
        return (
            peer in service.clients or peer in service.workers or peer in self.subscribers.watchers
            or peer == service.standby.peer or peer in service.queued
        )  # fmt: skip

    def joined(self, peer: bytes) -> bool:
        """Whether a peer has said `Hello`, also one whose process has ended since."""
        return self.knows(peer) or peer in self.handshake.pulses or peer in self.disconnect.ended

    def by_bulk(self, identity: bytes) -> bytes:
        """The peer with this bulk identity; the identity itself if there is none."""
        clients = (client.identity for client in self.service.clients.values() if client.bulk == identity)
        workers = (worker.identity for worker in self.service.workers.values() if worker.bulk == identity)
        return next(itertools.chain(clients, workers), identity)

    def hello(self, peer: bytes, hello: m.Hello, origin: Origin) -> None:
        """Let a peer in, or tell it why not."""
        if hello.version != m.VERSION:
            text = f"this dispatcher speaks protocol {m.VERSION}, not {hello.version}"
            self.service.send(peer, m.Goodbye("ProtocolError", text))
        elif self.knows(peer):
            self.refuse(peer, "a second Hello")
        else:
            try:
                before = self.handshake.present(hello, origin)
                if before is not None and self._goes_on(before, peer, hello, origin):
                    return
                if self.handshake.hello(peer, hello, origin):
                    self.workers_came()
                    if self.service.workers[peer].duty is IN_SERVICE:
                        self.queues.remesh("a worker has joined")
            except SessionError as error:
                self.service.send(peer, m.Goodbye("SessionError", str(error)))
            except ProtocolError as error:
                self.refuse(peer, str(error), early=isinstance(error, EarlyPulse))

    def _goes_on(self, client: ClientRecord, peer: bytes, hello: m.Hello, origin: Origin) -> bool:
        """The client of a session that is here has opened another connection, because it has given up the one before. Returns
        whether the session goes on there; otherwise it is gone, and may begin anew."""
        before, mark = client.identity, hello.facts.get("mark")
        self.disconnect.connection_ended(before)
        if mark is not None and self.recovery.has(client, mark):
            self.dropping = True
            self.disconnect.move(client, peer, hello.facts, origin)
            self.dropping = False
            return True
        self.returning.put_back(client)
        self.lost(before, "its client has opened another connection")
        return False

    def workers_came(self) -> None:
        """There are other workers in service: let what has waited for them go on."""
        self.snapshots.unasked = True
        self.jobs.work_off(ASK_AGAIN, (None,), self.snapshots.ask_again)
        self.queues.wake_all()

    def refuse(self, peer: bytes, reason: str, *, early: bool = False) -> None:
        """Answer nonsense once, count it, and end the session of a peer whose stream can no longer be trusted. What came too
        `early` is said again, and nobody's fault."""
        self.service.counters.refused += not early
        if peer not in self.refused:
            if len(self.refused) > MAX_REFUSED_PEERS:
                self.refused.clear()
            self.refused.add(peer)
            if early:
                self.service.detail(f"refused a message: {reason}")
            else:
                self._log_refused(peer, reason)
            if self.service.recording is not None and not early:
                self.service.recording.failed(t.DISPATCHER, -1, -1, "ProtocolError", reason)
        self.service.send(peer, m.Goodbye("ProtocolError", f"{reason}; start afresh with Hello"))
        self.handshake.pulses.pop(peer, None)
        if self.knows(peer):
            self.lost(peer, f"it broke the protocol: {reason}")

    def _log_refused(self, peer: bytes, reason: str) -> None:
        """Log that a message was refused, unless many of its principal's were a moment ago: whoever opens one session after the
        other could fill a disk by that."""
        client, now = self.service.clients.get(peer), self.service.now
        whose = "a stranger" if client is None else client.program.principal
        if self.logged.wait(whose, now) > 0:
            self.not_logged += 1
            return
        self.logged.take(whose, now)
        more = f"; {self.not_logged} more, of all, were only counted" if self.not_logged else ""
        self.not_logged = 0
        self.service.log("warning", f"refused a message of {whose}: {reason}{more}", "refused")

    def connection_lost(self, event: Lost) -> None:
        """Drop a peer whose connection or process is gone, as the shell says."""
        if event.ended:
            self.disconnect.connection_ended(event.peer)
        worker = self.service.workers.get(event.peer)
        returns = worker is not None and worker.facts.get("supervised") is True
        plan = self.running_plan(event.peer) if event.ended else None
        self.lost(event.peer, event.reason, WorkerLoss(returns, plan=plan))

    def lost(self, peer: bytes, reason: str, loss: WorkerLoss = NO_WORKER_LOSS) -> None:
        """Drop a peer, and all that refers to it."""
        self.dropping = True
        was_worker = self.disconnect.lost(peer, reason, loss)
        self.dropping = False
        if was_worker:
            self.jobs.work_off(LOSSES, self.disconnect.losses, self.disconnect.settle)
            self.queues.wake_all()  # a spare may have taken the place for which they have waited

    def end_sessions(self) -> None:
        """End the sessions that a bug has left in an unknown state."""
        ending = self.service.ending
        while ending:
            peer, reason = next(iter(ending.items()))
            self.service.send(peer, m.Goodbye("SessionError", reason))
            self.handshake.pulses.pop(peer, None)
            self.lost(peer, reason)
            del ending[peer]

    def drop_silent(self, now: float) -> None:
        """Drop peers that have given no sign of life for too long."""
        for watcher in self.subscribers.late(now):
            self.subscribers.leave(watcher)
        standby = self.service.standby
        if standby.peer and now - standby.heard > STANDBY_SECONDS:
            self.lost(standby.peer, f"no sign of life for {STANDBY_SECONDS:g} s")
        for worker in list(self.service.workers.values()):
            if now - worker.heard > self.worker_lease:
                returns = worker.facts.get("supervised") is True and worker.facts.get("watched") is True
                self.silent += [worker.identity] * returns
                loss = WorkerLoss(returns, plan=self.running_plan(worker.identity))
                self.lost(worker.identity, f"no sign of life for {self.worker_lease:g} s", loss)
        for each in [*self.service.queued.waiting.values()]:
            if now - each.heard > self.lease and not each.said[0].facts.get("watched"):
                self.lost(each.peer, f"no sign of life for {self.lease:g} s")
        wanted = {each.principal for each in self.service.queued.waiting.values()}
        for client in list(self.service.clients.values()):
            watched = client.facts.get("watched") and client.program.principal not in wanted
            if now - client.heard > self.lease and not watched:
                self.lost(client.identity, f"no sign of life for {self.lease:g} s")
