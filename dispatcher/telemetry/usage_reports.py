"""Reports of what was used: lines for the usage file, answers to who asks, and what watchers are told.

A job adds up what runs have used, and looks at all tensors of each session, in turns. Every `LOOK_SECONDS` it begins anew; a
session with many tensors is looked at less often, so that this takes about a hundredth of the time at most. Whoever asks is told
what runs have used up to then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Generator, Iterator
from operator import attrgetter
from typing import Any, Final, NamedTuple

from gt.dispatcher.pacing.cells import Lane
from gt.dispatcher.state.records import ClientRecord, WorkerRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.dispatcher.usage.energy import BusyMesh, EnergyMeter
from gt.dispatcher.usage.ledger import SessionAccount
from gt.dispatcher.usage.rows import COLUMNS, UsageRow
from gt.sharding.partition import copies
from gt.wire import messages as m

LOOK_SECONDS: Final = 10.0
"""The seconds between two looks at a session."""
LOOK_SECONDS_PER_TENSOR: Final = 1e-4
"""So much more for each of its tensors, each of which takes a microsecond."""
LINE_SECONDS: Final = 60.0
"""The seconds between two lines of a session."""
TENSORS_PER_TURN: Final = 512
SESSIONS_PER_TURN: Final = 16
MAX_LINES: Final = 8192
"""The most lines that wait for the shell."""


class UsageLine(NamedTuple):
    """What a session has used from `since` to `until`, in seconds on the shell's clock."""

    since: float
    until: float
    principal: str
    program: str
    session: int
    values: tuple[int, ...]


class UsageReports:
    """The reports of one service. Without `keeps` there is no file, and so no lines."""

    def __init__(self, service: DispatcherState, *, keeps: bool = False) -> None:
        self.service = service
        self.keeps = keeps
        self.lines: deque[UsageLine] = deque()
        self.look_at = 0.0
        self.due = False
        """Whether the job has something to do."""
        self.asked: deque[tuple[bytes, int]] = deque()
        """Who has asked what everybody has used and was not answered yet, and the numbers of the requests."""
        self.meters: dict[int, EnergyMeter] = {}
        """By worker, those of devices that tell their power."""

    def tick(self) -> None:
        """Time has passed."""
        if self.service.now >= self.look_at or self.service.ledger.closed:
            self.due = True

    def work(self) -> Iterator[None]:
        """Look at all sessions, and write down those that have left, in turns."""
        while self.due:
            self.due = False
            self.look_at = self.service.now + LOOK_SECONDS
            for at, client in enumerate([*self.service.clients.values()], 1):
                if self._is_there(client):
                    yield from self._look(client)
                if not at % SESSIONS_PER_TURN:
                    yield
            closed = self.service.ledger.closed
            while closed:
                account = closed.popleft()
                yield from self.service.ledger.add_up(account)
                self._settle(account)
        yield

    def answer(self, there: Container[bytes]) -> Iterator[None]:
        """Answer those who have asked and are still there, in turns."""
        while self.asked:
            found = yield from usage_now(self.service)
            peer, request = self.asked.popleft()
            if peer in there:
                self.service.send(peer, m.Answer(request, found))
            yield

    def finish(self) -> None:
        """Write down everything at once: the service ends."""
        self.due = True
        for _ in self.work():
            pass
        for client in self.service.clients.values():
            self._settle(client.account)

    def _look(self, client: ClientRecord) -> Iterator[None]:
        """Add up what a session has used, and note what it holds."""
        account, now = client.account, self.service.now
        yield from self.service.ledger.add_up(account)
        if not self._is_there(client):
            return
        if now - account.looked_at >= LOOK_SECONDS / 2 + LOOK_SECONDS_PER_TENSOR * len(client.table):
            held = yield from self._held(client)
            self.service.ledger.held(account, held, self.service.now)
        if self.keeps and self.service.now - account.since >= LINE_SECONDS:
            self._settle(account)

    def _held(self, client: ClientRecord) -> Generator[None, None, int]:
        """The bytes that a session holds over all workers, found in turns; memory at which several tensors look counts once."""
        left, found = [*client.table], 0
        roots: set[Any] = set()
        while left:
            few = left[-TENSORS_PER_TURN:]
            del left[-TENSORS_PER_TURN:]
            for entry, count in Counter(map(client.table.get, few)).items():
                record = None if entry is None else self.service.meshes.get(entry.mesh)
                if entry is None or record is None or entry.fault is not None:
                    continue
                if entry.root is None:
                    found += count * entry.spec.nbytes * copies(entry.resident.layout, record.mesh)
                elif entry.root not in roots:
                    roots.add(entry.root)
                    found += entry.root.spec.nbytes * copies(entry.root.layout, record.mesh)
            if left:
                yield
        return found

    def _settle(self, account: SessionAccount) -> None:
        """Write down what a session has used since the last time, and begin anew."""
        now, used = self.service.now, account.sum
        if self.keeps and not used.is_empty:
            self.lines.append(
                UsageLine(account.since, now, account.principal, account.program, account.number, used.values())
            )
            if len(self.lines) > MAX_LINES:
                self.lines.popleft()
        account.sum, account.since = UsageRow(), now

    def _is_there(self, client: ClientRecord) -> bool:
        return self.service.by_number.get(client.number) is client

    # energy

    def powered(self, worker: WorkerRecord, milliwatts: int) -> None:
        """A worker's device tells its power (below 0: it cannot)."""
        meter = self.meters.get(worker.number)
        if meter is None:
            if milliwatts < 0:
                return
            meter = self.meters[worker.number] = EnergyMeter()
        cell = self.service.pacer.cells.of.get(worker.number)
        lanes: list[Lane] = [] if cell is None else sorted(cell.lanes, key=attrgetter("mesh"))
        busy = [BusyMesh(each.mesh, each.busy, each.plans > 0) for each in lanes]
        for mesh, millijoules in meter.hear(milliwatts, self.service.now, busy):
            client = self.service.by_number[self.service.meshes[mesh].client]
            used = UsageRow()
            used.energy_mj = millijoules
            self.service.ledger.add(client.account, used)
        for number in [number for number in self.meters if number not in self._numbers()]:
            del self.meters[number]

    def _numbers(self) -> set[int]:
        return {worker.number for worker in self.service.workers.values()}


def usage_now(service: DispatcherState, principal: str | None = None) -> Generator[None, None, dict[str, Any]]:
    """What `usage_of` says once everything is added up that workers have reported of plans, in turns."""
    for at, client in enumerate([*service.clients.values()], 1):
        if principal in (None, client.account.principal):
            yield from service.ledger.add_up(client.account)
        if not at % SESSIONS_PER_TURN:
            yield
    return usage_of(service, principal)


def usage_of(service: DispatcherState, principal: str | None = None) -> dict[str, Any]:
    """The sums of a principal, or of all: the names of the `columns`, and `rows` of a principal, a signal and numbers. What
    plans have used since they were added up is not in them."""
    rows = [[*key, *row.values()] for key, row in service.ledger.rows.items() if principal in (None, key.principal)]
    return {"columns": ["principal", "signal", *COLUMNS], "rows": rows}
