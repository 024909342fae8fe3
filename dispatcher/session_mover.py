"""Moves running sessions to other workers: once a second it asks `SessionMoves` which would be faster elsewhere.

A session moves as one does whose worker is drained: between two of its messages, when nothing of it is in flight, its tensors go
to the other worker, and a mark follows. Only sessions move that have one worker and could have had any: whoever has said where to
compute, by a mesh, named workers or a `device:`, stays there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from .cost.cost_model import devices_of, host_of, paces
from .operators.audit import AuditRecord, AuditTrail
from .pacing.session_moves import RunningSession, SessionMoves, WorkerLoads, WorkerState
from .pacing.slowdown import WorkerSlowdown, of_all
from .pacing.soonest_end import demand_of
from .session_meshes.session_mesh import SessionMeshes
from .state.events import Remesh
from .state.records import ClientRecord, WorkerRecord
from .state.shared_state import DispatcherState
from .state.worker_duty import kind_of

if TYPE_CHECKING:
    from gt.sharding.config import Config

    from .handlers.message_queues import MessageQueues
    from .pacing.cells import Cell

LOOK_SECONDS: Final = 1.0
PAIRS_PER_LOOK: Final = 256
"""How many sessions are looked at at a time, times the workers to which they might go; the others follow."""
MAX_RULES_READ: Final = 256
"""Of a config with more rules it is not looked for what keeps its session on a worker: it stays."""
SERVICE: Final = "the service"


class SessionMover:
    """Looks at sessions, and moves them."""

    def __init__(
        self, service: DispatcherState, queues: MessageQueues, meshes: SessionMeshes, audit: AuditTrail
    ) -> None:
        self.service = service
        self.queues = queues
        self.meshes = meshes
        self.audit = audit
        self.moves = SessionMoves()
        self.next_at = 0.0
        self.last = -1
        """The session that was looked at last: those after it are next."""
        self.pending: dict[int, tuple[int, int, str]] = {}
        """By client, those that were told to move and have not arrived: from where, to where, and why."""
        self.slowdowns: dict[int, WorkerSlowdown] = {}
        """By worker, of those that were measured lately."""

    def look(self) -> None:
        """Tell sessions to move that should, if the time has come to look at some."""
        service = self.service
        if service.now < self.next_at:
            return
        self.next_at = service.now + LOOK_SECONDS
        self._note_arrivals()
        workers = service.in_service
        self._look_at_slowdowns(workers)
        if len(workers) < 2 or service.is_short:
            return
        some = [*islice(self._next(), max(1, PAIRS_PER_LOOK // len(workers)))]
        if not some:
            return
        self.moves.forget([client.account.number for client in service.clients.values()])
        by_key = {client.account.number: client for client in some}
        loads = self._loads()
        for move in self.moves.look([self._running(client) for client in some], loads, service.now):
            self.order(
                by_key[move.key], move.target, f"its work is expected to be {move.faster:.2g} times as fast there"
            )

    def _look_at_slowdowns(self, workers: list[WorkerRecord]) -> None:
        """Find out which workers are slowed down, by what plans have taken since the last look, and log what has changed."""
        service, slowdowns = self.service, self.slowdowns
        measured: dict[int, tuple[int, int]] = {}
        for number, cell in service.pacer.cells.of.items():
            if cell.size > 1:
                continue
            took = least = 0
            for lane in cell.lanes:
                took, least = took + lane.took, least + lane.least
                lane.took = lane.least = 0
            if took:
                measured[number] = took, least
                slowdowns.setdefault(number, WorkerSlowdown())
        if not slowdowns:
            return
        slowed = any(worker.slowed > 1.0 for worker in workers)
        for number, slowdown in [*slowdowns.items()]:
            before = slowdown.factor
            slowdown.look(*measured.get(number, (0, 0)), service.now)
            if not slowdown.ratio:
                del slowdowns[number]
            if (slowdown.factor > 1.0) is (before > 1.0):
                continue
            if before > 1.0:
                service.log("info", f"worker {number} is not slowed down any more, as far as is known")
                continue
            times = f"its plans take {slowdown.factor:.2g} times as long as at best"
            service.log(
                "warning", f"worker {number} is slowed down: {times}; see what else its host does, and to its cooling"
            )
        if slowed or any(each.factor > 1.0 for each in slowdowns.values()):
            factors = of_all(slowdowns, {worker.number: host_of(worker.facts) for worker in workers}, service.now)
            for worker in workers:
                worker.slowed = factors[worker.number]

    def order(self, client: ClientRecord, target: int, why: str) -> None:
        """Tell a session to go on on another worker."""
        assert client.mesh is not None, "it has a worker"
        source = client.mesh.members[0]
        self.pending[client.number] = source, target, why
        self.queues.enqueue(client, Remesh(f"it moves from worker {source} to worker {target}: {why}", target))

    def can_move(self, client: ClientRecord) -> bool:
        """Whether a session has one worker and could go on on another one now."""
        recovery, mesh = client.recovery, client.mesh
        if (
            mesh is None
            or len(mesh.members) != 1
            or client.moving is not None
            or client.displaced
            or client.undecided
            or client.fault is not None
            or client.paused
            or recovery.is_under_way
            or client.number in self.pending
        ):
            return False
        worker = self.service.meshes[mesh.number].workers
        return bool(worker) and worker[0] in self.service.in_service and not _is_pinned(client.config)

    def _next(self) -> Iterator[ClientRecord]:
        """The sessions that can move, from the one on after that which was looked at last."""
        clients = sorted(self.service.by_number)
        for number in [*(n for n in clients if n > self.last), *(n for n in clients if n <= self.last)]:
            client = self.service.by_number[number]
            if self.can_move(client):
                self.last = number
                yield client

    def _running(self, client: ClientRecord) -> RunningSession:
        service, mesh = self.service, client.mesh
        assert mesh is not None, "it has a worker"
        account, principal = client.account, client.program.principal
        limited = service.limits.of(principal).workers is not None
        return RunningSession(
            account.number, principal, mesh.members[0], demand_of(service.pacer.lanes[mesh.number], service.now),
            service.now - account.began, account.held_bytes,
            frozenset(worker.number for worker in self.meshes.workers.allowed(client)) if limited else None,
        )  # fmt: skip

    def _loads(self) -> WorkerLoads:
        """Who would use which worker how much."""
        service, pacer = self.service, self.service.pacer
        workers = service.in_service
        pace = paces(devices_of([worker.facts for worker in workers]))
        states = {
            worker.number: WorkerState(kind_of(worker), speed / worker.slowed, worker.health.is_strained)
            for worker, speed in zip(workers, pace, strict=True)
        }
        weights = {principal: granted.weight for principal, granted in pacer.principals.items()}
        loads = WorkerLoads(states, weights, pacer.default.weight)
        known: dict[Cell, dict[Hashable, float]] = {}
        for number in states:
            cell = pacer.cells.of.get(number)
            if cell is None:
                continue
            demands = known.get(cell)
            if demands is None:
                demands = known[cell] = {}
                for lane in cell.lanes:
                    demands[lane.key[0]] = demands.get(lane.key[0], 0.0) + demand_of(lane, service.now)
            for principal, demand in demands.items():
                loads.add(number, principal, demand)
        for number, (source, target, _) in self.pending.items():
            client = service.by_number.get(number)
            if client is not None and client.mesh is not None and client.mesh.number in pacer.lanes:
                demand = demand_of(pacer.lanes[client.mesh.number], service.now)
                loads.add(source, client.program.principal, -demand)
                loads.add(target, client.program.principal, demand)
        return loads

    def _note_arrivals(self) -> None:
        """Note which sessions have moved, and forget those that will not."""
        for number, (source, target, why) in [*self.pending.items()]:
            client = self.service.by_number.get(number)
            if client is not None and client.mesh is not None and client.mesh.members == (target,):
                account, now = client.account, self.service.now
                self.service.counters.moves += 1
                account.moved, account.moved_at = f"from worker {source} to worker {target}, because {why}", now
                record = AuditRecord(
                    SERVICE,
                    "",
                    "move",
                    f"client {number} of {account.principal}",
                    f"worker {source} to {target}",
                    "done",
                    why,
                )
                self.audit.note(record, now)
            elif client is not None and any(isinstance(message, Remesh) for message in client.queue):
                continue
            del self.pending[number]


def _is_pinned(config: Config | None) -> bool:
    """Whether a config says where its session is to compute."""
    if config is None:
        return False
    if config.mesh is not None or len(config.rules) > MAX_RULES_READ:
        return True
    return any(rule.device or rule.shard or rule.stages for rules in config.rules.values() for rule in rules)
