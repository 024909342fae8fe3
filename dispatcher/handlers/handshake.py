"""The handshake: clients, workers, watchers and workers' pulses join a service with their first message, if there is room.

A peer joins as what its principal may be (`gt/wire/principals.py`). Sessions are limited in number, and in how many may open
per second, for each principal and each of its programs (`dispatcher/state/principal_limits.py`). A refused peer is told when
to try again. Open sessions share the dispatcher by turns (`jobs/job_scheduler.py`); the limits here are for the cost of opening.
An operator may grant a principal fewer sessions at a time (`dispatcher/limits`); then the next one waits, or is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gt.daemon.rate_limit import RateLimit
from gt.dispatcher.cost.cost_model import host_of
from gt.dispatcher.limits.limit_table import REFUSE
from gt.dispatcher.limits.session_queue import QueuedSession
from gt.dispatcher.pacing.priority import AUTO, Priority, at_most
from gt.dispatcher.state.events import Send
from gt.dispatcher.state.numbers import Numbers
from gt.dispatcher.state.principal_limits import refusal
from gt.dispatcher.state.records import ClientRecord, WorkerRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.dispatcher.state.standby_copies import Replacement
from gt.dispatcher.state.worker_duty import IN_SERVICE, SPARE
from gt.dispatcher.telemetry.health_answers import health_facts
from gt.dispatcher.telemetry.subscribers import Subscribers
from gt.dispatcher.telemetry.worker_ops import check_offer
from gt.dispatcher.usage.ledger import SessionAccount
from gt.errors import ProtocolError, SessionError
from gt.sharding.options import LARGEST_WEIGHT, LEAST_WEIGHT, PRIORITIES
from gt.wire import messages as m
from gt.wire.principals import (
    ALL_ROLES,
    HELLO_ROLES,
    OPERATOR,
    OWN_PROCESS,
    Origin,
    ProgramIdentity,
    least_role,
    program_of,
)

from .returning_sessions import ReturningSessions

if TYPE_CHECKING:
    from gt.sharding.config import Config

CLIENT_CREDITS: Final = 64
"""The most runs and puts that a client may have in flight."""
UNLIMITED: Final = 1 << 30
"""More sessions than there can be."""
MAX_CLIENTS: Final = 1024
MAX_PROGRAM_LENGTH: Final = 200
"""The most characters of a program's name that are kept for its account."""
"""The most sessions at one time. It also bounds what workers have queued."""
PROGRAM_RATE: Final = (64, 8.0)
"""The sessions that one program may open at once, and then per second, so that a program that reconnects in a loop is told."""
PRINCIPAL_RATE: Final = (512, 32.0)
"""The same for all programs of one principal; the last tenth is for programs that have opened none."""


class EarlyPulse(ProtocolError):
    """A pulse whose worker is not there: as a rule it is faster than its worker, at the next dispatcher, and says hello again."""


