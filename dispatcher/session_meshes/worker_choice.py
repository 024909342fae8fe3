"""Which workers a session may use, and in which order it takes them."""

from __future__ import annotations

from collections import Counter
from typing import Final

from gt.dispatcher.cost.cost_model import devices_of, paces
from gt.dispatcher.pacing.soonest_end import WorkerOffer, soonest
from gt.dispatcher.state.records import ClientRecord, WorkerRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.snapshot_files.snapshot_names import published_by
from gt.wire import messages as m

READ_SECONDS: Final = 0.25
"""What it counts for if a worker has to read what another one keeps in memory: it decides only where a session begins."""


class WorkerChoice:
    """The workers in service as each session may use them."""

    def __init__(self, service: DispatcherState) -> None:
        self.service = service

    def allowed(self, client: ClientRecord) -> list[WorkerRecord]:
        """The workers in service that a session may use: if its principal is granted fewer, those that the principal uses, and
        as many others as it may use besides, the least used ones."""
        present, principal = self.service.in_service, client.program.principal
        most = self.service.limits.of(principal).workers
        if most is None or most >= len(present):
            return present
        numbers = {worker.number for worker in present}
        shared: Counter[int] = Counter()
        used: set[int] = set()
        for record in self.service.meshes.values():
            if record.client == client.number:
                continue
            shared.update(record.mesh.members)
            if self.service.by_number[record.client].program.principal == principal:
                used.update(numbers.intersection(record.mesh.members))
        own = {member for record in self.service.meshes_of.get(client.number, ()) for member in record.mesh.members}
        others = sorted(numbers - used, key=lambda number: (number not in own, shared[number], number))
        allowed = used | {*others[: max(0, most - len(used))]}
        return [worker for worker in present if worker.number in allowed]

    def granted(self, client: ClientRecord) -> str:
        name = client.program.principal
        return f"{name} may use {self.service.limits.of(name).workers} with all its sessions"

    def in_order(self, client: ClientRecord, present: list[WorkerRecord]) -> list[int]:
        """Workers in the order in which a session takes them: those that it has, and then those on which its work ends first."""
        here = client.mesh.members if client.mesh else ()
        offers = self._offers(client, present)
        best = soonest(self.service.pacer, client.program.principal, client.number, offers, self.service.now)
        return list(dict.fromkeys([*(number for number in here if number in offers), *best]))

    def _offers(self, client: ClientRecord, present: list[WorkerRecord]) -> dict[int, WorkerOffer]:
        """What workers offer to a session that takes one of them: their speeds, and whether they keep what it subscribes to."""
        first = client.queue[0] if client.queue else None
        held = None
        if isinstance(first, m.Restore) and first.published:
            held = self.service.held.get((published_by(str(first.published[0])), first.name, first.parts))
        offers = {}
        pace = paces(devices_of([worker.facts for worker in present]))
        for worker, speed in zip(present, pace, strict=True):
            seconds = READ_SECONDS if held is not None and worker.identity not in held.workers else 0.0
            offers[worker.number] = WorkerOffer(speed / worker.slowed, seconds, worker.health.is_strained)
        return offers
