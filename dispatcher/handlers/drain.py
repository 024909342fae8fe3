"""Draining workers: all sessions move away from a worker, and then it ends.

From the beginning of its drain on, a worker is on no new mesh, and a spare takes its place. A session leaves it in one of two
ways:

* Another worker takes its rank. The session takes a mark, as soon as that is durable goes back to it, and another worker restores
  what the mark has for that rank, as after a loss (`recovery.py`). This needs marks, and a worker in service that is not on the
  session's mesh.
* Otherwise the session makes its mesh anew on the workers that remain, and its tensors move there (`Remesh`).

Where neither is possible, the worker stays in service. Each session goes at its own pace, so a drain looks at all of them again
and again, and takes the next step wherever there is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gt.dispatcher.state.events import Recovery, Remesh
from gt.dispatcher.state.records import ClientRecord, WorkerRecord
from gt.dispatcher.state.session_marks import SessionMark
from gt.dispatcher.state.shared_state import DispatcherState
from gt.dispatcher.state.worker_duty import IN_SERVICE, LEAVING, SPARE
from gt.errors import SessionError
from gt.wire import messages as m

from .marks import folder_of

if TYPE_CHECKING:
    from .disconnect import Disconnect
    from .fetches import FetchHandler
    from .marks import MarkHandler
    from .message_queues import MessageQueues
    from .snapshots import SnapshotHandler

SETTLE_SECONDS: Final = 1.0
"""How long a client has to take note of a mark before its session goes back: from an earlier one more is computed again."""
SESSIONS_AT_ONCE: Final = 64
PAUSE_SECONDS: Final = 0.01
"""All sessions on a worker are looked at after any event; if they are many, after so long a pause for so many of them."""
MAX_ENDED: Final = 64
"""Of how many drains it is remembered how they ended."""
GOES_BACK: Final = "it goes back to a mark"
MAX_TOLD: Final = 64
"""The most sessions that an answer names."""


@dataclass(slots=True)
class WorkerDrain:
    """One drain under way."""

    worker: WorkerRecord
    spare: WorkerRecord | None
    """The worker that has taken its place."""
    marks: dict[int, int] = field(default_factory=dict)
    """By client: its newest mark when the drain first came to it."""
    rewound: set[int] = field(default_factory=set)
    """The clients that are without the worker, to which their present marks may still refer."""
    next_at: float = 0.0
    """When its next steps are taken at the earliest."""
    waits: list[tuple[int, str]] = field(default_factory=list)
    """The clients that have yet to leave, and what each waits for."""


class DrainHandler:
    """All drains."""

    def __init__(
        self, service: DispatcherState, queues: MessageQueues, disconnect: Disconnect, marks: MarkHandler, fetches: FetchHandler,
        snapshots: SnapshotHandler,
    ) -> None:  # fmt: skip
        self.service = service
        self.queues = queues
        self.disconnect = disconnect
        self.marks = marks
        self.fetches = fetches
        self.snapshots = snapshots
        self.drains: dict[int, WorkerDrain] = {}
        """By the number of the worker."""
        self.ended: dict[int, str] = {}
        """By the number of the worker: why its last drain has failed; empty if it has gone."""
        self.kept_workers = False
        """Whether workers are in service again since the core last looked: what waits for workers may go on."""

    def ask(self, number: int, *, begin: bool) -> dict[str, Any]:
        """Begin to drain a worker, or go on with that. Returns how far it is. Raises `SessionError` if it stays."""
        worker = next((each for each in self.service.workers.values() if each.number == number), None)
        if worker is not None and begin and number not in self.drains:
            self._begin(worker)
            self.advance()
        if (drain := self.drains.get(number)) is not None:
            return {"state": "leaving", "sessions": [list(each) for each in drain.waits[:MAX_TOLD]]}
        reason = self.ended.get(number)
        if reason == "":
            return {"state": "gone", "sessions": []}
        text = "is not drained" if worker is not None else "is not there (any more)"
        raise SessionError(reason or f"worker {number} {text}")

    def _begin(self, worker: WorkerRecord) -> None:
        self.ended.pop(worker.number, None)
        was, spare = worker.duty, None
        self.service.assign(worker, LEAVING)
        if was is SPARE:
            self.service.kept_spares -= 1
        else:
            spare = self.service.replace(worker)
        self.service.log("info", f"worker {worker.number} is drained", "drain", worker=worker.number)
        self.drains[worker.number] = WorkerDrain(worker, spare)
        stuck = []
        for client in self._on(worker):
            client.stays = ""
            if not client.undecided and (reason := self._obstacle(client, worker)):
                stuck.append((client.number, reason))
        if stuck:  # before anything has moved
            self._give_up(self.drains[worker.number], stuck)

    def resume(self) -> None:
        """Go on with the drains of the dispatcher before whose workers have joined."""
        for worker in self.service.resumed:
            self.drains[worker.number] = WorkerDrain(worker, None)
            text = f"worker {worker.number} was being drained, and still is"
            self.service.log("info", text, "drain", worker=worker.number)
        self.service.resumed.clear()

    def advance(self) -> None:
        """Take all next steps. A worker on which nothing is left is told to end."""
        for drain in list(self.drains.values()):
            if self.service.now < drain.next_at:
                continue
            worker = drain.worker
            if self.service.workers.get(worker.identity) is not worker:
                self._end(
                    drain, "" if worker.released else f"worker {worker.number} was lost before all sessions had left it"
                )
                continue
            if worker.released:
                continue
            clients, stuck, drain.waits = self._on(worker), [], []
            drain.next_at = self.service.now + len(clients) // SESSIONS_AT_ONCE * PAUSE_SECONDS
            for client in clients:
                if client.undecided:
                    drain.waits.append((client.number, GOES_BACK))
                    continue
                reason = client.stays or self._obstacle(client, worker)
                if reason:
                    stuck.append((client.number, reason))
                else:
                    self._move(drain, client)
            if stuck:
                self._give_up(drain, stuck)
                continue
            drain.waits += [(client.number, text) for client in self._referring(drain) if (text := self._renew(client))]
            drain.waits += [(client.number, GOES_BACK) for client in self._needing() if client not in clients]
            if self.service.away or self.service.is_short:
                drain.waits.append((-1, "workers and sessions have yet to come back, and may need it"))
            if self.fetches.awaits(worker):
                drain.waits.append((-1, "the worker has yet to send fetched tensors"))
            if self.snapshots.awaits(worker):
                drain.waits.append((-1, "the worker has yet to finish a snapshot"))
            if not drain.waits and not self._on(worker):
                worker.released = True
                drain.waits.append((-1, "the worker ends, when programs have received the rest of what they fetched"))
                self.service.send(worker.identity, m.Goodbye(m.DRAINED, "it was drained"))

    def _on(self, worker: WorkerRecord) -> list[ClientRecord]:
        """The clients that have a mesh with a worker."""
        numbers = {record.client for record in self.service.meshes.values() if worker.number in record.done}
        return [self.service.by_number[number] for number in sorted(numbers)]

    def _obstacle(self, client: ClientRecord, worker: WorkerRecord) -> str:
        """Why a session cannot leave a worker; empty if it can."""
        if self._replaceable(client, worker):
            return ""
        workers = len(self.service.in_service)
        if not workers:
            return "there is no other worker"
        config = client.config
        needed = config.least_mesh if config is not None else 1
        if needed > workers:
            mesh = f"its mesh ({config.mesh_where}) needs {needed} workers"
            marks = "" if client.recovery.resends else ", and it keeps no marks"
            return f"{mesh}, and without this one there would be {workers}{marks}"
        return ""

    def _replaceable(self, client: ClientRecord, worker: WorkerRecord) -> bool:
        """Whether a mark of a session can be restored on its mesh with another worker in place of the one that leaves, one that
        reads the same files."""
        if not client.recovery.resends or client.recovery.is_hopeless or client.mesh is None:
            return False
        record = self.service.meshes[client.mesh.number]
        free = [each for each in self.service.in_service if each.number not in record.done]
        folder = folder_of(worker)
        return all(map(_keeps_marks, record.workers)) and any(
            _keeps_marks(each) and folder_of(each) == folder for each in free
        )

    def _move(self, drain: WorkerDrain, client: ClientRecord) -> None:
        """Take the next step of a session away from a worker."""
        if _goes_back(client):
            drain.waits.append((client.number, GOES_BACK))
        elif client.moving is not None:
            drain.waits.append((client.number, "its tensors move to another mesh"))
        elif self._replaceable(client, drain.worker):
            self._replace(drain, client)
        else:
            if not any(isinstance(message, Remesh) for message in client.queue):
                self.queues.enqueue(client, Remesh(f"worker {drain.worker.number} leaves"))
            ahead = len(client.queue) - 1
            if ahead >= 0:
                drain.waits.append((client.number, f"it moves to another mesh; {ahead} of its messages come first"))

    def _replace(self, drain: WorkerDrain, client: ClientRecord) -> None:
        """Take a mark of a session and go back to it, with another worker."""
        recovery = client.recovery
        known = _marks(client)
        before = drain.marks.setdefault(client.number, known[-1].number if known else 0)
        marks = [mark.number > before for mark in recovery.marks]
        settled = bool(marks) and all(marks)
        if settled or (any(marks) and self.service.now - recovery.stored_at >= SETTLE_SECONDS):
            text = f"worker {drain.worker.number} is drained, and another one takes its place"
            self.disconnect.rewind(client, text, drain.worker.number)
            drain.rewound.add(self.service.clients[client.identity].number)
            return
        if any(marks):
            drain.waits.append((client.number, "its program has yet to take note of the mark"))
            return
        if recovery.taking is None:
            recovery.due = True
            self.marks.take(client)
        drain.waits.append((client.number, "it takes a mark"))

    def _needing(self) -> list[ClientRecord]:
        """The clients on their way back that may need more workers than remain in service."""
        there, needing = len(self.service.in_service), []
        for client in self.service.clients.values():
            sizes = [len(mark.mesh.members) for mark in client.recovery.marks]
            if _goes_back(client) and (not sizes or max(sizes) > there):
                needing.append(client)
        return needing

    def _referring(self, drain: WorkerDrain) -> list[ClientRecord]:
        """The clients that have left a worker by moving their tensors, but to whose marks it belongs: it gives back what they
        have lent it when these are dropped."""
        number = drain.worker.number
        on = {client.number for client in self._on(drain.worker)} | drain.rewound
        return [
            client
            for client in self.service.clients.values()
            if client.number not in on and any(number in mark.mesh.members for mark in _marks(client))
        ]

    def _renew(self, client: ClientRecord) -> str:
        """Have a session take a mark on its new mesh. Returns what it waits for; nothing if it takes no more marks."""
        if client.mesh is not None and set(_marks(client)[-1].mesh.members) <= set(client.mesh.members):
            return "its program has yet to take note of the mark"
        client.recovery.due = True
        self.marks.take(client)
        return "it takes a mark on its new mesh" if client.recovery.resends else ""

    def _give_up(self, drain: WorkerDrain, stuck: list[tuple[int, str]]) -> None:
        """A worker stays, because sessions cannot leave it."""
        worker, spare = drain.worker, drain.spare
        for number, _ in stuck:
            self.service.by_number[number].stays = ""
        self.service.assign(worker, IN_SERVICE)
        if spare is not None and spare.identity in self.service.workers and not self._on(spare):
            self.service.assign(spare, SPARE)
        self.service.note_complete()  # it may take the place of one that was lost meanwhile
        self.kept_workers = True
        self.queues.remesh(f"worker {worker.number} stays")
        reasons = "; ".join(f"client {number}: {reason}" for number, reason in stuck[:MAX_TOLD])
        self._end(drain, f"worker {worker.number} stays in service, because sessions cannot leave it: {reasons}")

    def _end(self, drain: WorkerDrain, reason: str) -> None:
        """A drain is over, and has failed for a `reason` or not."""
        del self.drains[drain.worker.number]
        self.ended[drain.worker.number] = reason
        while len(self.ended) > MAX_ENDED:
            del self.ended[next(iter(self.ended))]
        if reason:
            self.service.log("warning", reason, "drain", worker=drain.worker.number)


def _goes_back(client: ClientRecord) -> bool:
    """Whether a session has yet to get back what it had."""
    recovery = client.recovery
    if recovery.is_under_way or client.undecided:
        return True
    if client.planner is not None:
        return False
    returns = bool(client.queue) and isinstance(client.queue[0], Recovery)
    return returns or (recovery.resends and recovery.over < recovery.taken)


def _marks(client: ClientRecord) -> list[SessionMark]:
    """The marks of a session, the one that is being written last."""
    recovery = client.recovery
    return [*recovery.marks, *([recovery.taking] if recovery.taking is not None else [])]


def _keeps_marks(worker: WorkerRecord) -> bool:
    return worker.facts.get("marks") is True