class Handshake:
    """Gives numbers to peers that join. `facts` are what every peer is told about the service, `worker_facts` what workers are
    told besides."""

    def __init__(
        self, service: DispatcherState, subscribers: Subscribers, facts: dict[str, Any], worker_facts: dict[str, Any],
        numbers: Numbers, returning: ReturningSessions,
    ) -> None:  # fmt: skip
        self.service = service
        self.subscribers = subscribers
        self.facts = facts
        self.epoch = int(facts.setdefault("epoch", 1))
        """That of this dispatcher: whoever takes its place has a higher one."""
        self.number = int(facts.setdefault("service", 0))
        """That of the service, which is the same for whoever takes its place."""
        self.worker_facts = worker_facts
        self.clients = numbers.sessions
        self.workers = numbers.workers
        self.returning = returning
        self.pulses: dict[bytes, WorkerRecord] = {}
        """Connections that carry only the heartbeats of a worker."""
        self.of_program = RateLimit(*PROGRAM_RATE)
        self.of_principal = RateLimit(*PRINCIPAL_RATE)

    def hello(self, peer: bytes, hello: m.Hello, origin: Origin = OWN_PROCESS) -> bool:
        """Process a peer's first message. Returns whether a worker has joined.

        Raises `ProtocolError`, or `SessionError` when a peer that made no mistake is refused.
        """
        now = self.service.now
        if hello.role not in HELLO_ROLES:
            raise ProtocolError(f"no role {hello.role[:20]!r}")
        self._permit(hello.role, origin)
        self._compare_epochs(peer, hello)
        if hello.role == "client":
            self._client(peer, hello, origin, now)
        elif hello.role == "worker":
            self._worker(peer, hello, origin, now)
            return True
        elif hello.role in ("watcher", "inquirer"):
            self._watcher(peer, hello, origin, now)
        elif hello.role == "standby":
            self._standby(peer, hello, now)
        elif hello.role == "seeker":
            self.service.send(peer, m.Welcome(0, self._identity()))
        elif hello.role == "prober":
            self.service.send(peer, m.Welcome(0, {**self._identity(), **health_facts(self.service, hello.facts)}))
        else:
            self._pulse(peer, hello, origin)
        return False

    def present(self, hello: m.Hello, origin: Origin) -> ClientRecord | None:
        """The session of a client's first message, if it is here on another connection. Raises as `hello` does."""
        if hello.role != "client":
            return None
        self._permit(hello.role, origin)
        _bulk_identity(hello.facts)
        return self.returning.present(hello.facts, origin.principal)

    def welcome(self, client: ClientRecord, **more: Any) -> None:
        """Tell a client that it has joined, with its number and `more` facts."""
        workers = max(len(self.service.in_service), self.service.workers_expected)
        workers = min(workers, self.service.limits.of(client.program.principal).workers or workers)
        facts = {**self.facts, "workers": workers, "credits": CLIENT_CREDITS, **more}
        self.service.send(client.identity, m.Welcome(client.number, facts))
        self._tell_standby(client.identity)

    def _identity(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "service": self.number}

    def _permit(self, role: str, origin: Origin) -> None:
        """Raise `SessionError` unless a principal may join in this role. The refusal is counted and logged."""
        principal, needed = origin.principal, HELLO_ROLES[role]
        if principal.roles == ALL_ROLES or not principal.roles.isdisjoint(needed):
            return
        said, asked = " and ".join(sorted(principal.roles)) or "none", " or ".join(sorted(needed)) or "of the owner"
        text = f"{principal.name} may not join as {role}: that needs the role {asked}, and its role is {said}"
        self.service.counters.refused += 1
        self.service.log("warning", f"refused a peer: {text}", "refused")
        if not needed:
            raise SessionError(f"{text}; the keys of the service itself have it (docs/security.md)")
        raise SessionError(f"{text}; keys for TCP addresses have roles: gt keys new NAME --role {least_role(needed)}")

    def _compare_epochs(self, peer: bytes, hello: m.Hello) -> None:
        """Raise `SessionError` if a peer knows a dispatcher that has taken the place of this one. Workers and standbys, which are
        trusted, end this one by that."""
        epoch = hello.facts.get("epoch", 0)
        if type(epoch) is not int or epoch <= self.epoch or hello.facts.get("service", 0) != self.number:
            return
        if hello.role in ("worker", "standby"):
            self.service.replaced = Replacement(epoch, peer if hello.role == "standby" else b"")
        raise SessionError(
            f"another dispatcher has taken the place of this one (epoch {epoch}, and this one has {self.epoch}): what is said "
            "here counts no more"
        )

    def _standby(self, peer: bytes, hello: m.Hello, now: float) -> None:
        service, marks = self.service, self.returning.marks
        address = hello.facts.get("address")
        if not isinstance(address, str) or not address:
            raise ProtocolError("a standby says at which address it listens")
        if "epoch" in hello.facts:  # it serves, in the place of one that was here
            raise SessionError(f"this dispatcher was not replaced: its epoch is {self.epoch}")
        if not marks.saves:
            raise SessionError(
                "this dispatcher keeps nothing with which another one could go on: start it with --marks"
            )
        if address == service.address:
            raise SessionError("a dispatcher cannot stand by for itself: give the other one an --address of its own")
        if service.standby.peer:
            raise SessionError(f"another dispatcher stands by already, at {service.standby.address}")
        marks.file_work.append(service.standby.join(peer, address, now))
        service.send(peer, m.Welcome(0, self.facts))
        for other in (*service.clients, *service.workers):
            service.send(other, m.StandBy(address))

    def _tell_standby(self, peer: bytes) -> None:
        """Tell a peer that joins where another dispatcher stands by, if one does."""
        if self.service.standby.address:
            self.service.send(peer, m.StandBy(self.service.standby.address))

    def _watcher(self, peer: bytes, hello: m.Hello, origin: Origin, now: float) -> None:
        try:
            self.subscribers.join(peer, hello.facts, now, origin, watches=hello.role == "watcher")
        except ProtocolError as error:
            self.service.counters.refused += 1
            raise SessionError(str(error)) from None
        facts = self.facts if OPERATOR in origin.principal.roles else {**self.facts, "capabilities": []}
        self.service.send(peer, m.Welcome(0, facts))

    def _client(self, peer: bytes, hello: m.Hello, origin: Origin, now: float) -> None:
        _bulk_identity(hello.facts)
        program = program_of(peer, hello.facts, origin)
        returns = self.returning.check(hello.facts, origin.principal)
        known = returns and self.returning.is_known(hello.facts)
        self._make_way(program, now, known=known)
        if known or self.room(program.principal, peer) > 0:
            self.begin(peer, hello, origin)
        else:
            self._queue(peer, program.principal, hello, origin)

    def room(self, principal: str, peer: bytes = b"") -> int:
        """How many sessions more a principal may have, where those count that may come back; none if others wait that have come
        before `peer`."""
        most = self.service.limits.of(principal).sessions
        if most is None:
            return UNLIMITED
        if peer and any(each.principal == principal for each in self.service.queued.waiting.values()):
            return 0
        there = sum(client.program.principal == principal for client in self.service.clients.values())
        return most - there - sum(cards[0].principal == principal for cards in self.service.away.values())

    def reason(self, principal: str) -> str:
        """Which limit those wait for who wait in the queue."""
        most = self.service.limits.of(principal).sessions
        return f"{principal} may have {most} session{'' if most == 1 else 's'} at a time"

    def _queue(self, peer: bytes, principal: str, hello: m.Hello, origin: Origin) -> None:
        """Let a session wait until its principal has fewer. Raises `SessionError` where none may wait."""
        service, reason = self.service, self.reason(principal)
        refuse = service.limits.of(principal).when_full == REFUSE
        if refuse or service.queued.is_full(principal):
            service.counters.refused += 1
            more = "" if refuse else ", and as many wait as may"
            raise SessionError(f"too many sessions: {reason}{more}; end one of them, or try again later")
        position = service.queued.add(QueuedSession(peer, principal, (hello, origin), service.now, service.now))
        service.send(peer, m.Queued(position, reason))
        service.log("info", f"a session of {principal} waits, number {position} in the queue: {reason}", "queued")

    def begin(self, peer: bytes, hello: m.Hello, origin: Origin) -> None:
        """A client's session begins. Raises `SessionError` if there is no room."""
        service, now = self.service, self.service.now
        if len(service.clients) >= MAX_CLIENTS:
            raise SessionError(
                f"too many sessions: this service has room for {MAX_CLIENTS}; try again when one has ended"
            )
        bulk, program = _bulk_identity(hello.facts), program_of(peer, hello.facts, origin)
        returns = self.returning.check(hello.facts, origin.principal)
        client = ClientRecord(peer, next(self.clients), hello.facts, bulk, program, origin.principal, heard=now)
        client.priority, client.weight = _sharing(hello.facts, service.config)
        client.account = SessionAccount(program.principal, _program_name(hello.facts), client.number, now)
        client.recovery.resends = hello.facts.get("resends") is True
        client.recovery.key = hello.facts.get("session_key", b"")
        service.clients[peer] = service.by_number[client.number] = client
        self.welcome(client)
        most = Priority(service.limits.of(program.principal).priority)
        if client.priority is not AUTO and at_most(client.priority, most) is not client.priority:
            text = f"priority {client.priority} was asked for, and {program.principal} may have at most {most}"
            service.send(peer, m.Notice(text))
        service.log("info", f"client {client.number} joined", client=client.number)
        if service.recording is not None:
            service.recording.client_joined(client)
        if returns:
            self.returning.begin(client, hello.facts["mark"])

    def _make_way(self, program: ProgramIdentity, now: float, *, known: bool) -> None:
        """Count a session of a program. Raises `SessionError` if it is one too many; one that is `known` is not new."""
        who = refusal(MAX_CLIENTS, [client.program for client in self.service.clients.values()], program)
        if who is not None:
            self.service.counters.refused += 1
            raise SessionError(
                f"too many sessions: this service has room for {MAX_CLIENTS}, and of {who} it has as many as it may; "
                "try again when one has ended"
            )
        if known:
            return
        fresh = self.of_program.used(program, now) == 0
        for rate, whose, said, reserved in (
            (self.of_program, program, "this program", 0),
            (
                self.of_principal,
                program.principal,
                "this user's programs",
                0 if fresh else self.of_principal.burst // 10,
            ),
        ):
            wait = rate.wait(whose, now, reserved)
            if wait > 0:
                self.service.counters.refused += 1
                raise SessionError(
                    f"too many sessions: of {said} {rate.burst} may open at once, then {rate.a_second:g} a second; "
                    f"try again in {wait:.1f} s, or keep one session open"
                )
        self.of_program.take(program, now)
        self.of_principal.take(program.principal, now)

    def _worker(self, peer: bytes, hello: m.Hello, origin: Origin, now: float) -> None:
        service = self.service
        address, bulk = hello.facts.get("address"), hello.facts.get("bulk", b"")
        if not isinstance(address, str) or not isinstance(bulk, bytes):
            raise ProtocolError("a worker says its address and bulk identity")
        check_offer(hello.facts)
        number = next(self.workers)  # never given twice: peers remember whom they lost by its number
        host = host_of(hello.facts)
        hosts = {host_of(worker.facts): worker for worker in service.workers.values()}
        hosts.pop(host, None)
        far = list(hosts.values())  # one for each other host: their links are alike
        for there, other in hosts.items():
            if address.startswith("tcp://") and other.address.startswith("tcp://"):
                service.measured.begin(host, there, now)
        worker = WorkerRecord(peer, number, hello.facts, address, bulk, heard=now, principal=origin.principal)
        service.admit(worker)
        service.send(peer, m.Welcome(number, {**self.facts, **self.worker_facts}))
        self._tell_standby(peer)
        if service.recording is not None:
            service.recording.worker_joined(worker)
            if worker.duty is not IN_SERVICE:
                service.recording.duty_changed(worker)
            self.subscribers.tell(worker)
        if far:
            service.send(peer, m.Meet([worker.number for worker in far], [worker.address for worker in far]))
            service.out.append(Send(tuple(worker.identity for worker in far), m.Meet([number], [address])))
        device = hello.facts.get("device", "unknown device")
        said = ", as a spare" if worker.duty is SPARE else ""
        service.log("info", f"worker {number} joined ({device}){said}", worker=number)
        alone = next((each for each in (*far, worker) if far and each.address.startswith("ipc://")), None)
        if alone is not None:
            service.log(
                "warning",
                f"workers on other machines cannot reach worker {alone.number} on {alone.facts.get('host')}, and a program "
                "that uses both waits for ever: start each with --listen tcp://HOST:PORT",
                worker=number,
            )

    def _pulse(self, peer: bytes, hello: m.Hello, origin: Origin) -> None:
        address = str(hello.facts.get("address"))
        found = next((worker for worker in self.service.workers.values() if worker.address == address), None)
        if found is None or found.principal.name != origin.principal.name:
            raise EarlyPulse("a pulse of no worker")
        self.service.send(peer, m.Welcome(0, {}))
        self.without(found)
        self.pulses[peer] = found

    def without(self, worker: WorkerRecord) -> None:
        """Drop the pulse connections of a worker."""
        self.pulses = {pulse: other for pulse, other in self.pulses.items() if other is not worker}


def _program_name(facts: dict[str, Any]) -> str:
    """The name of a program, if it says one."""
    said = facts.get("program")
    return said[:MAX_PROGRAM_LENGTH] if isinstance(said, str) else ""


def _sharing(facts: dict[str, Any], config: Config | None) -> tuple[Priority, float]:
    """What a client says of its share of the workers' time, or else the service's config; what is not allowed counts as not
    said."""
    said, weight = facts.get("priority"), facts.get("weight")
    priority = Priority(said) if isinstance(said, str) and said in PRIORITIES else AUTO
    if type(weight) is not float or not LEAST_WEIGHT <= weight <= LARGEST_WEIGHT:
        weight = 1.0
    if config is not None:
        priority = Priority(config.priority or AUTO) if priority is AUTO else priority
        weight = (config.weight or 1.0) if weight == 1.0 else weight
    return priority, weight


def _bulk_identity(facts: dict[str, Any]) -> bytes:
    """By which workers know a client. Raises `ProtocolError`."""
    bulk = facts.get("bulk", b"")
    if not isinstance(bulk, bytes):
        raise ProtocolError("a bulk identity is bytes")
    return bulk
